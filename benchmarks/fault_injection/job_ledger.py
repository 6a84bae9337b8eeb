"""Submit jobs that write their starts and ends to a ledger, and compare the ledger with the database rows.

Before a job writes its start, it locks (flock) one file of the job and one file of each of its units. Only
these jobs use the files. If a lock is already taken, the job writes this to the ledger. So the jobs
themselves detect a job that runs twice at once, and a unit that is held twice. They need neither the database
nor the agents for this.
"""

from __future__ import annotations

import random
import threading
import time
import urllib.error
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.conditions import ConditionTimeout, rows, wait_until
from benchmarks.harness.installation import Installation
from benchmarks.harness.run_processes import processes_of_runs

DRAIN_SECONDS = 90.0

BEGIN_SCRIPT = r"""
cd "$HOME" && mkdir -p held
say() {
  printf '%s %s %s %s %s %s\n' "$1" "$GPUPOOL_WORKLOAD" "$GPUPOOL_ATTEMPT" "$GPUPOOL_RUN" \
    "$EPOCHREALTIME" "$2" >> ledger
}
exec 9>>"held/$GPUPOOL_WORKLOAD"; flock -n 9 || say double -
for unit in ${CUDA_VISIBLE_DEVICES//,/ }; do
  exec {lock}>>"held/$unit"; flock -n $lock || say overlap "$unit"
done
say start "$CUDA_VISIBLE_DEVICES"
"""
HEARTBEAT_SCRIPT = "while :; do say beat -; sleep 0.1; done\n"


@dataclass(frozen=True)
class LedgerEntry:
    """One line of the ledger.

    ``verb`` is start, end, beat, double (the job already runs) or overlap (the unit ``detail`` is already
    held).
    """

    verb: str
    workload: str
    attempt: int
    run: str
    at: float
    detail: str


def ledger_job(seconds: float) -> str:
    """Return the script of a job that holds its units for ``seconds``."""
    return f"{BEGIN_SCRIPT}sleep {seconds}\nsay end -\n"


def heartbeat_job(also: str = "") -> str:
    """Return the script of a job that writes ten ledger lines a second until it is stopped."""
    return f"{BEGIN_SCRIPT}{also}\n{HEARTBEAT_SCRIPT}"


