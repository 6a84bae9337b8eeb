"""Upgrade a site of version 0.1 while an agent of version 0.1 runs jobs, and count what is lost.

``tests/fixtures/site_0_1.tar.xz`` is the source of commit 2a7fae3b. Its services make the work. They stop,
the database is migrated, and the present services start on the same state. The agent is replaced last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent.protocol import SLOTS_PER_GPU
from benchmarks.harness import site_processes
from benchmarks.harness.conditions import ConditionTimeout, rows, wait_until
from benchmarks.harness.site_processes import SiteProcesses
from tools.paths import ROOT
from tools.ports import free_port
from tools.service_environment import agent_environment
from tools.throw_away import throw_away_stores

SOURCE = ROOT / "tests" / "fixtures" / "site_0_1.tar.xz"
# The longest lease of version 0.1: the hosts reach no edge while the database is migrated.
LEASE_SECONDS = 600
WAIT_SECONDS = 180.0
TOKEN_DAYS = 90  # an existing token ends at the latest so long after the upgrade
WORK = """
echo start >> "$HOME/starts-{name}"
while [ ! -e "$HOME/end-{name}" ]; do echo x >> "$HOME/{name}"; sleep 0.1; done
"""
ORGANISE = """
import json
from django.utils import timezone
from portal.models import Membership, Organisation, User
from portal.services.fleet import hosts
from portal.services.people import api_tokens
from scheduler.models import Leader, Pool, Project, Quota, Team
now = timezone.now()
Organisation.objects.get_or_create(id=1, defaults={"name": "Old"})
Leader.objects.get_or_create(id=1)
team = Team.objects.create(slug="vision", name="Vision", tag="V", created_at=now)
Project.objects.create(team=team, slug="vision", name="Vision", created_at=now)
member, operator = (User.objects.create(username=n, operator=n == "operator") for n in ("member", "operator"))
Membership.objects.create(user=member, team=team, created_at=now)
pool = Pool.objects.create(slug="pool", name="Pool", kind="dynamic", created_at=now)
Quota.objects.create(team=team, pool=pool, model="H100-80GB", guaranteed_slots=1680, updated_at=now)
_, host = hosts.add_host(actor=operator, pool=pool, name="h1", now=now)
print(json.dumps({"host": host, "member": api_tokens.create_token(actor=member, name="old", now=now)[1]}))
"""


class UpgradedSite:
    """A site whose services first have the code of version 0.1, and then the present code."""

    def __init__(self, folder: Path, stores: Mapping[str, str]) -> None:
        self.folder, self.old = folder, folder / "source-0.1"
        self.port, self.edge_port = free_port(), free_port()
        self.processes = SiteProcesses(folder)
        self.env = {
            **stores,
            "GPUPOOL_STATE": str(folder / "site"),
            "GPUPOOL_PORTAL_URL": f"http://127.0.0.1:{self.port}",
            "GPUPOOL_EDGE_URL": f"http://127.0.0.1:{self.edge_port}",
            "GPUPOOL_LEASE_SECONDS": str(LEASE_SECONDS),
        }
        self.token = ""

    def start_services(self, source: Path) -> None:
        """Migrate the database and start all services, with the code in a folder."""
        self._manage(source, "migrate", "-v", "0", "--skip-checks")
        for name, command in {
            "web": site_processes.web_command(self.port),
            "edge": site_processes.edge_command(self.edge_port),
            "engine": site_processes.engine_command("engine"),
            "worker": site_processes.worker_command(),
            "beat": site_processes.beat_command(self.folder),
        }.items():
            self.processes.start(name, command, source, self.env)
        self.wait(lambda: self.ask("GET", "me/")[0] in (200, 401), "the portal answers")

    def stop_services(self) -> None:
        self.processes.stop(("beat", "engine", "worker", "edge", "web"))

    def organise(self) -> str:
        """Make the team with the old code. Returns the join token of the host."""
        done = self._manage(self.old, "shell", "-v", "0", "-c", ORGANISE)
        made = json.loads(done.splitlines()[-1])
        self.token = made["member"]
        return str(made["host"])

    def _manage(self, source: Path, *arguments: str) -> str:
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(command, cwd=source, env=self.env, capture_output=True, text=True)
        if done.returncode:
            raise ConditionTimeout(f"{arguments[0]} of {source.name}: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout

    def start_agent(self, source: Path, join_token: str = "") -> None:
        """Start the agent with the code in a folder, on the same state."""
        agent = self.folder / "agent"
        command = [sys.executable, "-m", "agent", "run", "--state", str(agent / "state"), "--host", "h1"]
        command += ["--edge", f"http://127.0.0.1:{self.edge_port}", "--simulate", "2xH100-80GB"]
        command += ["--launcher", "plain", "--on-exit", "keep"]
        command += ["--homes", str(agent / "homes"), "--locks", str(agent / "locks")]
        command += ["--join-token", join_token] if join_token else []
        self.processes.start("agent", command, source, agent_environment())

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request to the API. The status 0 means that nothing answers."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/v1/{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError:
            return 0, None

    def submit(self, name: str) -> str:
        """Submit a job that works until it is told to end, and return its id.

        The first job is refused until the host has reported its GPUs.
        """
        job = {"name": name, "project": "vision/vision", "pool": "pool", "units": 1}
        job |= {"command": WORK.format(name=name), "max_runtime_seconds": 3600}
        answers: list[tuple[int, Any]] = []

        def is_accepted() -> bool:
            answers.append(self.ask("POST", "jobs/", job))
            return answers[-1][0] == 201

        self.wait(is_accepted, f"the job {name} is accepted")
        return str(answers[-1][1]["id"])

    def state(self, workload: str) -> str:
        status, answer = self.ask("GET", f"workloads/{workload}/")
        return str(answer["state"]) if status == 200 else f"status {status}"

    def home(self) -> Path:
        return self.folder / "agent" / "homes" / "member"

    def size(self, name: str) -> int:
        """Return how much a job has written."""
        path = self.home() / name
        return path.stat().st_size if path.exists() else 0

    def works(self, name: str) -> bool:
        """Return True if a job writes now."""
        size = self.size(name)
        try:
            wait_until(lambda: self.size(name) > size, 20, f"{name} works")
        except ConditionTimeout:
            return False
        return True

    def starts(self, name: str) -> int:
        """Return how often a job was started."""
        path = self.home() / f"starts-{name}"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        wait_until(condition, WAIT_SECONDS, what, every=0.2)
        if ended := self.processes.ended():
            raise ConditionTimeout(f"{what}: {ended} ended; the logs are in {self.folder}")


def measure_upgrade(folder: Path) -> dict[str, Any]:
    """Upgrade the site, and return {"upgrade_lost": N}: jobs, charges and tokens that were lost."""
    with tarfile.open(SOURCE) as archive:
        archive.extractall(folder / "source-0.1", filter="data")
    (folder / "site").mkdir()
    with throw_away_stores() as stores:
        site = UpgradedSite(folder, stores)
        try:
            problems = _upgrade(site)
        finally:
            _end_work(site)
            site.processes.stop()
    for problem in problems:
        print(f"  lost: {problem}", flush=True)
    return {"upgrade_lost": len(problems)}


def _end_work(site: UpgradedSite) -> None:
    """Let all jobs end, because their processes do not end with the agent."""
    if site.home().exists():
        for name in ("first", "second", "third"):
            (site.home() / f"end-{name}").touch()


def _upgrade(site: UpgradedSite) -> list[str]:
    os.environ.update(site.env)
    site.start_services(site.old)
    site.start_agent(site.old, site.organise())
    jobs = {name: site.submit(name) for name in ("first", "second")}
    site.wait(lambda: all(site.state(job) == "running" for job in jobs.values()), "two jobs run")
    jobs["third"] = site.submit("third")
    before = {name: site.size(name) for name in jobs}
    site.stop_services()
    print("  the services of version 0.1 have stopped; two jobs run and one waits", flush=True)

    upgraded = datetime.now(UTC)
    site.start_services(ROOT)
    _use_present_models()
    problems = _check_tokens(site)
    site.wait(lambda: _reported_since(upgraded), "the agent of version 0.1 reports to the present edge")
    problems += [f"{n} does not work under the old agent" for n in ("first", "second") if not site.works(n)]
    site.processes.kill("agent")
    site.start_agent(ROOT)
    problems += _end_jobs(site, jobs, before)
    return problems + _check_charges(jobs)


def _end_jobs(site: UpgradedSite, jobs: dict[str, str], before: dict[str, int]) -> list[str]:
    """Check that the jobs continue under the present agent, and end them. Return the problems."""
    problems: list[str] = []
    reported = datetime.now(UTC)
    site.wait(lambda: _reported_since(reported), "the present agent reports")
    for name in ("first", "second"):
        if site.state(jobs[name]) != "running" or not site.works(name) or site.size(name) <= before[name]:
            problems.append(f"{name} does not continue: {site.state(jobs[name])}")
    (site.home() / "end-first").touch()
    site.wait(lambda: site.starts("third") == 1, "the job that waited starts")
    for name in ("second", "third"):
        (site.home() / f"end-{name}").touch()
    site.wait(lambda: all(site.state(job) == "ended" for job in jobs.values()), "all jobs end")
    for name, job in jobs.items():
        outcome = site.ask("GET", f"workloads/{job}/")[1]["outcome"]
        if outcome != "finished" or site.starts(name) != 1:
            problems.append(f"{name} ended as {outcome} after {site.starts(name)} starts")
    return problems


def _use_present_models() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    import django

    django.setup()


def _reported_since(since: datetime) -> bool:
    from scheduler.models import Host

    last = rows(lambda: Host.objects.get(name="h1").last_sync_at)
    return last is not None and last > since


def _check_tokens(site: UpgradedSite) -> list[str]:
    """Check that the token of version 0.1 works, and that it ends as documented."""
    from portal.models import ApiToken

    if site.ask("GET", "me/")[0] != 200:
        return ["the token of version 0.1 is refused"]
    end = rows(lambda: ApiToken.objects.get(name="old").expires_at)
    if end is None or end > datetime.now(UTC) + timedelta(days=TOKEN_DAYS):
        return [f"the token of version 0.1 ends at {end}"]
    return []


def _check_charges(jobs: Mapping[str, str]) -> list[str]:
    """Check that each job is charged for its whole time, and that no allocation is open."""
    from django.utils import timezone

    from scheduler.models import Allocation
    from telemetry.models import Charge
    from telemetry.money.charges import REPORTING_LAG, charge_all_gpus

    # Time is charged only after a delay, so the charges are asked for as of a later time.
    rows(lambda: charge_all_gpus(timezone.now() + REPORTING_LAG + timedelta(seconds=1)))
    problems = []
    for name, job in jobs.items():
        charged = rows(lambda job=job: _seconds(Charge.objects.filter(workload__public_id=job)))  # type: ignore[misc]
        held = rows(lambda job=job: _held(Allocation.objects.filter(run__workload__public_id=job)))  # type: ignore[misc]
        if held == 0 or abs(charged - held) > 2:
            problems.append(f"{name} held a GPU for {held:.0f} s and was charged for {charged:.0f} s")
    if rows(lambda: Allocation.objects.filter(period__upper_inf=True).exists()):
        problems.append("an allocation stays open after all jobs have ended")
    return problems


def _seconds(charges: Any) -> float:
    return float(sum(row.slot_seconds for row in charges)) / SLOTS_PER_GPU


def _held(allocations: Any) -> float:
    ended = [row.period for row in allocations if row.period.upper is not None]
    return float(sum((period.upper - period.lower).total_seconds() for period in ended))
