"""Test the backup and the restore of a whole site with a simulated host whose job continues."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.running_demo import free_pair
from tools.backup.manifest import VERIFIED, backups_in, read_manifest
from tools.backup.source import find_source
from tools.processes import process_start
from tools.service_environment import agent_environment, environment_of_site

pytestmark = [
    pytest.mark.long,
    pytest.mark.site,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("site"),
]
WAIT_SECONDS = 600
COMMAND = 'while true; do echo tick >> "$HOME/ticks"; sleep 0.1; done'
ORGANISE = """
import json
from django.utils import timezone
from portal.models import Membership, Organisation, User
from portal.services.fleet import hosts
from portal.services.people import api_tokens
from scheduler.models import Leader, Pool, Project, Quota, Team
now = timezone.now()
Organisation.objects.get_or_create(id=1, defaults={"name": "Restored"})
Leader.objects.get_or_create(id=1)
team = Team.objects.create(slug="vision", name="Vision", tag="V", created_at=now)
Project.objects.create(team=team, slug="vision", name="Vision", created_at=now)
member, operator = (User.objects.create(username=n, operator=n == "operator") for n in ("member", "operator"))
Membership.objects.create(user=member, team=team, created_at=now)
pool = Pool.objects.create(slug="pool", name="Pool", kind="dynamic", created_at=now)
Quota.objects.create(team=team, pool=pool, model="H100-80GB", guaranteed_slots=1680, updated_at=now)
_, host = hosts.add_host(actor=operator, pool=pool, name="h1", now=now)
made = {n: api_tokens.create_token(actor=member, name=n, now=now) for n in ("kept", "leaked")}
texts = {n: text for n, (_, text) in made.items()}
print(json.dumps({"host": host, **texts, "leaked_id": made["leaked"][0].pk}))
"""

UNITS = """
import json
from scheduler.models import Unit
print(json.dumps(Unit.objects.count()))
"""
RUNS = """
import json
from scheduler.models import Run
runs = Run.objects.filter(workload__public_id="%s").order_by("pk")
print(json.dumps([[str(run.public_id), run.state] for run in runs]))
"""


@dataclass
class RestorableSite:
    """A `./run up`, and the agent of one simulated host that outlives it."""

    root: Path
    folder: Path
    port: int
    secrets: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> Path:
        return self.folder / "site"

    def start(self, **settings: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
        own = {"GPUPOOL_LEASE_SECONDS": "600", "GPUPOOL_BACKUPS": str(self.folder / "backups"), **settings}
        output = self.folder / "up.out"
        with output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "run", "up", "--state", str(self.state), "--port", str(self.port)],
                cwd=self.root,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**kept, **own},
            )
        self.wait(lambda: "is ready" in output.read_text(), output.read_text)

    def wait(self, condition: Callable[[], bool], explain: Callable[[], object] = str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert self.process is not None and self.process.poll() is None, explain()
            assert time.monotonic() < deadline, explain()
            time.sleep(0.1)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
        command = [sys.executable, "run", *arguments]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, env=kept)

    def shell(self, script: str) -> Any:
        """Run a script with the settings of the site and return its printed JSON."""
        command = [sys.executable, "manage.py", "shell", "-v", "0", "-c", script]
        env = environment_of_site(self.state)
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def ask(self, method: str, path: str, token: str = "kept", body: Any = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/v1/{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {self.secrets[token]}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, None

    def start_agent(self) -> subprocess.Popen[bytes]:
        agent = self.folder / "agent"
        agent.mkdir()
        command = [sys.executable, "-m", "agent", "run", "--state", str(agent / "state"), "--host", "h1"]
        command += ["--edge", f"http://127.0.0.1:{self.port + 1}", "--join-token", self.secrets["host"]]
        command += ["--simulate", "2xH100-80GB", "--launcher", "plain", "--on-exit", "stop"]
        command += ["--homes", str(agent / "homes"), "--locks", str(agent / "locks")]
        with (agent / "log").open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=self.root,
                env=agent_environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def submit(self, name: str) -> str:
        job = {"name": name, "project": "vision/vision", "pool": "pool", "units": 1, "command": COMMAND}
        job["max_runtime_seconds"] = 3600
        status, answer = self.ask("POST", "jobs/", body=job)
        assert status == 201, (status, answer)
        return str(answer["id"])

    def destroy(self) -> None:
        """Kill all services at once and remove the state folder."""
        services = json.loads((self.state / "services.json").read_text())["services"]
        pids = [(entry["pid"], entry["began"]) for entry in services.values()]
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        for pid, began in pids:
            with contextlib.suppress(ProcessLookupError):
                if process_start(pid) == began:
                    os.kill(pid, signal.SIGKILL)
        while any(process_start(pid) == began for pid, began in pids):
            time.sleep(0.05)
        shutil.rmtree(self.state)

    def ticks(self) -> int:
        """Return the number of lines that the job has written."""
        found = list((self.folder / "agent" / "homes").glob("*/ticks"))
        return len(found[0].read_text().splitlines()) if found else 0

    def run_state(self, workload: str) -> Any:
        return self.shell(RUNS % workload)


@dataclass(frozen=True)
class BeforeLoss:
    """The state of a site before it was lost: the ids of two jobs, the first one's runs, and some counts."""

    first: str
    second: str
    runs: Any
    ticks: int
    audit: int


