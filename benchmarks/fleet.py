"""Measure a fleet of agents at full rate against all servers on this machine.

    ./run bench fleet --hosts 500 --seconds 60 --json

``./run up`` starts the servers: one web, one edge, one engine, one worker and one database. Two processes run
``--hosts`` light agents (``benchmarks/harness/light_agents.py``), which use the wire protocol like real
agents. Each light agent has eight GPUs. Every five seconds, it sends a report and a batch of samples. Two
jobs a second are submitted over the API.

The memory of the agent and its shim is measured on two more hosts, which have real agents. Each real agent
runs one job in its sandbox.

The figures are ``{"hosts", "sync_p95", "start_p95", "agent_mb", "shim_mb", "errors"}`` and more:

- ``sync_p95``: 95th percentile of the time in which the edge answers a report, from the edge's own metric.
- ``start_p95``: 95th percentile of the time from the decision to start a run until its agent receives the
  order (the frame ``Desired``).
- ``agent_mb``: maximum resident memory (RSS) of an agent.
- ``shim_mb``: maximum RSS of a shim while its job runs, plus the private memory of the shim's guard.
- ``agent_pss_mb`` and ``shim_pss_mb``: the proportional memory (PSS) of the same processes.
- ``errors``: number of errors. These are refused or lost connections and frames, HTTP answers with a status
  of 500 or above, and tracebacks in logs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.protocol import SLOTS_PER_GPU
from benchmarks.harness.conditions import wait_until
from benchmarks.harness.installation import ROOT
from tools.service_environment import agent_environment
from tools.site.agents import agent_command

SERVICES = ()
GPUS = 8
MODEL = "H100-80GB"
REAL = ("real-1", "real-2")
PROCESSES = 2  # processes that run the light agents
JOIN_SECONDS = 300.0
SETTLE_SECONDS = 10.0  # time from the first job to the start of the measurement
JOB_SECONDS = 20
REFUSED = "gpupool_edge_agents_refused_total"


def main(argv: list[str]) -> dict[str, Any]:
    """Run the fleet for ``--seconds`` and return the figures."""
    parser = argparse.ArgumentParser(prog="./run bench fleet")
    parser.add_argument("--hosts", type=_between(1, 5_000), default=500, help="light agents")
    parser.add_argument("--seconds", type=_between(1, 3_600), default=60, help="measured seconds")
    parser.add_argument("--jobs", type=float, default=2.0, help="jobs submitted per second")
    parser.add_argument(
        "--keep", type=Path, default=None, help="folder of the installation, which is kept with its logs"
    )
    options = parser.parse_args(argv)
    folder = options.keep.absolute() if options.keep else Path(tempfile.mkdtemp(prefix="gpupool-fleet-"))
    fleet = FleetBenchmark(folder, options.hosts)
    try:
        fleet.start()
        return fleet.measure(options.seconds, options.jobs)
    finally:
        fleet.stop()
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class MemoryWatch:
    """The maximum memory in MiB of one process, or of several processes together.

    For several processes, ``rss`` is the RSS of the first process plus the private memory of the others.
    Shared memory therefore counts once. ``pss`` is the sum of the PSS of all processes.
    """

    rss: float = 0.0
    pss: float = 0.0

    def look(self, *pids: int) -> None:
        """Read the memory of the processes once.

        Record nothing if one of the processes has ended.
        """
        try:
            texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
        except OSError:
            return
        first, *later = [
            {line.split()[0]: int(line.split()[1]) / 1024 for line in text.splitlines()[1:]} for text in texts
        ]
        private = sum(sizes["Private_Clean:"] + sizes["Private_Dirty:"] for sizes in later)
        self.rss = max(self.rss, first["Rss:"] + private)
        self.pss = max(self.pss, first["Pss:"] + sum(sizes["Pss:"] for sizes in later))


@dataclass
class FleetLoad:
    """A thread that submits jobs at a steady rate, one after another.

    After a slow answer, the next jobs are submitted at once, to make up for at most one second of delay.
    """

    url: str
    token: str
    per_second: float
    errors: Counter[str] = field(default_factory=Counter)
    took: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._on = threading.Event()
        self._on.set()
        self._thread = threading.Thread(target=self._submit, name="load", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop submitting jobs."""
        self._on.clear()
        self._thread.join(30)

    def _submit(self) -> None:
        due = time.monotonic()
        number = 0
        while self._on.is_set():
            number += 1
            began = time.monotonic()
            try:
                submit(self.url, self.token, f"sleep {JOB_SECONDS}", units=1 + number % 2)
                self.took.append(time.monotonic() - began)
            except urllib.error.HTTPError as error:
                self.errors[f"api: {error.code}: {error.read()[:200].decode(errors='replace')}"] += 1
            except OSError as error:
                self.errors[f"api: {error}"] += 1
            due = max(due + 1 / self.per_second, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))


