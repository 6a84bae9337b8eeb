"""Work on several hosts at once: its members begin together, know where they find each other, and end together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import F, Q

from agent.protocol import GangWanted, MemberWanted
from scheduler.core.reasons import ReasonCode
from scheduler.models import Allocation, Decision, Leader, Run, Workload
from scheduler.runs import commands
from scheduler.state import nudge
from scheduler.state.states import RepairState, RunState

# Below the ports that Linux gives out by itself (32768 on). Two gangs that live on one host are never so many claims apart.
RENDEZVOUS_FIRST_PORT = 20_000
RENDEZVOUS_PORTS = 5_000  # each has two: the rendezvous, and the next one for what it serves beside


def is_gang(workload: Workload) -> bool:
    """Does it run on several hosts?"""
    return workload.hosts > 1


def gang_placements(runs: Iterable[Run]) -> dict[int, GangWanted]:
    """By run: its place in its gang; runs of work on one host are left out. ``runs`` with their workload. One query at most."""
    gangs = {(run.workload_id, run.attempt): run.workload for run in runs if is_gang(run.workload)}
    if not gangs:
        return {}
    members: dict[tuple[int, int], list[Run]] = defaultdict(list)
    found = Run.objects.filter(workload__in={workload for workload, _ in gangs})
    for run in found.select_related("host").order_by("rank"):
        members[run.workload_id, run.attempt].append(run)
    answer: dict[int, GangWanted] = {}
    for gang, workload in gangs.items():
        mine = members[gang]
        told = [MemberWanted(run.host.name, host_address(run.host.hardware), workload.units) for run in mine]
        port = RENDEZVOUS_FIRST_PORT + 2 * (mine[0].generation % RENDEZVOUS_PORTS)
        go = all_prepared(mine)
        answer |= {run.pk: GangWanted(run.rank, told, port, go) for run in mine}
    return answer


def host_address(hardware: dict[str, Any]) -> str:
    """Where a host's workloads are reached, as its agent reported it; empty when they are not, or it did not say."""
    return str((hardware.get("reported") or {}).get("address") or "")


def all_prepared(members: Iterable[Run]) -> bool:
    """Has every member said that it could begin? One that runs already, by an agent that knows of no gangs, has."""
    return all(run.prepared_at is not None or run.state == RunState.RUNNING for run in members)


def release_gang(workload: Workload) -> None:
    """Tell the hosts at once when the last member is prepared. The workload is locked by the caller."""
    members = list(Run.objects.filter(workload=workload, attempt=workload.attempt))
    if all_prepared(members):
        nudge.hosts(run.host_id for run in members)


GPU_FAULT_WINDOW = timedelta(minutes=1)  # an event and the end that it brought are told one after the other
LOSS_CODES = (ReasonCode.GPU_ERROR, ReasonCode.HOST_LOST, ReasonCode.LEASE_LOST)


def first_failures(attempts: Collection[Sequence[Run]]) -> list[Run]:
    """Of each attempt, which of its ended runs says why it ended. Of a gang that is the one that lost its host or a GPU: the others
    may have failed of that, and before it was known. Else the first that went without having been told; and one that has saved only
    where no other says more, for the gang has saved when all its members have. Two queries at most, none for work on one host."""
    several = [run for runs in attempts if len(runs) > 1 for run in runs]
    lost = runs_that_lost_a_gpu(several)
    told = commands.runs_told_to_stop(several)
    last = datetime.max.replace(tzinfo=UTC)

    def order(run: Run) -> tuple[bool, bool, bool, datetime, int]:
        by_loss = run.pk in lost or run.outcome in LOSS_CODES
        return (
            not by_loss,
            run.outcome == ReasonCode.CHECKPOINTED,
            run.pk in told,
            run.ended_at or last,
            run.rank,
        )

    return [min(runs, key=order) for runs in attempts]


def runs_that_lost_a_gpu(runs: Sequence[Run]) -> set[int]:
    """Those of which a GPU was taken out while they held it, or as they ended. One query where there are any."""
    held = Q(run__ended_at__isnull=True) | Q(
        unit__gpu__state_changes__at__lte=F("run__ended_at") + GPU_FAULT_WINDOW
    )
    out = Allocation.objects.filter(
        held,
        run__in=runs,
        unit__gpu__state_changes__repair_state__in=(RepairState.QUARANTINED, RepairState.OUT),
        unit__gpu__state_changes__at__gte=F("run__placed_at"),
    )
    return set(out.values_list("run_id", flat=True))


def record_gang_end(workload: Workload, told: Run, code: str, *, restarts: bool, now: datetime) -> None:
    """Keep which member ended first, and what became of the gang for it."""
    numbers: dict[str, Any] = {"rank": told.rank, "host": told.host.name, "attempt": workload.attempt}
    if told.exit_code is not None:
        numbers["exit_code"] = told.exit_code
    if told.gpu_events:
        numbers["event"] = ", ".join(told.gpu_events)
    epoch = Leader.objects.values_list("epoch", flat=True).first() or 0
    kind = Decision.Kind.RESTARTED if restarts else Decision.Kind.ENDED
    Decision.objects.create(workload=workload, kind=kind, code=code, numbers=numbers, epoch=epoch, at=now)
