"""Admit waiting workloads to the queue. Refuse workloads that could not start even if every unit were free.

A unit is a whole GPU, a MIG slice or a share. The reasons for a refusal are:

- a gate: a closed budget, an unmet dependency or the limit of a job array;
- a waiting time (back-off) after a failed attempt;
- a reservation that has not begun, is over, or belongs to another team or project;
- hardware that the pool does not have;
- a cap on the runtime or on the slots of one workload;
- a missing quota, or a quota whose GPU-hours are used up.

A refused workload has no position in the queue.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.core.fit.feasibility import infeasible_reason
from scheduler.core.model.plan import Refusal
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import PoolKind, QueuedWorkload, QuotaInfo
from scheduler.core.model.waiting_queue import EquivalenceClass
from scheduler.core.reasons import Reason, ReasonCode, ReasonNumbers, reason_numbers


class EligibleWork(NamedTuple):
    """The workloads that are admitted to the queue in this cycle (one run of the planner).

    A class contains workloads that differ only in their times. ``individuals`` are in no class, for example
    because they run inside a reservation or had a back-off that is now over.
    """

    classes: list[EquivalenceClass]
    individuals: list[QueuedWorkload]

    @property
    def expected_unit_seconds(self) -> int:
        """Return the unit-seconds (units times predicted runtime) of all members of the classes."""
        return sum(group.unit_seconds for group in self.classes)


class AdmissionCheck:
    """The admission rules of one pool. The hardware check runs once for all workloads with equal asks."""

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self._impossible: dict[tuple[int, int], Reason | None] = {}

    def rejection(self, queued: QueuedWorkload) -> Refusal | None:
        """Return the refusal of a workload that could not start even if every unit were free.

        None means that the workload is admitted to the queue.
        """
        gate = self._gate(queued)
        if gate is not None:
            code, numbers, expected = gate
            return Refusal(queued.id, code, numbers, None, expected)
        impossible = self._over_runtime_cap(queued) or self._infeasibility(queued) or self._no_quota(queued)
        if impossible is not None:
            return Refusal(queued.id, *impossible)
        used_up = self._hours_used_up(queued)
        if used_up is None:
            return None
        # GPU-hours are counted once a minute. Just after the period's end, ``until`` may therefore be in the
        # past, but an expected start must be in the future.
        return Refusal(queued.id, *used_up, None, max(dict(used_up[1])["until"], self.state.now + 1))

    def _gate(self, queued: QueuedWorkload) -> tuple[str, ReasonNumbers, int | None] | None:
        """Return (code, numbers, expected start) if a gate, a back-off or the reservation prevents a start.

        The expected start is None if it is unknown. The result is None if none of these prevents a start.
        """
        now = self.state.now
        if queued.gate:
            return queued.gate, queued.gate_numbers, None
        if queued.not_before > now:
            return ReasonCode.BACKING_OFF, reason_numbers(until=queued.not_before), queued.not_before
        if queued.reservation is None:
            return None
        reservation = self.state.reservation_by_id.get(queued.reservation)
        if reservation is None or reservation.end <= now:
            return ReasonCode.RESERVATION_OVER, reason_numbers(reservation=queued.reservation), None
        if reservation.start > now:
            numbers = reason_numbers(reservation=reservation.id, start=reservation.start)
            return ReasonCode.RESERVATION_NOT_STARTED, numbers, reservation.start
        if reservation.team != queued.team or reservation.project != queued.project:
            numbers = reason_numbers(
                project=reservation.project, reservation=reservation.id, team=reservation.team
            )
            return ReasonCode.RESERVATION_NOT_YOURS, numbers, None
        return None

    def _over_runtime_cap(self, queued: QueuedWorkload) -> Reason | None:
        """Return the reason if the runtime limit is longer than the pool allows, otherwise None."""
        longest = self.state.policy.longest_runtime_seconds
        if queued.max_runtime_seconds <= longest:
            return None
        return ReasonCode.OVER_RUNTIME_CAP, reason_numbers(asked=queued.max_runtime_seconds, longest=longest)

    def _infeasibility(self, queued: QueuedWorkload) -> Reason | None:
        """Return the reason if the ask can never be served, otherwise None.

        Either the pool does not have the hardware, or the ask needs more slots than one workload may hold.
        """
        key = self.state.ask_number(queued.ask), queued.team if self.state.pool.kind is PoolKind.STATIC else 0
        if key not in self._impossible:
            infeasible = infeasible_reason(self.state, queued.ask, queued.team)
            self._impossible[key] = infeasible or self._over_workload_cap(queued)
        return self._impossible[key]

    def _over_workload_cap(self, queued: QueuedWorkload) -> Reason | None:
        """Return the reason if the ask needs more slots than one workload may hold, otherwise None."""
        cap = self.state.policy.max_slots_per_workload
        need = min(self.state.slots_needed(queued.ask, kind) for kind in self.state.kinds_for(queued.ask))
        return (
            None
            if cap is None or need <= cap
            else (ReasonCode.OVER_WORKLOAD_CAP, reason_numbers(cap=cap, need=need))
        )

    def _no_quota(self, queued: QueuedWorkload) -> Reason | None:
        """Return the reason if the team has no quota for any model that serves the ask, otherwise None."""
        state = self.state
        if state.pool.kind is PoolKind.STATIC or queued.reservation is not None:
            return None
        kinds = state.kinds_for(queued.ask)
        if any((queued.team, state.kinds[kind].model) in state.ledger.guaranteed for kind in kinds):
            return None
        models = sorted({state.kinds[kind].model for kind in kinds})
        return ReasonCode.NO_QUOTA, reason_numbers(models=models, pool=state.pool.id, team=queued.team)

    def _hours_used_up(self, queued: QueuedWorkload) -> Reason | None:
        """Return the reason if used-up GPU-hours prevent the start, otherwise None.

        A team's guarantee may cover only a number of GPU-hours per day, week or month. The start is prevented
        if these GPU-hours are used up for every model that the workload accepts, and if the workload may not
        borrow units of any of these models instead.
        """
        state, may_borrow = self.state, queued.preemptible and queued.may_borrow
        is_static = state.pool.kind is PoolKind.STATIC
        if not state.ledger.used_up or is_static or queued.reservation is not None:
            return None
        earliest = self._first_quota_to_reset(queued, may_borrow)
        if earliest is None:
            return None
        return ReasonCode.GPU_HOURS_USED_UP, reason_numbers(
            gpu_hours=earliest.gpu_hours,
            may_borrow=may_borrow,
            model=earliest.model,
            until=earliest.used_up_until,
        )

    def _first_quota_to_reset(self, queued: QueuedWorkload, may_borrow: bool) -> QuotaInfo | None:
        """Return the quota whose GPU-hours are reset first, among the models that the workload accepts.

        None means that the workload may still start on some accepted model, or that the team has no quota for
        any of them.
        """
        state, used_up = self.state, self.state.ledger.used_up
        team_models = [(queued.team, state.kinds[kind].model) for kind in state.kinds_for(queued.ask)]
        earliest: QuotaInfo | None = None
        for team_model in team_models:
            if team_model not in state.ledger.guaranteed:
                continue
            quota = used_up.get(team_model)
            if quota is None or (may_borrow and quota.borrow_limit != 0):
                return None
            if earliest is None or (quota.used_up_until or 0) < (earliest.used_up_until or 0):
                earliest = quota
        return earliest


def admit(state: PoolState, explain: bool) -> EligibleWork:
    """Return the workloads that could start if enough units were free.

    If ``explain`` is True, record the refusals of all other workloads.
    """
    check, queue = AdmissionCheck(state), state.pool_snapshot.queue
    classes, individuals = [], []
    for group in queue.groups.values():
        if check.rejection(group.first) is None:
            classes.append(group)
        elif explain:
            refusals = (check.rejection(queued) for _, _, queued in group.members)
            state.refusals += [refusal for refusal in refusals if refusal is not None]
    for workload in sorted(queue.individually_checked):
        refusal = check.rejection(queue.individually_checked[workload])
        if refusal is None:
            individuals.append(queue.individually_checked[workload])
        elif explain:
            state.refusals.append(refusal)
    return EligibleWork(classes, individuals)