def submit(url: str, token: str, command: str, units: int = 1, **also: Any) -> str:
    """Submit one job over the API and return its id. Raises OSError if the API does not accept it."""
    body = {
        "project": "fleet/fleet",
        "pool": "fleet",
        "name": "a job",
        "command": command,
        "units": units,
        "max_runtime_seconds": 3_600,
        **also,
    }
    request = urllib.request.Request(
        f"{url}/api/v1/jobs/",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.loads(answer.read())["id"])


class FleetBenchmark:
    """The servers, the light agents and the real agents of one measurement."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.folder = folder
        self.names = [f"light-{number}" for number in range(1, hosts + 1)]
        self.port = free_ports(3)
        self.url, self.edge = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port + 1}"
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.light: list[subprocess.Popen[str]] = []
        self.real: dict[str, Any] = {}
        self.token = ""
        self.agent, self.shim = MemoryWatch(), MemoryWatch()

    # -- starting and stopping --------------------------------------------------------------------

    def start(self) -> None:
        """Start the servers and agents.

        Wait until all hosts are alive and a job runs on each real host.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o711)
        self._start_servers()
        tokens = self._organise()
        say(f"{len(tokens)} hosts are known")
        for name in REAL:
            self._start_real(name, tokens.pop(name))
        self._start_light(tokens)
        wait_until(lambda: self.alive() == len(self.names) + len(REAL), JOIN_SECONDS, "every host is alive")
        say("every host is alive")
        for name in REAL:
            submit(self.url, self.token, "sleep 3600", labels_required={"name": name})
        wait_until(lambda: len(self.shims()) == len(REAL), 180, "a job runs on each real host")

    def _start_servers(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
        command = [
            sys.executable,
            str(ROOT / "run"),
            "up",
            "--state",
            str(self.folder / "site"),
            "--port",
            str(self.port),
        ]
        with (self.folder / "up.out").open("wb") as out:
            self.supervisor = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**kept, "GPUPOOL_EDGE_METRICS_PORT": str(self.port + 2)},
            )
        wait_until(self._is_ready, 180, "the installation is ready")
        os.environ |= json.loads((self.folder / "site" / "environment.json").read_text())
        os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
        import django

        django.setup()

    def _is_ready(self) -> bool:
        output = (self.folder / "up.out").read_text(errors="replace")
        if self.supervisor is None or self.supervisor.poll() is not None:
            raise SystemExit(f"gpupool: the installation ended:\n{output[-2000:]}")
        return "is ready" in output

    def _organise(self) -> dict[str, str]:
        """Create the hosts, and a team with one member and a guarantee of all GPUs.

        Return the join token of each host by its name.
        """
        from portal.models import Membership, Organisation, User
        from portal.services.fleet import hosts
        from portal.services.people import api_tokens
        from scheduler.models import Leader, Pool, Project, Quota, Team

        now = datetime.now(UTC)
        Organisation.objects.get_or_create(id=1, defaults={"name": "Fleet"})
        Leader.objects.get_or_create(id=1)
        team = Team.objects.create(slug="fleet", name="Fleet", tag="F", created_at=now)
        Project.objects.create(team=team, slug="fleet", name="Fleet", created_at=now)
        member, operator = (
            User.objects.create(username=n, operator=n == "operator") for n in ("member", "operator")
        )
        Membership.objects.create(user=member, team=team, created_at=now)
        pool = Pool.objects.create(slug="fleet", name="Fleet", kind="dynamic", created_at=now)
        names = [*REAL, *self.names]
        slots = len(names) * GPUS * SLOTS_PER_GPU
        Quota.objects.create(team=team, pool=pool, model=MODEL, guaranteed_slots=slots, updated_at=now)
        _, self.token = api_tokens.create_token(actor=member, name="fleet", now=now)
        return {
            name: hosts.add_host(actor=operator, pool=pool, name=name, now=now, labels={"name": name})[1]
            for name in names
        }

    def _start_real(self, name: str, token: str) -> None:
        agent_settings = {"name": name, "join_token": token, "simulate": f"{GPUS}x{MODEL}"}
        command = agent_command(self.folder, self.folder / "agents" / name, self.edge, agent_settings)
        with (self.folder / f"agent-{name}.log").open("wb") as log:
            self.real[name] = subprocess.Popen(
                command, cwd=ROOT, env=agent_environment(), stdout=log, stderr=log
            )

    def _start_light(self, tokens: dict[str, str]) -> None:
        hosts = [{"name": name, "token": token} for name, token in tokens.items()]
        count = min(PROCESSES, len(hosts))
        for number in range(count):
            with (self.folder / f"light-{number}.log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.harness.light_agents"],
                    cwd=ROOT,
                    text=True,
                    stderr=log,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            self.light.append(process)
            assert process.stdin is not None
            orders = {"edge": self.edge, "gpus": GPUS, "model": MODEL, "hosts": hosts[number::count]}
            print(json.dumps(orders), file=process.stdin, flush=True)
        for number, process in enumerate(self.light):
            assert process.stdout is not None
            if process.stdout.readline() != "joined\n":
                raise SystemExit(
                    f"gpupool: light agents:\n{(self.folder / f'light-{number}.log').read_text()[-2000:]}"
                )

    def stop(self) -> None:
        """End all processes of this benchmark."""
        for process in self.light:
            if process.poll() is None:
                process.kill()
                process.wait()
        for process in self.real.values():
            process.terminate()
        for process in self.real.values():
            process.wait(30)
        if self.supervisor is not None and self.supervisor.poll() is None:
            self.supervisor.send_signal(signal.SIGINT)
            self.supervisor.wait(90)

    # -- measuring --------------------------------------------------------------------------------

    def measure(self, seconds: int, per_second: float) -> dict[str, Any]:
        """Submit jobs, wait until the load is steady, and measure for ``seconds``.

        The light agents are ended afterwards. ``per_second`` is the number of jobs submitted in a second.
        """
        load = FleetLoad(self.url, self.token, per_second)
        self._watch(SETTLE_SECONDS)
        for process in self.light:
            assert process.stdin is not None
            print("measure", file=process.stdin, flush=True)
        before, began, spent = self.metrics(), datetime.now(UTC), self.cpu_seconds()
        self._watch(seconds)
        after, ended, used = self.metrics(), datetime.now(UTC), self.cpu_seconds()
        load.stop()
        alive = self.alive()
        arrivals, errors, round_trips = self._end_light()
        errors += load.errors
        starts = self._starts(arrivals, began, ended)
        if alive != len(self.names) + len(REAL):
            errors[f"{alive} of {len(self.names) + len(REAL)} hosts are alive at the end"] += 1
        if refused := int(_value(after, REFUSED) - _value(before, REFUSED)):
            errors["edge: agents' connections refused"] += refused
        errors += self._in_logs()
        for what, times in errors.items():
            print(f"{times} x {what}", file=sys.stderr)
        syncs = _bucket_counts(before, after)
        return {
            "hosts": len(self.names),
            "sync_p95": _of_buckets(syncs, 0.95),
            "start_p95": _share(starts, 0.95),
            "agent_mb": round(self.agent.rss, 1),
            "shim_mb": round(self.shim.rss, 1),
            "errors": sum(errors.values()),
            "agent_pss_mb": round(self.agent.pss, 1),
            "shim_pss_mb": round(self.shim.pss, 1),
            "sync_p50": _of_buckets(syncs, 0.5),
            "syncs_per_second": round(syncs[-1][1] / (ended - began).total_seconds(), 1),
            "round_trip_p95": _share(round_trips, 0.95),
            "start_p50": _share(starts, 0.5),
            "starts": len(starts),
            "submit_p95": _share(load.took, 0.95),
            "cores": {name: round((used[name] - spent.get(name, 0.0)) / seconds, 2) for name in used},
            "load": round(os.getloadavg()[0], 1),
        }

    def _watch(self, seconds: float) -> None:
        """Read the memory of the real agents and their shims once a second, for ``seconds``."""
        ends = time.monotonic() + seconds
        while (remaining := ends - time.monotonic()) > 0:
            for process in self.real.values():
                self.agent.look(process.pid)
            for shim, guard in self.shims():
                self.shim.look(shim, guard)
            time.sleep(min(remaining, 1.0))

    def _end_light(self) -> tuple[dict[str, float], Counter[str], list[float]]:
        arrivals: dict[str, float] = {}
        errors: Counter[str] = Counter()
        round_trips: list[float] = []
        for number, process in enumerate(self.light):
            output, _ = process.communicate("stop\n", timeout=60)
            if process.returncode:
                errors[
                    f"light agents failed: {(self.folder / f'light-{number}.log').read_text()[-500:]}"
                ] += 1
                continue
            report = json.loads(output)
            arrivals |= report["arrivals"]
            errors += Counter(report["errors"])
            round_trips += report["round_trips"]
        return arrivals, errors, round_trips

    def _starts(self, arrivals: dict[str, float], began: datetime, ended: datetime) -> list[float]:
        """Return the seconds from each decision to start a run until its light agent received the order.

        Only decisions between ``began`` and ``ended`` count. ``arrivals`` gives the time at which each order
        arrived.
        """
        from scheduler.models import Command

        commands = Command.objects.filter(
            verb=Command.Verb.START, created_at__gte=began, created_at__lt=ended
        )
        rows = commands.filter(host__name__in=self.names).values_list("run__public_id", "created_at")
        return [arrivals[str(run)] - at.timestamp() for run, at in rows if str(run) in arrivals]

    def _in_logs(self) -> Counter[str]:
        errors: Counter[str] = Counter()
        for log in [*(self.folder / "site").glob("logs/*"), *self.folder.glob("*.log")]:
            for line in log.read_text(errors="replace").splitlines() if log.is_file() else ():
                if line.startswith("Traceback") or "[error" in line or "ERROR" in line or '" 500' in line:
                    errors[f"{log.name}: {line[:200]}"] += 1
        return errors

    def alive(self) -> int:
        """Return the number of hosts whose lease is alive."""
        from scheduler.models import Host

        return Host.objects.filter(lease_state="alive").count()

    def shims(self) -> list[tuple[int, int]]:
        """Return (pid of the shim, pid of its guard) for each shim of the real agents.

        A shim is left out if the shim or its guard has ended.
        """
        pids_of_shims = []
        for path in self.folder.glob("agents/*/runs/*/shim.json"):
            shim = json.loads(path.read_text())
            pids = int(shim["pid"]), int(shim["guard"]["pid"])
            if all(Path(f"/proc/{pid}").exists() for pid in pids):
                pids_of_shims.append(pids)
        return pids_of_shims

    def metrics(self) -> str:
        """Return the metrics page of the edge as text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port + 2}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds used so far, by service and by group of agents.

        The children of a service count for the service. "all else" is the CPU time of all other processes of
        the machine.
        """
        entries = json.loads((self.folder / "site" / "services.json").read_text())["services"]
        owners = {int(entry["pid"]): name for name, entry in entries.items() if entry["pid"]}
        owners |= {process.pid: "light agents" for process in self.light}
        owners |= {process.pid: "real agents" for process in self.real.values()}
        parents, times = _processes()
        ticks_by_owner: Counter[str] = Counter()
        for pid, ticks in times.items():
            ancestor = pid
            while ancestor not in owners and ancestor > 1:
                ancestor = parents.get(ancestor, 0)
            if ancestor in owners:
                ticks_by_owner[owners[ancestor]] += ticks
        user, nice, system, _, _, interrupts, soft_interrupts = Path("/proc/stat").read_text().split()[1:8]
        ticks_by_owner["all else"] = sum(map(int, (user, nice, system, interrupts, soft_interrupts))) - sum(
            ticks_by_owner.values()
        )
        return {name: ticks / os.sysconf("SC_CLK_TCK") for name, ticks in ticks_by_owner.items()}


