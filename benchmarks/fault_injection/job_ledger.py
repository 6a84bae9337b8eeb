"""Jobs that write down what happens to them, and what the ledger and the rows must agree on.

Each job takes a lock (flock) on itself and on each of its units, in files that only jobs know, before it writes that it began. So
two starts of one job, or two holders of one unit, are seen by the workloads themselves, whatever database and agents believe.
"""

from __future__ import annotations

import random
import threading
import time
import urllib.error
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.installation import (
    ConditionTimeout,
    Installation,
    processes_of_runs,
    rows,
    wait_until,
)

DRAIN_SECONDS = 90.0

BEGIN_SCRIPT = r"""
cd "$HOME" && mkdir -p held
say() { printf '%s %s %s %s %s %s\n' "$1" "$GPUPOOL_WORKLOAD" "$GPUPOOL_ATTEMPT" "$GPUPOOL_RUN" "$EPOCHREALTIME" "$2" >> ledger; }
exec 9>>"held/$GPUPOOL_WORKLOAD"; flock -n 9 || say double -
for unit in ${CUDA_VISIBLE_DEVICES//,/ }; do exec {lock}>>"held/$unit"; flock -n $lock || say overlap "$unit"; done
say start "$CUDA_VISIBLE_DEVICES"
"""
HEARTBEAT_SCRIPT = "while :; do say beat -; sleep 0.1; done\n"


@dataclass(frozen=True)
class LedgerEntry:
    """One line: start, end, beat, double or overlap, and what a script adds of its own."""

    verb: str
    workload: str
    attempt: int
    run: str
    at: float
    detail: str


def ledger_job(seconds: float) -> str:
    """A job that holds its units for so long."""
    return f"{BEGIN_SCRIPT}sleep {seconds}\nsay end -\n"


def heartbeat_job(also: str = "") -> str:
    """A job that writes ten lines a second until it is ended."""
    return f"{BEGIN_SCRIPT}{also}\n{HEARTBEAT_SCRIPT}"