COUNT = "import json; from portal.models import AuditEvent; print(json.dumps(AuditEvent.objects.count()))"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestorableSite]:
    root = Path(__file__).resolve().parent.parent.parent
    site = RestorableSite(root, tmp_path_factory.mktemp("restore"), free_pair())
    agent: subprocess.Popen[bytes] | None = None
    try:
        site.start()
        site.secrets = site.shell(ORGANISE)
        agent = site.start_agent()
        log = site.folder / "agent" / "log"
        site.wait(lambda: site.shell(UNITS) == 2, log.read_text)
        yield site
    finally:
        for process in (agent, site.process):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(90)


@pytest.fixture(scope="module")
def lost(site: RestorableSite) -> BeforeLoss:
    """Back up a site, change it and destroy it. Return its state before the loss."""
    first = site.submit("first")
    site.wait(lambda: site.ticks() > 0, lambda: (site.folder / "agent" / "log").read_text())
    site.wait(lambda: site.ask("GET", f"workloads/{first}/")[1]["state"] == "running")
    done = site.run("backup", "--state", str(site.state), "--verify")
    assert done.returncode == 0, done.stderr
    assert "Verified by a restore" in done.stdout
    second = site.submit("second")
    assert site.ask("POST", f"tokens/{site.secrets['leaked_id']}/revoke/")[0] == 200
    assert site.ask("GET", "me/", token="leaked")[0] == 401
    stores = find_source(site.state).stores
    assert stores is not None
    found = BeforeLoss(first, second, site.run_state(first), site.ticks(), site.shell(COUNT))
    last = stores.query("SELECT pg_walfile_name(pg_switch_wal())")
    site.wait(lambda: (site.folder / "backups" / "wal" / f"{last}.gz").exists())
    site.destroy()
    return found


def test_a_lost_site_is_restored_and_its_running_job_continues(
    site: RestorableSite, lost: BeforeLoss
) -> None:
    [backup] = backups_in(site.folder / "backups")
    assert (backup / VERIFIED).exists() and (backup / "volumes.json").exists()
    done = site.run("restore", str(backup), "--state", str(site.state))
    assert done.returncode == 0, done.stderr
    assert "Restored" in done.stdout and "tokens are revoked" not in done.stdout
    site.start(GPUPOOL_BACKUP_HOURS="24")
    alive = (
        "import json; from scheduler.models import Host; print(json.dumps(Host.objects.get().lease_state))"
    )
    site.wait(lambda: site.shell(alive) == "alive", lambda: (site.folder / "agent" / "log").read_text())
    assert site.run_state(lost.first) == lost.runs
    after = site.ticks()
    assert after > lost.ticks, "the job worked while the site was lost"
    site.wait(lambda: site.ticks() > after)
    assert site.ask("GET", f"workloads/{lost.second}/")[0] == 200, (
        "a change after the backup is in the archived log"
    )
    assert site.ask("GET", "me/", token="leaked")[0] == 401, "the token was revoked after the backup"
    assert site.ask("GET", "me/")[0] == 200
    assert site.shell(COUNT) == lost.audit + 1, "only the audit record of the restore is added"
    # The restored cluster archives nothing until its first backup, so the schedule takes one at once.
    site.wait(lambda: len(backups_in(site.folder / "backups")) == 2)
    site.wait(lambda: (backups_in(site.folder / "backups")[1] / VERIFIED).exists())


def test_a_restore_to_an_earlier_time_keeps_later_revocations(site: RestorableSite, lost: BeforeLoss) -> None:
    backup = backups_in(site.folder / "backups")[0]
    until = read_manifest(backup).finished + timedelta(milliseconds=1)
    target = site.folder / "earlier"
    done = site.run("restore", str(backup), "--state", str(target), "--until", until.isoformat())
    assert done.returncode == 0, done.stderr
    assert "1 API tokens are revoked:\n  member: leaked" in done.stdout
    assert "member: kept" not in done.stdout


def test_without_the_archived_log_all_tokens_are_revoked_and_listed(
    site: RestorableSite, lost: BeforeLoss
) -> None:
    backup = backups_in(site.folder / "backups")[0]
    empty = site.folder / "no-log"
    empty.mkdir()
    done = site.run("restore", str(backup), "--state", str(site.folder / "bare"), "--wal", str(empty))
    assert done.returncode == 0, done.stderr
    assert "There is no archived log" in done.stdout
    assert "2 API tokens are revoked:\n  member: kept" in done.stdout


def test_a_time_after_the_end_of_the_log_is_refused_and_nothing_remains(
    site: RestorableSite, lost: BeforeLoss
) -> None:
    backup = backups_in(site.folder / "backups")[0]
    target = site.folder / "future"
    later = datetime.fromisoformat(read_manifest(backup).finished_at) + timedelta(days=1)
    done = site.run("restore", str(backup), "--state", str(target), "--until", later.isoformat())
    assert done.returncode == 1 and "is after the end of the archived log" in done.stderr
    assert not target.exists() and not list(site.folder.glob("*.new"))