def _processes() -> tuple[dict[int, int], dict[int, int]]:
    """Return the parent of each process, and the CPU time of each process in clock ticks. Both are by pid."""
    parents: dict[int, int] = {}
    times: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)], times[int(entry.name)] = (
                int(fields[1]),
                int(fields[11]) + int(fields[12]),
            )
    return parents, times


def _value(metrics: str, name: str) -> float:
    line = next((text for text in metrics.splitlines() if text.startswith(f"{name} ")), f"{name} 0")
    return float(line.split()[1])


def _bucket_counts(before: str, after: str) -> list[tuple[float, float]]:
    """Return the histogram of the syncs between two reads of the edge's metrics.

    Each entry is (upper bound in seconds, number of syncs up to this bound).
    """
    mark = 'gpupool_edge_sync_seconds_bucket{le="'
    counts: list[dict[float, float]] = []
    for metrics in (before, after):
        lines = [
            line.removeprefix(mark).split('"} ') for line in metrics.splitlines() if line.startswith(mark)
        ]
        counts.append({float(bound): float(count) for bound, count in lines})
    return sorted((bound, count - counts[0].get(bound, 0.0)) for bound, count in counts[1].items())


def _of_buckets(counts: list[tuple[float, float]], share: float) -> float | None:
    """Return the quantile ``share`` of a histogram, interpolated within its bucket.

    Return None if the histogram is empty.
    """
    target, below, low = counts[-1][1] * share, 0.0, 0.0
    for bound, count in counts:
        if count >= target and count > below:
            return round(low + (min(bound, 1e6) - low) * (target - below) / (count - below), 4)
        below, low = count, bound
    return None


def _share(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 4) if ordered else None


def free_ports(count: int) -> int:
    """Return the first port of ``count`` consecutive free ports."""
    for first in range(21_000 + os.getpid() % 4_000 * 2, 32_000, count):
        with contextlib.ExitStack() as stack:
            try:
                for number in range(count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", first + number))
            except OSError:
                continue
            return first
    raise SystemExit(f"gpupool: {count} free consecutive ports were not found")


def _between(low: int, high: int) -> Any:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return read


def say(text: str) -> None:
    """Print a line of progress with the time of day."""
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)