class JobLedger:
    """What was submitted, and what jobs wrote."""

    def __init__(self, site: Installation) -> None:
        self.site = site
        self.acknowledged: dict[
            str, int
        ] = {}  # id of a job that has to end well: the round in which it was submitted
        self.others: set[str] = set()  # ids of jobs that somebody has to end
        self.refused = 0
        self.round = 0

    def entries(self) -> list[LedgerEntry]:
        """All lines so far."""
        place = self.site.home / "ledger"
        if not place.exists():
            return []
        found = []
        for line in place.read_text().splitlines():
            parts = line.split(" ")
            if len(parts) == 6:
                found.append(
                    LedgerEntry(parts[0], parts[1], int(parts[2]), parts[3], float(parts[4]), parts[5])
                )
        return found

    def submit(self, command: str, units: int = 1, *, to_end_well: bool = True, **also: Any) -> str:
        """Submit a job over the API; its id. Raises OSError while the API is away."""
        body = {
            "project": "faults/faults",
            "pool": "faults",
            "name": "a job",
            "command": command,
            "units": units,
            "max_runtime_seconds": 600,
            **also,
        }
        made = str(self.site.ask("POST", "jobs/", body)["id"])
        if to_end_well:
            self.acknowledged[made] = self.round
        else:
            self.others.add(made)
        return made

    def insist(self, command: str, seconds: float, units: int = 1, **also: Any) -> str:
        """Submit as soon as the API takes it."""
        ends = time.monotonic() + seconds
        while True:
            try:
                return self.submit(command, units, **also)
            except OSError as error:
                if time.monotonic() > ends:
                    raise ConditionTimeout(f"a job is taken: not within {seconds:.0f} s: {error}") from None
                time.sleep(0.05)

    def started(self, workload: str, attempt: int = 0) -> LedgerEntry | None:
        """The first line of a job's start (of that attempt or a later one)."""
        return next(
            (
                e
                for e in self.entries()
                if e.verb == "start" and e.workload == workload and e.attempt >= attempt
            ),
            None,
        )

    def wait_started(self, workload: str, seconds: float, attempt: int = 0) -> LedgerEntry:
        """Wait for it. Raises ConditionTimeout."""
        wait_until(lambda: self.started(workload, attempt), seconds, "a job starts")
        found = self.started(workload, attempt)
        assert found is not None
        return found

    def probe(self, since: float, seconds: float) -> float:
        """Seconds from ``since`` (monotonic) until a job submitted after it has started: the whole chain works again."""
        workload = self.insist(ledger_job(0.2), seconds)
        self.wait_started(workload, max(0.1, seconds - (time.monotonic() - since)))
        return time.monotonic() - since

    # -- what must be true -------------------------------------------------------------------------------------------

    def wrong_now(self) -> list[str]:
        """What may never be, at any moment."""
        return [*self._wrong_in_ledger(), *self._wrong_in_rows()]

    def _wrong_in_ledger(self) -> list[str]:
        found, seen = [], set()
        for entry in self.entries():
            if entry.verb == "overlap":
                found.append(f"run {entry.run} got unit {entry.detail} while another workload held it")
            elif entry.verb == "double":
                found.append(f"workload {entry.workload} ran twice at once (run {entry.run})")
            elif entry.verb == "start":
                if entry.run in seen:
                    found.append(f"run {entry.run} started twice")
                seen.add(entry.run)
        return found

    def _wrong_in_rows(self) -> list[str]:
        return [f"allocations {one} and {other} overlap" for one, other in rows(_overlaps)]

    def settle(self, seconds: float = DRAIN_SECONDS) -> dict[int, list[str]]:
        """Wait until everything submitted has ended, then what is wrong with it, by the round in which it was submitted."""
        from scheduler.models import Allocation, Workload

        wrong: dict[int, list[str]] = {}
        ids = list(self.acknowledged)
        try:
            wait_until(lambda: rows(lambda: not _live(Workload)), seconds, "all work ends", every=0.2)
        except ConditionTimeout as problem:
            wrong.setdefault(self.round, []).append(f"{problem}: {rows(lambda: _told(Workload))}")
        states = rows(
            lambda: {
                str(w.public_id): (w.state, w.outcome) for w in Workload.objects.filter(public_id__in=ids)
            }
        )
        ended = {entry.workload for entry in self.entries() if entry.verb == "end"}
        for workload, number in self.acknowledged.items():
            state = states.get(workload)
            if state is None:
                wrong.setdefault(number, []).append(f"job {workload} was acknowledged and is not there")
            elif state != ("ended", "finished"):
                wrong.setdefault(number, []).append(f"job {workload} is {state}")
            elif workload not in ended:
                wrong.setdefault(number, []).append(
                    f"job {workload} counts as finished and never ran to its end"
                )
        self.acknowledged.clear()
        left = rows(lambda: Allocation.objects.filter(period__upper_inf=True).count())
        if left:
            wrong.setdefault(self.round, []).append(f"{left} allocations are open without work")
        try:
            wait_until(lambda: not processes_of_runs(self.site.folder), 5, "no process is left", every=0.2)
        except ConditionTimeout:
            wrong.setdefault(self.round, []).append(
                f"processes are left: {processes_of_runs(self.site.folder)}"
            )
        return wrong


def _live(workloads: Any) -> bool:
    return bool(workloads.objects.exclude(state="ended").exists())


def _told(workloads: Any) -> list[Any]:
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
    """Short jobs, submitted one after the other by a thread of their own while the context lasts."""

    def __init__(self, ledger: JobLedger, rng: random.Random, per_second: float = 1.5) -> None:
        self.ledger, self.rng, self.per_second = ledger, rng, per_second
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
                    ledger_job(round(self.rng.uniform(0.2, 2.0), 1)), self.rng.choice([1, 1, 1, 2])
                )
            except (OSError, urllib.error.URLError):
                self.ledger.refused += 1
            time.sleep(self.rng.expovariate(self.per_second))
