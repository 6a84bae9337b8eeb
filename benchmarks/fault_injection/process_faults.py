"""Register faults by their names, and define the faults that kill processes or empty Valkey.

A fault is an action with a pass condition.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.fault_injection.job_ledger import JobLedger, heartbeat_job
from benchmarks.harness.conditions import ConditionTimeout, rows, wait_until
from benchmarks.harness.installation import Installation, LocalHost
from benchmarks.harness.run_processes import shims

MAX_WAIT_SECONDS = 90.0  # longer than any allowed recovery; after this time the round fails


@dataclass
class FaultContext:
    """The objects that the action of a fault uses."""

    site: Installation
    ledger: JobLedger
    rng: random.Random


@dataclass(frozen=True)
class Fault:
    """A fault that `./run bench faults` can inject.

    ``do`` injects the fault, waits for the recovery and returns its duration in seconds. It raises
    ConditionTimeout if the pass condition does not hold.
    """

    name: str
    pass_condition: str
    seconds: float  # a round fails if the recovery takes longer
    do: Callable[[FaultContext], float]
    under_load: bool = True
    cheap: bool = False  # True: --short also injects this fault
    after: Callable[[FaultContext], None] | None = None  # called once after all rounds


FAULTS: dict[str, Fault] = {}


def fault(
    pass_condition: str,
    seconds: float,
    *,
    under_load: bool = True,
    cheap: bool = False,
    after: Callable[[FaultContext], None] | None = None,
) -> Callable[[Callable[[FaultContext], float]], Callable[[FaultContext], float]]:
    """Return a decorator that registers a function as a fault under the function's name."""

    def register(do: Callable[[FaultContext], float]) -> Callable[[FaultContext], float]:
        FAULTS[do.__name__] = Fault(do.__name__, pass_condition, seconds, do, under_load, cheap, after)
        return do

    return register


# -- killed processes ----------------------------------------------------------------------------

KILL_CONDITION = "SIGKILL: no unit held twice, no start lost or repeated"


@fault(KILL_CONDITION, 15)
def kill_web(context: FaultContext) -> float:
    return _kill(context, "web")


@fault(KILL_CONDITION, 15)
def kill_worker(context: FaultContext) -> float:
    return _kill(context, "worker")


@fault(KILL_CONDITION, 15, cheap=True)
def kill_engine(context: FaultContext) -> float:
    return _kill(context, "engine")


@fault(KILL_CONDITION, 15, cheap=True)
def kill_edge(context: FaultContext) -> float:
    return _kill(context, "edge")


def _kill(context: FaultContext, service: str) -> float:
    """Kill a service or one of its child processes. Return the seconds until the recovery."""
    pid = context.site.pid(service)
    victim = context.rng.choice([pid, pid, *children(pid)])
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    took = context.ledger.probe(began, MAX_WAIT_SECONDS)
    wait_until(
        lambda: context.site.alive() == len(context.site.hosts), MAX_WAIT_SECONDS, "every host is alive"
    )
    return took


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    pids: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            pids += [int(child) for child in file.read().split()]
    return pids


@fault(f"{KILL_CONDITION}; its workloads keep running and are adopted", 15, cheap=True)
def kill_agent(context: FaultContext) -> float:
    host = context.rng.choice(context.site.hosts)
    before = last_sync(host)
    os.kill(host.pid, signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: last_sync(host) > before, MAX_WAIT_SECONDS, f"{host.name} reports again")
    context.ledger.probe(began, MAX_WAIT_SECONDS)
    return time.monotonic() - began


@fault(f"{KILL_CONDITION}; its workload ends and starts again as another attempt", 15, cheap=True)
def kill_shim(context: FaultContext) -> float:
    workload = context.ledger.submit_with_retry(heartbeat_job(), MAX_WAIT_SECONDS, to_end_well=False)
    first = context.ledger.wait_started(workload, MAX_WAIT_SECONDS)
    wait_until(lambda: first.run in shims(context.site.folder), MAX_WAIT_SECONDS, "its shim runs")
    time.sleep(context.rng.uniform(0, 0.5))
    os.kill(shims(context.site.folder)[first.run], signal.SIGKILL)
    began = time.monotonic()
    context.ledger.wait_started(workload, MAX_WAIT_SECONDS, attempt=first.attempt + 1)
    took = time.monotonic() - began
    cancel(context, workload)
    return took


def last_sync(host: LocalHost) -> Any:
    """Return the time of the host's last sync."""
    from scheduler.models import Host

    return rows(lambda: Host.objects.get(name=host.name).last_sync_at)


def cancel(context: FaultContext, workload: str) -> None:
    """Cancel a workload as its owner. Retry while the API is unavailable."""
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        try:
            context.site.ask("POST", f"workloads/{workload}/cancel/", {})
            return
        except OSError as error:
            if getattr(error, "code", 0) == 409:
                return  # the workload has already ended
            if time.monotonic() > deadline:
                raise ConditionTimeout(f"a job is cancelled: {error}") from None
            time.sleep(0.1)


def end_remaining_jobs(context: FaultContext) -> None:
    """Cancel the jobs that a failed round left running, so that they do not affect the next round."""
    for workload in sorted(context.ledger.jobs_to_cancel):
        with contextlib.suppress(OSError):
            context.site.ask("POST", f"workloads/{workload}/cancel/", {})
    context.ledger.jobs_to_cancel.clear()


# -- stores --------------------------------------------------------------------------------------


@fault("PostgreSQL SIGKILL: available again in 2 s, no acknowledged request lost", 15)
def kill_postgres(context: FaultContext) -> float:
    os.kill(context.site.pid("postgres"), signal.SIGKILL)
    began = time.monotonic()
    _wait_for_database(context, began, 2.0)
    return context.ledger.probe(began, MAX_WAIT_SECONDS)


def _wait_for_database(context: FaultContext, began: float, seconds: float) -> None:
    """Wait until the API can read from the database again.

    Raises ConditionTimeout if this takes longer than ``seconds`` after ``began``.
    """

    def is_answering() -> bool:
        try:
            context.site.ask("GET", "jobs/?page_size=1", seconds=1.0)
        except OSError:
            return False
        return True

    wait_until(is_answering, MAX_WAIT_SECONDS, "the API reads the database again", every=0.02)
    took = time.monotonic() - began
    if took > seconds:
        raise ConditionTimeout(f"the database is available: not within {seconds:g} s, it took {took:.2f}")


@fault("Valkey SIGKILL: state restored from the database in 30 s", 30, cheap=True)
def kill_valkey(context: FaultContext) -> float:
    os.kill(context.site.pid("valkey"), signal.SIGKILL)
    return context.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)


@fault("Valkey FLUSHALL: state restored from the database in 30 s", 30)
def flush_valkey(context: FaultContext) -> float:
    import redis
    from django.conf import settings

    redis.Redis.from_url(settings.REDIS_URL).flushall()
    return context.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)
