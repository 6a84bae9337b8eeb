"""Define the faults that stop the database or the edge for longer than a lease, without killing them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from benchmarks.fault_injection.host_faults import (
    check_survives,
    cut_off,
    last_beat,
    start_heartbeat_job,
)
from benchmarks.fault_injection.process_faults import (
    MAX_WAIT_SECONDS,
    FaultContext,
    cancel,
    children,
    fault,
    last_sync,
)
from benchmarks.harness.conditions import ConditionTimeout, wait_until
from benchmarks.harness.installation import GRACE_SECONDS

HANG_LEASES = 4  # duration of the stop of the database; leases that are not renewed end in this time
EDGE_HANG_SHARE = 0.6  # of a lease, because a stopped edge renews no lease
STOP_DELAY_SECONDS = 1.0  # a shim checks its lease at least once a second


@contextlib.contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    """Stop (SIGSTOP) processes while the context lasts."""
    stopped = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
        yield
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@fault(
    "the database hangs for four leases: work continues, except on a host that is cut off meanwhile,"
    " whose work stops within lease + grace + 1 s; nothing is placed, no unit is held twice",
    60,
    under_load=False,
)
def hang_database(context: FaultContext) -> float:
    site, lease = context.site, context.site.lease_seconds
    jobs = [start_heartbeat_job(context, host) for host in site.hosts]
    lost_workload, lost_first, lost_host = jobs[0]
    postmaster = site.pid("postgres")
    with frozen([postmaster, *children(postmaster)]):
        began = time.time()
        with cut_off(context, [lost_host]):
            limit = began + lease + GRACE_SECONDS + STOP_DELAY_SECONDS
            wait_until(
                lambda: time.time() > began + HANG_LEASES * lease, MAX_WAIT_SECONDS, "the hang is over"
            )
            last = last_beat(context, lost_first.run)
            if last > limit:
                raise ConditionTimeout(f"the host that was cut off worked for {last - began:.1f} s")
            for _, first, host in jobs[1:]:
                check_beats(context, first.run, f"the work of {host.name} continues")
            check_nothing_started(context, began)
    recovered = time.monotonic()
    took = context.ledger.probe(recovered, MAX_WAIT_SECONDS)
    for workload, first, _ in jobs[1:]:
        check_survives(context, workload, first, " after the database was stopped")
        cancel(context, workload)
    again = context.ledger.wait_started(lost_workload, MAX_WAIT_SECONDS, attempt=lost_first.attempt + 1)
    if again.at < last_beat(context, lost_first.run):
        raise ConditionTimeout(
            "the work of the host that was cut off started elsewhere before it had stopped"
        )
    cancel(context, lost_workload)
    wait_until(lambda: site.alive() == len(site.hosts), MAX_WAIT_SECONDS, "every host is alive")
    return took


@fault("the edge hangs for most of a lease: all work continues", 60, under_load=False)
def hang_edge(context: FaultContext) -> float:
    site = context.site
    jobs = [start_heartbeat_job(context, host) for host in site.hosts]
    before = {host.name: last_sync(host) for host in site.hosts}
    with frozen([site.pid("edge")]):
        began = time.time()
        wait_until(
            lambda: time.time() > began + EDGE_HANG_SHARE * site.lease_seconds,
            MAX_WAIT_SECONDS,
            "the hang is over",
        )
    took = context.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)
    for host in site.hosts:
        wait_until(lambda host=host: last_sync(host) > before[host.name], MAX_WAIT_SECONDS, "it reports")  # type: ignore[misc]
    for workload, first, _ in jobs:
        check_survives(context, workload, first, " after the edge was stopped")
        cancel(context, workload)
    return took


def check_beats(context: FaultContext, run: str, what: str) -> None:
    """Check that a run writes to the ledger now. This needs no database."""
    since = time.time()
    wait_until(lambda: last_beat(context, run) > since, 5, what)


def check_nothing_started(context: FaultContext, since: float) -> None:
    """Check that no job has started since this time."""
    started = [entry.run for entry in context.ledger.entries() if entry.verb == "start" and entry.at > since]
    if started:
        raise ConditionTimeout(f"runs {started} started while the database was stopped")
