"""Inject faults of hosts.

The faults affect a host's network, clock and disk, and its identity (a second agent with a copied state).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.fault_injection.job_ledger import LedgerEntry, heartbeat_job
from benchmarks.fault_injection.process_faults import MAX_WAIT_SECONDS, FaultContext, cancel, fault, last_sync
from benchmarks.harness.conditions import ConditionTimeout, rows, wait_until
from benchmarks.harness.installation import GRACE_SECONDS, LEASE_SECONDS, ROOT, LocalHost, new_boot
from benchmarks.harness.run_processes import processes_of_runs, shims

STOP_LIMIT_SECONDS = LEASE_SECONDS + GRACE_SECONDS + 1.0
BETWEEN_TICKS_SECONDS = 0.3  # shorter than the 2 s between two periodic ticks of the servers


def host_of(context: FaultContext, run: str) -> LocalHost:
    """Return the host on which a run was placed."""
    from scheduler.models import Run

    name = rows(lambda: Run.objects.select_related("host").get(public_id=run).host.name)
    return next(host for host in context.site.hosts if host.name == name)


def start_heartbeat_job(
    context: FaultContext, host: LocalHost | None = None, extra: str = ""
) -> tuple[str, LedgerEntry, LocalHost]:
    """Start a heartbeat job on ``host``, or on any host.

    Return the job's id, the ledger entry of its first start, and its host. ``extra`` is added to the job's
    script.
    """
    options: dict[str, Any] = {"labels_required": {"name": host.name}} if host else {}
    workload = context.ledger.submit_with_retry(
        heartbeat_job(extra), MAX_WAIT_SECONDS, to_end_well=False, **options
    )
    first = context.ledger.wait_started(workload, MAX_WAIT_SECONDS)
    return workload, first, host_of(context, first.run)


def last_beat(context: FaultContext, run: str) -> float:
    """Return the time of the last ledger line of a run, or 0 if it has none."""
    return max((e.at for e in context.ledger.entries() if e.run == run), default=0.0)


def state_of(workload: str) -> tuple[str, str]:
    """Return (state, reason code) of a workload."""
    from scheduler.models import Workload

    row = rows(lambda: Workload.objects.filter(public_id=workload).values_list("state", "reason_code").get())
    return str(row[0]), str(row[1])


# -- network -------------------------------------------------------------------------------------


@fault("a host cut off for 1 s: its work keeps running, nothing starts elsewhere", 20)
def cut_off_1_s(context: FaultContext) -> float:
    workload, first, host = start_heartbeat_job(context)
    with cut_off(context, [host]):
        time.sleep(1)
    return _wait_and_check_survives(context, workload, first, host)


@fault(
    "a host cut off for longer than a lease: its work stops within lease + grace, then starts elsewhere",
    20,
)
def cut_off_10_s(context: FaultContext) -> float:
    return _cut_off_for(context, 10)


@fault(
    "a host cut off for ten leases: its work stops and starts elsewhere, and the host reconnects on its own",
    20,
)
def cut_off_50_s(context: FaultContext) -> float:
    return _cut_off_for(context, 50)


@contextlib.contextmanager
def cut_off(context: FaultContext, hosts: list[LocalHost]) -> Iterator[None]:
    """Cut the network of the hosts while the context lasts."""
    for host in hosts:
        context.site.cut_off(host)
    try:
        yield
    finally:
        for host in hosts:
            context.site.join_again(host)


def _wait_and_check_survives(
    context: FaultContext, workload: str, first: LedgerEntry, host: LocalHost
) -> float:
    began, before = time.monotonic(), last_sync(host)
    wait_until(lambda: last_sync(host) > before, MAX_WAIT_SECONDS, f"{host.name} reports again")
    took = time.monotonic() - began
    check_survives(context, workload, first)
    cancel(context, workload)
    return took


def check_survives(context: FaultContext, workload: str, first: LedgerEntry, when: str = "") -> None:
    """Check that the job still runs in its first run and writes to the ledger.

    Raises ConditionTimeout otherwise. ``when`` is added to the error.
    """
    since = time.time()
    try:
        wait_until(lambda: last_beat(context, first.run) > since, 5, "the job writes")
    except ConditionTimeout:
        raise ConditionTimeout(
            f"its work keeps running{when}: its state is {state_of(workload)}, and it writes nothing"
        ) from None
    if state_of(workload)[0] != "running":
        raise ConditionTimeout(f"its work keeps running{when}: its state is {state_of(workload)}")


def _cut_off_for(context: FaultContext, seconds: float) -> float:
    workload, first, host = start_heartbeat_job(context)
    began, at = time.monotonic(), time.time()
    with cut_off(context, [host]):
        wait_until(
            lambda: first.run not in processes_of_runs(context.site.folder).values(),
            MAX_WAIT_SECONDS,
            "its work stops",
        )
        stopped = last_beat(context, first.run) - at
        second = context.ledger.wait_started(workload, MAX_WAIT_SECONDS, attempt=first.attempt + 1)
        took = time.monotonic() - began
        time.sleep(max(0.0, seconds - took))
    if stopped > STOP_LIMIT_SECONDS:
        raise ConditionTimeout(f"its work stops within {STOP_LIMIT_SECONDS:g} s: it took {stopped:.2f} s")
    if second.at < at + stopped:
        raise ConditionTimeout(
            f"its work started elsewhere {at + stopped - second.at:.2f} s before it stopped here"
        )
    wait_until(
        lambda: context.site.alive() == len(context.site.hosts),
        MAX_WAIT_SECONDS,
        f"{host.name} is alive again",
    )
    cancel(context, workload)
    return took


@fault("60 % of the hosts cut off: nothing is evicted, no host becomes silent", 30, under_load=False)
def cut_off_most(context: FaultContext) -> float:
    from scheduler.models import Host, Run

    jobs = [start_heartbeat_job(context, host) for host in context.site.hosts]
    cut_hosts = context.rng.sample(context.site.hosts, 3)
    names = [host.name for host in cut_hosts]
    with cut_off(context, cut_hosts):
        time.sleep(LEASE_SECONDS * 3)
        silent = rows(lambda: Host.objects.filter(lease_state="silent").count())
        lost = rows(
            lambda: Run.objects.filter(public_id__in=[f.run for _, f, _ in jobs], state="ended").count()
        )
    began = time.monotonic()
    wait_until(
        lambda: context.site.alive() == len(context.site.hosts), MAX_WAIT_SECONDS, "all hosts come back"
    )
    took = time.monotonic() - began
    for workload, _, _ in jobs:
        cancel(context, workload)
    if silent or lost:
        raise ConditionTimeout(
            f"nothing is evicted: {silent} hosts silent, {lost} runs ended while {names} were cut off"
        )
    return took


@fault("frames of every agent dropped, duplicated, delayed and reordered for 10 s: state converges", 30)
def disturbed_messages(context: FaultContext) -> float:
    gates = context.site.gates
    before = gates.frames, gates.disturbed
    gates.rng = random.Random(context.rng.random())
    time.sleep(10)
    gates.rng = None
    began = time.monotonic()
    took = context.ledger.probe(began, MAX_WAIT_SECONDS)
    wait_until(
        lambda: context.site.alive() == len(context.site.hosts), MAX_WAIT_SECONDS, "every host is alive"
    )
    print(
        f"    {gates.frames - before[0]} frames, {gates.disturbed - before[1]} of them disturbed", flush=True
    )
    return took


# -- identity ------------------------------------------------------------------------------------


@fault("a reboot: its work is lost and starts again, no process is mistaken for an earlier one", 30)
def reboot(context: FaultContext) -> float:
    _needs_namespaces(context)
    workload, first, host = start_heartbeat_job(context, context.site.hosts[-1])
    began = time.monotonic()
    with context.site.agent_down(host):
        _end_all(context, host)
        new_boot(host)
    wait_until(
        lambda: context.site.alive() == len(context.site.hosts),
        MAX_WAIT_SECONDS,
        f"{host.name} is alive again",
    )
    context.ledger.wait_started(workload, MAX_WAIT_SECONDS, attempt=first.attempt + 1)
    took = time.monotonic() - began
    cancel(context, workload)
    return took


def _end_all(context: FaultContext, host: LocalHost) -> None:
    """Kill all shims and all workload processes of a host."""
    runs = {place.name for place in (host.state / "runs").iterdir()}
    pids = [pid for run, pid in shims(context.site.folder).items() if run in runs]
    pids += [pid for pid, run in processes_of_runs(context.site.folder).items() if run in runs]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@fault("another program gets the pid of a shim: it is not adopted, the work starts again", 30)
def pid_reuse(context: FaultContext) -> float:
    workload, first, host = start_heartbeat_job(context)
    wait_until(lambda: first.run in shims(context.site.folder), MAX_WAIT_SECONDS, "its shim runs")
    pid = shims(context.site.folder)[first.run]
    with context.site.agent_down(host):
        for victim in [pid, *processes_of_runs(context.site.folder, first.run)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        other_program = _with_pid(pid)
    began = time.monotonic()
    try:
        context.ledger.wait_started(workload, MAX_WAIT_SECONDS, attempt=first.attempt + 1)
        took = time.monotonic() - began
        if other_program.poll() is not None:
            raise ConditionTimeout("the other program was ended")
    finally:
        other_program.kill()
        other_program.wait()
    cancel(context, workload)
    return took


def _with_pid(pid: int) -> subprocess.Popen[bytes]:
    """Start a program that gets the pid ``pid``.

    Other programs also take new pids, so several attempts may be needed.
    """
    if os.geteuid() != 0:
        raise ConditionTimeout("this fault needs root, to choose a pid")
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}").exists():
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
            process = subprocess.Popen(["/bin/sleep", "300"])
            if process.pid == pid:
                return process
            process.kill()
            process.wait()
    raise ConditionTimeout(f"a program gets pid {pid}")


@fault(
    "a second agent with a copy of the state folder: rejected and shown, the first agent's work continues",
    15,
)
def duplicate_agent(context: FaultContext) -> float:
    workload, first, host = start_heartbeat_job(context)
    began, at = time.monotonic(), time.time()
    with copied_agent(context, host):
        wait_until(
            lambda: _is_rejected(host, at, "agent_second", "agent_copy"),
            MAX_WAIT_SECONDS,
            "the copy is rejected and shown",
        )
        took = time.monotonic() - began
        time.sleep(2)
    _wait_and_check_survives(context, workload, first, host)
    return took


@fault(
    "an outdated copy of a state folder: rejected and shown, also while the original agent is down",
    15,
)
def cloned_host(context: FaultContext) -> float:
    workload, first, host = start_heartbeat_job(context)
    copy = copied_state(host)
    before = _start_of(host)
    with context.site.agent_down(host):
        pass
    wait_until(lambda: _start_of(host) != before, MAX_WAIT_SECONDS, "the original agent has restarted")
    began, at = time.monotonic(), time.time()
    with context.site.agent_down(host), copied_agent(context, host, copy):
        wait_until(
            lambda: _is_rejected(host, at, "agent_copy"),
            MAX_WAIT_SECONDS,
            "the clone is rejected and shown",
        )
        took = time.monotonic() - began
    # If the original agent was down for longer than a lease, the host's work was stopped and starts again.
    since = time.time()
    wait_until(
        lambda: context.site.alive() == len(context.site.hosts),
        MAX_WAIT_SECONDS,
        f"{host.name} is alive again",
    )
    wait_until(
        lambda: any(e.workload == workload and e.at > since for e in context.ledger.entries()),
        MAX_WAIT_SECONDS,
        "its work keeps running",
    )
    cancel(context, workload)
    return took


def _is_rejected(host: LocalHost, since: float, *codes: str) -> bool:
    from scheduler.models import Host

    rejection = rows(lambda: Host.objects.get(name=host.name).refused_agent)
    return bool(
        rejection
        and rejection["code"] in codes
        and datetime.fromisoformat(rejection["at"]).timestamp() > since
    )


def _start_of(host: LocalHost) -> str:
    from scheduler.models import Host

    return str(rows(lambda: Host.objects.get(name=host.name).agent_start))


def copied_state(host: LocalHost) -> Path:
    copy = host.state.parent / f"{host.name}-copy-{time.monotonic_ns()}"
    shutil.copytree(
        host.state,
        copy,
        symlinks=True,
        ignore=lambda folder, names: [n for n in names if n.endswith(".sock")],
    )
    return copy


@contextlib.contextmanager
def copied_agent(context: FaultContext, host: LocalHost, copy: Path | None = None) -> Iterator[None]:
    """Run a second agent of a host while the context lasts.

    It runs in the same network namespace, on a copy of the first agent's state folder.
    """
    copy = copy or copied_state(host)
    command = list(host.command)
    command[command.index("--state") + 1] = str(copy)
    with (context.site.folder / f"{host.name}-copy.log").open("ab") as log:
        process = subprocess.Popen(
            host.inside(command),
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=context.site.agent_environment(host),
            cwd=ROOT,
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(copy, ignore_errors=True)


def _needs_namespaces(context: FaultContext) -> None:
    if not all(host.namespace for host in context.site.hosts):
        raise ConditionTimeout("this fault needs root and ip, because hosts need network namespaces")


# -- clocks --------------------------------------------------------------------------------------


@fault(
    "a host's clock jumps by an hour, both ways: its work keeps running, leases and charged time stay right",
    20,
)
def clock_of_a_host(context: FaultContext) -> float:
    from scheduler.models import Allocation

    workload, first, host = start_heartbeat_job(context)
    for offset in (3600, -3600, 0):
        context.site.clocks.set(host.name, offset)
        time.sleep(LEASE_SECONDS + GRACE_SECONDS + 0.5)
        check_survives(context, workload, first, f" at {offset:+} s")
    requested_at = time.time()
    cancel(context, workload)
    wait_until(lambda: state_of(workload)[0] == "ended", MAX_WAIT_SECONDS, "it ends")
    took = time.time() - requested_at
    period = rows(lambda: Allocation.objects.get(run__public_id=first.run).period)
    errors = (
        abs(period.upper.timestamp() - last_beat(context, first.run)),
        abs(period.lower.timestamp() - first.at),
    )
    if max(errors) > 2.5:
        raise ConditionTimeout(f"the ends of the allocation period are wrong by {errors} s")
    return took


@fault(
    "the servers' clock jumps by an hour, both ways, also between ticks: no work stops, decisions continue",
    30,
)
def clock_of_the_servers(context: FaultContext) -> float:
    workload, first, _ = start_heartbeat_job(context)
    worst = 0.0
    try:
        for offset in (3600, 0, -3600, 0):
            context.site.clocks.set("servers", offset)
            worst = max(worst, context.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS))
            time.sleep(LEASE_SECONDS + GRACE_SECONDS)
            check_survives(context, workload, first, f" at {offset:+} s")
        for offset in (3600, -3600) * 10:
            context.site.clocks.set("servers", offset)
            time.sleep(BETWEEN_TICKS_SECONDS)
            context.site.clocks.set("servers", 0)
            time.sleep(BETWEEN_TICKS_SECONDS)
        worst = max(worst, context.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS))
        time.sleep(LEASE_SECONDS + GRACE_SECONDS)
        check_survives(context, workload, first, " after clock changes between ticks")
    finally:
        context.site.clocks.set("servers", 0)
    cancel(context, workload)
    return worst


# -- disks ---------------------------------------------------------------------------------------


@fault(
    "a host's disk is full: running work continues, new work is refused, the host's page shows it,"
    " its agent restarts, a stop works; all recovers after",
    60,
)
def disk_full_on_a_host(context: FaultContext) -> float:
    _needs_namespaces(context)
    host = context.site.hosts[0]
    workload, first, _ = start_heartbeat_job(context, host)
    lost, lost_start, _ = start_heartbeat_job(context, host)
    filler = host.state / "filler"
    _fill(filler)
    try:
        wait_until(
            lambda: _hardware_notes_contain(host, "disk is full"),
            MAX_WAIT_SECONDS,
            "the host reports that its disk is full",
        )
        with context.site.agent_down(host):
            _end_one(context, lost_start.run)
            _fill(filler)
        wait_until(lambda: _has_ended(lost_start.run), MAX_WAIT_SECONDS, "the lost run is reported as ended")
        wait_until(
            lambda: state_of(lost) == ("queued", "host_full"),
            MAX_WAIT_SECONDS,
            "nothing new is placed there, and the waiting job has the reason",
        )
        cancel(context, lost)
        time.sleep(LEASE_SECONDS + GRACE_SECONDS)
        check_survives(context, workload, first)
        _fill(filler)
        cancel(context, workload)
        wait_until(
            lambda: state_of(workload)[0] == "ended", MAX_WAIT_SECONDS, "a stop reaches the running job"
        )
    finally:
        filler.unlink()
    began = time.monotonic()
    wait_until(
        lambda: not _hardware_notes_contain(host, "disk is full"),
        MAX_WAIT_SECONDS,
        "the host reports free disk space again",
    )
    new_job, _, _ = start_heartbeat_job(context, host)
    took = time.monotonic() - began
    cancel(context, new_job)
    return took


def _fill(filler: Path) -> None:
    """Fill the disk to the last byte.

    A later call fills the space that has been freed meanwhile.
    """
    for piece in (1 << 16, 1 << 10):
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * piece)


def _has_ended(run: str) -> bool:
    from scheduler.models import Run

    return bool(rows(lambda: Run.objects.filter(public_id=run, state="ended").exists()))


def _end_one(context: FaultContext, run: str) -> None:
    """Kill the shim and the workload processes of one run."""
    for pid in (shims(context.site.folder)[run], *processes_of_runs(context.site.folder, run)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _hardware_notes_contain(host: LocalHost, text: str) -> bool:
    from scheduler.models import Host

    return text in json.dumps(rows(lambda: Host.objects.get(name=host.name).hardware))