class JobLedger:
    """The jobs that were submitted, and the lines that they wrote to the ledger."""

    def __init__(self, site: Installation) -> None:
        self.site = site
        # By id of each job that must finish successfully: the round in which the job was submitted.
        self.acknowledged: dict[str, int] = {}
        self.jobs_to_cancel: set[str] = set()  # ids of the jobs that a fault or a test will cancel
        self.refused = 0
        self.round = 0

    def entries(self) -> list[LedgerEntry]:
        """Return all lines that the jobs have written so far."""
        path = self.site.home / "ledger"
        if not path.exists():
            return []
        entries = []
        for line in path.read_text().splitlines():
            parts = line.split(" ")
            if len(parts) == 6:
                entries.append(
                    LedgerEntry(parts[0], parts[1], int(parts[2]), parts[3], float(parts[4]), parts[5])
                )
        return entries

    def submit(self, command: str, units: int = 1, *, to_end_well: bool = True, **also: Any) -> str:
        """Submit a job over the API and return its id.

        Set ``to_end_well`` to False if the job will be cancelled. Raises OSError while the API is not
        available.
        """
        body = {
            "project": "faults/faults",
            "pool": "faults",
            "name": "a job",
            "command": command,
            "units": units,
            "max_runtime_seconds": 600,
            **also,
        }
        job_id = str(self.site.ask("POST", "jobs/", body)["id"])
        if to_end_well:
            self.acknowledged[job_id] = self.round
        else:
            self.jobs_to_cancel.add(job_id)
        return job_id

    def submit_with_retry(self, command: str, seconds: float, units: int = 1, **also: Any) -> str:
        """Submit a job and return its id. Retry until the API accepts it.

        Raises ConditionTimeout after ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.submit(command, units, **also)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ConditionTimeout(
                        f"the API did not accept a job within {seconds:.0f} s: {error}"
                    ) from None
                time.sleep(0.05)

    def started(self, workload: str, attempt: int = 0) -> LedgerEntry | None:
        """Return the first start of a job with the attempt number ``attempt`` or a higher number.

        Return None if there is no such start.
        """
        return next(
            (
                e
                for e in self.entries()
                if e.verb == "start" and e.workload == workload and e.attempt >= attempt
            ),
            None,
        )

    def wait_started(self, workload: str, seconds: float, attempt: int = 0) -> LedgerEntry:
        """Wait until a job has started with the attempt number ``attempt`` or a higher number.

        Return the entry of this start. Raises ConditionTimeout after ``seconds``.
        """
        wait_until(lambda: self.started(workload, attempt), seconds, "a job starts")
        entry = self.started(workload, attempt)
        assert entry is not None
        return entry

    def probe(self, since: float, seconds: float) -> float:
        """Submit a new job and wait until it has started.

        Return the seconds since ``since``, which is a time of the monotonic clock.
        """
        workload = self.submit_with_retry(ledger_job(0.2), seconds)
        self.wait_started(workload, max(0.1, seconds - (time.monotonic() - since)))
        return time.monotonic() - since

    # -- checks -----------------------------------------------------------------------------------

    def violations_now(self) -> list[str]:
        """Return the violations of the invariants that must hold at every time."""
        return [*self._ledger_violations(), *self._row_violations()]

    def _ledger_violations(self) -> list[str]:
        violations, started_runs = [], set()
        for entry in self.entries():
            if entry.verb == "overlap":
                violations.append(f"run {entry.run} got unit {entry.detail} while another workload held it")
            elif entry.verb == "double":
                violations.append(f"workload {entry.workload} ran twice at once (run {entry.run})")
            elif entry.verb == "start":
                if entry.run in started_runs:
                    violations.append(f"run {entry.run} started twice")
                started_runs.add(entry.run)
        return violations

    def _row_violations(self) -> list[str]:
        return [f"allocations {first} and {second} overlap" for first, second in rows(_overlaps)]

    def settle(self, seconds: float = DRAIN_SECONDS) -> dict[int, list[str]]:
        """Wait until all submitted jobs have ended, for at most ``seconds``.

        Return the problems by round. A problem of one job counts for the round in which the job was
        submitted. Other problems, such as open allocations, count for the present round.
        """
        from scheduler.models import Allocation, Workload

        problems: dict[int, list[str]] = {}
        ids = list(self.acknowledged)
        try:
            wait_until(lambda: rows(lambda: not _any_live(Workload)), seconds, "all work ends", every=0.2)
        except ConditionTimeout as error:
            problems.setdefault(self.round, []).append(f"{error}: {rows(lambda: _unfinished(Workload))}")
        states = rows(
            lambda: {
                str(w.public_id): (w.state, w.outcome) for w in Workload.objects.filter(public_id__in=ids)
            }
        )
        ended = {entry.workload for entry in self.entries() if entry.verb == "end"}
        for workload, number in self.acknowledged.items():
            state = states.get(workload)
            if state is None:
                problems.setdefault(number, []).append(f"job {workload} was acknowledged and does not exist")
            elif state != ("ended", "finished"):
                problems.setdefault(number, []).append(f"job {workload} is {state}")
            elif workload not in ended:
                problems.setdefault(number, []).append(
                    f"job {workload} is recorded as finished and never ran to its end"
                )
        self.acknowledged.clear()
        open_allocations = rows(lambda: Allocation.objects.filter(period__upper_inf=True).count())
        if open_allocations:
            problems.setdefault(self.round, []).append(f"{open_allocations} allocations are still open")
        try:
            wait_until(lambda: not processes_of_runs(self.site.folder), 5, "no process remains", every=0.2)
        except ConditionTimeout:
            problems.setdefault(self.round, []).append(
                f"processes remain: {processes_of_runs(self.site.folder)}"
            )
        return problems


def _any_live(workloads: Any) -> bool:
    return bool(workloads.objects.exclude(state="ended").exists())


def _unfinished(workloads: Any) -> list[Any]:
    return list(workloads.objects.exclude(state="ended").values_list("public_id", "state", "reason_code")[:5])


def _overlaps() -> list[tuple[int, int]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT a.id, b.id FROM scheduler_allocation a JOIN scheduler_allocation b"
            " ON a.id < b.id AND a.slots && b.slots AND a.period && b.period LIMIT 10"
        )
        return list(cursor.fetchall())


class BackgroundLoad:
    """A thread that submits short jobs at random intervals while the context lasts.

    Each job needs a random choice of ``units``. A host must have as many units free of lasting work: the
    planner keeps room for the first job of the queue, so a job that never fits blocks the later jobs.
    """

    def __init__(
        self,
        ledger: JobLedger,
        rng: random.Random,
        per_second: float = 1.5,
        units: Sequence[int] = (1, 1, 1, 2),
    ) -> None:
        self.ledger, self.rng, self.per_second, self.units = ledger, rng, per_second, units
        self._on = threading.Event()
        self._thread = threading.Thread(target=self._submit, name="load", daemon=True)

    def __enter__(self) -> BackgroundLoad:
        self._on.set()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._on.clear()
        self._thread.join(20)

    def _submit(self) -> None:
        while self._on.is_set():
            try:
                self.ledger.submit(
                    ledger_job(round(self.rng.uniform(0.2, 2.0), 1)), self.rng.choice(self.units)
                )
            except (OSError, urllib.error.URLError):
                self.ledger.refused += 1
            time.sleep(self.rng.expovariate(self.per_second))
