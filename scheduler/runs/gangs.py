"""Coordinate gangs. A gang is a workload on several hosts, with one run on each host.

The runs are the members of the gang. They start and end together, and they share a rendezvous address.
"""

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

# The ports are below Linux's ephemeral ports, which begin at 32768. The port of a gang depends on the
# generation of its first run. Generations of live gangs on one host differ by less than RENDEZVOUS_PORTS, so
# each gang has its own port.
RENDEZVOUS_FIRST_PORT = 20_000
RENDEZVOUS_PORTS = 5_000  # the next port after each rendezvous port is for the gang's framework


def is_gang(workload: Workload) -> bool:
    """Return True if the workload runs on several hosts."""
    return workload.hosts > 1


def gang_placements(runs: Iterable[Run]) -> dict[int, GangWanted]:
    """Return the rank and the gang of each run, by run id. Runs of work on one host are left out.

    The function takes at most one query, if the caller has loaded ``runs`` with their workloads.
    """
    gangs = {(run.workload_id, run.attempt): run.workload for run in runs if is_gang(run.workload)}
    if not gangs:
        return {}
    members: dict[tuple[int, int], list[Run]] = defaultdict(list)
    rows = Run.objects.filter(workload__in={workload for workload, _ in gangs})
    for run in rows.select_related("host").order_by("rank"):
        members[run.workload_id, run.attempt].append(run)
    placements: dict[int, GangWanted] = {}
    for gang, workload in gangs.items():
        gang_runs = members[gang]
        addresses = [
            MemberWanted(run.host.name, host_address(run.host.hardware), workload.units) for run in gang_runs
        ]
        port = RENDEZVOUS_FIRST_PORT + 2 * (gang_runs[0].generation % RENDEZVOUS_PORTS)
        may_start = all_prepared(gang_runs)
        placements |= {run.pk: GangWanted(run.rank, addresses, port, may_start) for run in gang_runs}
    return placements


def host_address(hardware: dict[str, Any]) -> str:
    """Return the address of a host's workloads in the agent's report, or an empty string if unknown."""
    return str((hardware.get("reported") or {}).get("address") or "")


def all_prepared(members: Iterable[Run]) -> bool:
    """Return True if every member has reported that it is ready to start.

    A member that is already running counts as ready, because agents of old versions do not report this step.
    """
    return all(run.prepared_at is not None or run.state == RunState.RUNNING for run in members)


def release_gang(workload: Workload) -> None:
    """Nudge the hosts of a gang if all members are ready. The caller has locked the workload."""
    members = list(Run.objects.filter(workload=workload, attempt=workload.attempt))
    if all_prepared(members):
        nudge.hosts(run.host_id for run in members)


# A GPU failure can end a run. The host may report the failure up to this long after the end of the run.
GPU_FAULT_WINDOW = timedelta(minutes=1)
LOSS_CODES = (ReasonCode.GPU_ERROR, ReasonCode.HOST_LOST, ReasonCode.LEASE_LOST)


def first_failures(attempts: Collection[Sequence[Run]]) -> list[Run]:
    """Return, for each attempt, the ended run that explains why the attempt ended.

    In a gang, the members are ordered by these rules, and the first member is returned:

    1. Members that lost their host or a GPU come first. Others may have failed before the loss was reported.
    2. Members that saved a checkpoint come last. The gang has saved only if all its members have saved.
    3. Members without a stop command come before members with a stop command.
    4. Members that ended earlier come first.

    The function takes at most two queries, and no query for work on one host.
    """
    gang_runs = [run for runs in attempts if len(runs) > 1 for run in runs]
    lost = runs_that_lost_a_gpu(gang_runs)
    ordered_to_stop = commands.runs_ordered_to_stop(gang_runs)
    never = datetime.max.replace(tzinfo=UTC)

    def order(run: Run) -> tuple[bool, bool, bool, datetime, int]:
        by_loss = run.pk in lost or run.outcome in LOSS_CODES
        return (
            not by_loss,
            run.outcome == ReasonCode.CHECKPOINTED,
            run.pk in ordered_to_stop,
            run.ended_at or never,
            run.rank,
        )

    return [min(runs, key=order) for runs in attempts]


def runs_that_lost_a_gpu(runs: Sequence[Run]) -> set[int]:
    """Return the ids of the ``runs`` that lost a GPU. The function takes one query.

    A run has lost a GPU if the GPU was quarantined or taken out while the run held it, or at most
    GPU_FAULT_WINDOW after the run's end.
    """
    while_held = Q(run__ended_at__isnull=True) | Q(
        unit__gpu__state_changes__at__lte=F("run__ended_at") + GPU_FAULT_WINDOW
    )
    lost = Allocation.objects.filter(
        while_held,
        run__in=runs,
        unit__gpu__state_changes__repair_state__in=(RepairState.QUARANTINED, RepairState.OUT),
        unit__gpu__state_changes__at__gte=F("run__placed_at"),
    )
    return set(lost.values_list("run_id", flat=True))


def record_gang_end(workload: Workload, member: Run, code: str, *, restarts: bool, now: datetime) -> None:
    """Record which member explains the end of the gang's attempt, and whether the gang restarts."""
    numbers: dict[str, Any] = {"rank": member.rank, "host": member.host.name, "attempt": workload.attempt}
    if member.exit_code is not None:
        numbers["exit_code"] = member.exit_code
    if member.gpu_events:
        numbers["event"] = ", ".join(member.gpu_events)
    epoch = Leader.objects.values_list("epoch", flat=True).first() or 0
    kind = Decision.DecisionKind.RESTARTED if restarts else Decision.DecisionKind.ENDED
    Decision.objects.create(workload=workload, kind=kind, code=code, numbers=numbers, epoch=epoch, at=now)
