"""Stop the database or the edge of a site for minutes, and count the work that is lost or runs twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from benchmarks.fault_injection.hang_faults import check_beats, check_nothing_started, frozen
from benchmarks.fault_injection.process_faults import MAX_WAIT_SECONDS, FaultContext, cancel, children
from benchmarks.harness.conditions import ConditionTimeout, wait_until
from benchmarks.harness.installation import Installation
from benchmarks.trust_parts.work import RunningJob, context_of, count_double, count_lost, fill_hosts

# Shorter than the shortest hang of the database, so that leases end unless the edge renews them from memory.
DATABASE_LEASE_SECONDS = 30
EDGE_LEASE_SECONDS = 300  # the default: an edge that is stopped renews nothing
Freeze = Callable[[Installation], AbstractContextManager[None]]


def freeze_database(site: Installation) -> AbstractContextManager[None]:
    """Return a context in which all processes of PostgreSQL are stopped."""
    postmaster = site.pid("postgres")
    return frozen([postmaster, *children(postmaster)])


def freeze_edge(site: Installation) -> AbstractContextManager[None]:
    """Return a context in which the edge is stopped."""
    return frozen([site.pid("edge")])


def hang(site: Installation, seconds: float, freeze: Freeze) -> dict[str, int]:
    """Fill all GPUs, stop a service for ``seconds``, and count the jobs that were lost or ran twice.

    Raises ConditionTimeout if a job starts during the hang, or if the site places no job afterwards.
    """
    context = context_of(site)
    jobs = fill_hosts(context)
    with freeze(site):
        began = time.time()
        wait_until(lambda: time.time() > began + seconds, seconds + 60, "the hang is over", every=0.5)
        stopped = [job for job in jobs if not _beats(context, job)]
        check_nothing_started(context, began)
    for job in stopped:
        print(f"  the job on {job.host.name} does not work at the end of the hang", flush=True)
    wait_until(lambda: site.alive() == len(site.hosts), MAX_WAIT_SECONDS, "every host is alive")
    lost = max(len(stopped), count_lost(context, jobs, " after the hang"))
    cancel(context, jobs[0].workload)  # a free GPU for the next job
    context.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)
    return {"lost": lost, "double": count_double(context)}


def _beats(context: FaultContext, job: RunningJob) -> bool:
    try:
        check_beats(context, job.first.run, "it works")
    except ConditionTimeout:
        return False
    return True
