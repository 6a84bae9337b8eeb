"""Start work on a site, and count what was lost and what ran twice."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.fault_injection.host_faults import check_survives, start_heartbeat_job
from benchmarks.fault_injection.job_ledger import JobLedger, LedgerEntry
from benchmarks.fault_injection.process_faults import FaultContext
from benchmarks.harness.conditions import ConditionTimeout
from benchmarks.harness.installation import GPUS, Installation, LocalHost


@dataclass(frozen=True)
class RunningJob:
    """A job that writes to the ledger, its first start and its host."""

    workload: str
    first: LedgerEntry
    host: LocalHost


def context_of(site: Installation, seed: int = 1) -> FaultContext:
    """Return a context with a new ledger."""
    return FaultContext(site, JobLedger(site), random.Random(seed))


def fill_hosts(context: FaultContext) -> list[RunningJob]:
    """Start one job on each GPU."""
    return start_jobs(context, [host for host in context.site.hosts for _ in range(GPUS)])


def start_jobs(context: FaultContext, hosts: list[LocalHost]) -> list[RunningJob]:
    """Start one job on each of these hosts. A host that is named twice gets two."""
    return [RunningJob(*start_heartbeat_job(context, host)) for host in hosts]


def count_lost(context: FaultContext, jobs: list[RunningJob], when: str) -> int:
    """Return the number of jobs that do not continue in their first run, and print the reason of each."""
    lost = 0
    for job in jobs:
        try:
            check_survives(context, job.workload, job.first, when)
        except ConditionTimeout as problem:
            lost += 1
            print(f"  lost on {job.host.name}: {problem}", flush=True)
    return lost


def count_double(context: FaultContext) -> int:
    """Return the number of violations: a unit that two runs held, or a job that ran twice at once."""
    violations = context.ledger.violations_now()
    for violation in violations:
        print(f"  {violation}", flush=True)
    return len(violations)
