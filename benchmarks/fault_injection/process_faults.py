"""The faults, by name: what is done, and the line that has to be reached."""

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
from benchmarks.harness.installation import ConditionTimeout, Installation, LocalHost, rows, shims, wait_until

MAX_WAIT_SECONDS = 90.0  # longer than any pass line: then a round is given up


@dataclass
class FaultContext:
    """What a fault has at hand."""

    site: Installation
    ledger: JobLedger
    rng: random.Random


@dataclass(frozen=True)
class Fault:
    """``do`` breaks something and answers how long recovery took, in seconds; raises ConditionTimeout when there was none."""

    name: str
    line: str
    seconds: float  # the longest recovery that passes
    do: Callable[[FaultContext], float]
    under_load: bool = True
    cheap: bool = False  # is part of the short form
    after: Callable[[FaultContext], None] | None = None  # once, when all its rounds are over


FAULTS: dict[str, Fault] = {}


def fault(
    line: str,
    seconds: float,
    *,
    under_load: bool = True,
    cheap: bool = False,
    after: Callable[[FaultContext], None] | None = None,
) -> Callable[[Callable[[FaultContext], float]], Callable[[FaultContext], float]]:
    """Have a function in the table, by its name."""

    def note(do: Callable[[FaultContext], float]) -> Callable[[FaultContext], float]:
        FAULTS[do.__name__] = Fault(do.__name__, line, seconds, do, under_load, cheap, after)
        return do

    return note


# -- processes that are killed -------------------------------------------------------------------------------------------

KILL_CONDITION = "SIGKILL: no unit held twice, no start lost or doubled"


@fault(KILL_CONDITION, 15)
def kill_web(broken: FaultContext) -> float:
    return _kill(broken, "web")


@fault(KILL_CONDITION, 15)
def kill_worker(broken: FaultContext) -> float:
    return _kill(broken, "worker")


@fault(KILL_CONDITION, 15, cheap=True)
def kill_engine(broken: FaultContext) -> float:
    return _kill(broken, "engine")


@fault(KILL_CONDITION, 15, cheap=True)
def kill_edge(broken: FaultContext) -> float:
    return _kill(broken, "edge")


def _kill(broken: FaultContext, service: str) -> float:
    """The service, or one of its child processes."""
    pid = broken.site.pid(service)
    victim = broken.rng.choice([pid, pid, *children(pid)])
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    took = broken.ledger.probe(began, MAX_WAIT_SECONDS)
    wait_until(lambda: broken.site.alive() == len(broken.site.hosts), MAX_WAIT_SECONDS, "every host is alive")
    return took


def children(pid: int) -> list[int]:
    """Its child processes."""
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += [int(child) for child in file.read().split()]
    return found


@fault(f"{KILL_CONDITION}; its workloads go on and are taken over", 15, cheap=True)
def kill_agent(broken: FaultContext) -> float:
    host = broken.rng.choice(broken.site.hosts)
    before = last_sync(host)
    os.kill(host.pid, signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: last_sync(host) > before, MAX_WAIT_SECONDS, f"{host.name} speaks again")
    broken.ledger.probe(began, MAX_WAIT_SECONDS)
    return time.monotonic() - began


@fault(f"{KILL_CONDITION}; the workload ends with it and comes back as another attempt", 15, cheap=True)
def kill_shim(broken: FaultContext) -> float:
    workload = broken.ledger.insist(heartbeat_job(), MAX_WAIT_SECONDS, to_end_well=False)
    first = broken.ledger.wait_started(workload, MAX_WAIT_SECONDS)
    wait_until(lambda: first.run in shims(broken.site.folder), MAX_WAIT_SECONDS, "its shim is there")
    time.sleep(broken.rng.uniform(0, 0.5))
    os.kill(shims(broken.site.folder)[first.run], signal.SIGKILL)
    began = time.monotonic()
    broken.ledger.wait_started(workload, MAX_WAIT_SECONDS, attempt=first.attempt + 1)
    took = time.monotonic() - began
    cancel(broken, workload)
    return took


def last_sync(host: LocalHost) -> Any:
    from scheduler.models import Host

    return rows(lambda: Host.objects.get(name=host.name).last_sync_at)


def cancel(broken: FaultContext, workload: str) -> None:
    """As its owner would."""
    ends = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        try:
            broken.site.ask("POST", f"workloads/{workload}/cancel/", {})
            return
        except OSError as error:
            if getattr(error, "code", 0) == 409:
                return  # it has ended meanwhile
            if time.monotonic() > ends:
                raise ConditionTimeout(f"a job is cancelled: {error}") from None
            time.sleep(0.1)


def end_remaining_jobs(broken: FaultContext) -> None:
    """What a round that failed left running must not count against the next one."""
    for workload in sorted(broken.ledger.others):
        with contextlib.suppress(OSError):
            broken.site.ask("POST", f"workloads/{workload}/cancel/", {})
    broken.ledger.others.clear()


# -- stores --------------------------------------------------------------------------------------------------------------


@fault("PostgreSQL SIGKILL: back in 2 s, no acknowledged request lost", 15)
def kill_postgres(broken: FaultContext) -> float:
    os.kill(broken.site.pid("postgres"), signal.SIGKILL)
    began = time.monotonic()
    _answers(broken, began, 2.0)
    return broken.ledger.probe(began, MAX_WAIT_SECONDS)


def _answers(broken: FaultContext, began: float, seconds: float) -> None:
    """The API reads from the database again."""

    def asked() -> bool:
        try:
            broken.site.ask("GET", "jobs/?page_size=1", seconds=1.0)
        except OSError:
            return False
        return True

    wait_until(asked, MAX_WAIT_SECONDS, "the API reads the database again", every=0.02)
    took = time.monotonic() - began
    if took > seconds:
        raise ConditionTimeout(f"the database is back: not within {seconds:g} s, it took {took:.2f}")


@fault("Valkey SIGKILL: right again from the database in 30 s", 30, cheap=True)
def kill_valkey(broken: FaultContext) -> float:
    os.kill(broken.site.pid("valkey"), signal.SIGKILL)
    return broken.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)


@fault("Valkey FLUSHALL: right again from the database in 30 s", 30)
def flush_valkey(broken: FaultContext) -> float:
    import redis
    from django.conf import settings

    redis.Redis.from_url(settings.REDIS_URL).flushall()
    return broken.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)
