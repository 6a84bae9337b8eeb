"""Lose all services and the database of a site, restore its backup, and count what is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.fault_injection.process_faults import MAX_WAIT_SECONDS
from benchmarks.harness.conditions import ConditionTimeout, rows, wait_until
from benchmarks.harness.installation import ROOT, Installation
from benchmarks.trust_parts.work import RunningJob, context_of, count_double, count_lost, fill_hosts
from tools.backup.manifest import backups_in
from tools.backup.source import find_source

HOSTS = 2
LEASE_SECONDS = 600  # work continues while the site is restored


def measure_restore(folder: Path) -> dict[str, Any]:
    """Return the seconds until a lost site is restored and every host reports, and the number of losses.

    Counted are: each running job, a job that was submitted after the backup, the token in use, and a token
    that was revoked after the backup and must stay revoked.
    """
    backups = folder / "backups"
    os.environ["GPUPOOL_BACKUPS"] = str(backups)
    site = Installation(folder, hosts=HOSTS, lease_seconds=LEASE_SECONDS)
    state = folder / "site"
    try:
        site.start()
        context = context_of(site)
        jobs = fill_hosts(context)
        _run("backup", "--state", str(state))
        waiting = context.ledger.submit("true", to_end_well=False)
        revoked = _revoked_token(site)
        _archive_log(state, backups)
        _close_connections()
        site.lose_services()
        began = time.monotonic()
        [backup] = backups_in(backups)
        _run("restore", str(backup), "--state", str(state))
        site.start_services()
        wait_until(lambda: site.alive() == len(site.hosts), MAX_WAIT_SECONDS, "every host reports")
        took = time.monotonic() - began
        lost = count_lost(context, jobs, " after the restore") + count_double(context)
        lost += _count_missing(site, jobs, waiting, revoked)
        return {"restore_s": round(took, 1), "lost_after_restore": lost}
    finally:
        site.stop()


def _run(*arguments: str) -> None:
    """Run a verb of `./run`. Raises ConditionTimeout if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    command = [sys.executable, str(ROOT / "run"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=kept)
    if done.returncode:
        raise ConditionTimeout(f"./run {arguments[0]}: {(done.stdout + done.stderr)[-2000:]}")


def _revoked_token(site: Installation) -> str:
    """Make a token, revoke it over the API, and return its text."""
    made = site.ask("POST", "tokens/", {"name": "leaked"})
    site.ask("POST", f"tokens/{made['id']}/revoke/", {})
    return str(made["token"])


def _archive_log(state: Path, backups: Path) -> None:
    """Wait until all changes so far are in the archived log."""
    stores = find_source(state).stores
    assert stores is not None
    last = stores.query("SELECT pg_walfile_name(pg_switch_wal())")
    wait_until(
        lambda: (backups / "wal" / f"{last}.gz").exists(), MAX_WAIT_SECONDS, "the log of changes is archived"
    )


def _close_connections() -> None:
    from django.db import connection

    connection.close()


def _count_missing(site: Installation, jobs: list[RunningJob], waiting: str, revoked: str) -> int:
    """Count the rows and the access that the restore lost, and the access that it revived."""
    from scheduler.models import Workload

    ids = [job.workload for job in jobs] + [waiting]
    found = rows(lambda: Workload.objects.filter(public_id__in=ids).count())
    missing = len(ids) - int(found)
    if missing:
        print(f"  {missing} workloads are unknown after the restore", flush=True)
    try:
        site.ask("GET", "me/")
    except OSError as problem:
        print(f"  the token in use is refused: {problem}", flush=True)
        missing += 1
    own, site.token = site.token, revoked
    try:
        site.ask("GET", "me/")
        print("  a token that was revoked after the backup works again", flush=True)
        missing += 1
    except OSError as problem:
        if getattr(problem, "code", 0) != 401:
            raise
    finally:
        site.token = own
    return missing
