"""What keeps a workload from starting whatever is free: its gate, its back-off, its reservation's time, hardware that does
not exist, caps and a missing quota. Such work takes no place in the queue."""

from __future__ import annotations

from scheduler.core.fit.feasibility import infeasible_reason
from scheduler.core.model.plan import Refusal
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import PoolKind, QueuedWorkload, QuotaInfo
from scheduler.core.model.waiting_queue import EquivalenceClass
from scheduler.core.reasons import Reason, ReasonCode, ReasonNumbers, reason_numbers


class AdmissionCheck:
    """The turned away of one pool; equal asks are judged once."""

    def __init__(self, board: PoolState) -> None:
        self.board = board
        self._impossible: dict[tuple[int, int], Reason | None] = {}

    def turned_away(self, queued: QueuedWorkload) -> Refusal | None:
        """The refusal of what could not start whatever was free; None for what may stand in line."""
        gated = self._gate(queued)
        if gated is not None:
            code, why, expected = gated
            return Refusal(queued.id, code, why, None, expected)
        impossible = self._over_runtime_cap(queued) or self._infeasibility(queued) or self._no_quota(queued)
        if impossible is not None:
            return Refusal(queued.id, *impossible)
        used_up = self._hours_used_up(queued)
        if used_up is None:
            return None
        # They are counted once a minute, so the new period's count may be a little late.
        return Refusal(queued.id, *used_up, None, max(dict(used_up[1])["until"], self.board.now + 1))

    def _gate(self, queued: QueuedWorkload) -> tuple[str, ReasonNumbers, int | None] | None:
        now = self.board.now
        if queued.gate:
            return queued.gate, queued.gate_numbers, None
        if queued.not_before > now:
            return ReasonCode.BACKING_OFF, reason_numbers(until=queued.not_before), queued.not_before
        if queued.reservation is None:
            return None
        reservation = self.board.reservation_by_id.get(queued.reservation)
        if reservation is None or reservation.end <= now:
            return ReasonCode.RESERVATION_OVER, reason_numbers(reservation=queued.reservation), None
        if reservation.start > now:
            why = reason_numbers(reservation=reservation.id, start=reservation.start)
            return ReasonCode.RESERVATION_NOT_STARTED, why, reservation.start
        if reservation.team != queued.team or reservation.project != queued.project:
            why = reason_numbers(
                project=reservation.project, reservation=reservation.id, team=reservation.team
            )
            return ReasonCode.RESERVATION_NOT_YOURS, why, None
        return None

    def _over_runtime_cap(self, queued: QueuedWorkload) -> Reason | None:
        longest = self.board.policy.longest_runtime_seconds
        if queued.max_runtime_seconds <= longest:
            return None
        return ReasonCode.OVER_RUNTIME_CAP, reason_numbers(asked=queued.max_runtime_seconds, longest=longest)

    def _infeasibility(self, queued: QueuedWorkload) -> Reason | None:
        """No such hardware, too big for every host, or above the cap on one workload."""
        key = self.board.ask_number(queued.ask), queued.team if self.board.pool.kind is PoolKind.STATIC else 0
        if key not in self._impossible:
            never = infeasible_reason(self.board, queued.ask, queued.team)
            self._impossible[key] = never or self._over_workload_cap(queued)
        return self._impossible[key]

    def _over_workload_cap(self, queued: QueuedWorkload) -> Reason | None:
        cap = self.board.policy.most_slots_per_workload
        need = min(self.board.slots_needed(queued.ask, kind) for kind in self.board.kinds_for(queued.ask))
        return (
            None
            if cap is None or need <= cap
            else (ReasonCode.OVER_WORKLOAD_CAP, reason_numbers(cap=cap, need=need))
        )

    def _no_quota(self, queued: QueuedWorkload) -> Reason | None:
        board = self.board
        if board.pool.kind is PoolKind.STATIC or queued.reservation is not None:
            return None
        kinds = board.kinds_for(queued.ask)
        if any((queued.team, board.kinds[kind].model) in board.ledger.guaranteed for kind in kinds):
            return None
        models = sorted({board.kinds[kind].model for kind in kinds})
        return ReasonCode.NO_QUOTA, reason_numbers(models=models, pool=board.pool.id, team=queued.team)

    def _hours_used_up(self, queued: QueuedWorkload) -> Reason | None:
        """Nothing may start before the period is over: the GPU-hours of every model it accepts are used up, and it may not
        borrow instead."""
        board, may_borrow = self.board, queued.preemptible and queued.may_borrow
        used_up = board.ledger.used_up
        if not used_up or board.pool.kind is PoolKind.STATIC or queued.reservation is not None:
            return None
        claims = [(queued.team, board.kinds[kind].model) for kind in board.kinds_for(queued.ask)]
        first: QuotaInfo | None = None
        for claim in claims:
            if claim not in board.ledger.guaranteed:
                continue
            quota = used_up.get(claim)
            if quota is None or (may_borrow and quota.borrow_limit != 0):
                return None
            if first is None or (quota.used_up_until or 0) < (first.used_up_until or 0):
                first = quota
        if first is None:
            return None
        return ReasonCode.GPU_HOURS_USED_UP, reason_numbers(
            gpu_hours=first.gpu_hours, may_borrow=may_borrow, model=first.model, until=first.used_up_until
        )


def admit(board: PoolState, explain: bool) -> tuple[list[EquivalenceClass], list[QueuedWorkload]]:
    """Refuse what could not start whatever was free, aloud if ``explain``; the rest may stand in line: groups of equals,
    and what stands apart."""
    gates, queue = AdmissionCheck(board), board.facts.queue
    groups, singles = [], []
    for group in queue.groups.values():
        if gates.turned_away(group.first) is None:
            groups.append(group)
        elif explain:
            refusals = (gates.turned_away(queued) for _, _, queued in group.members)
            board.refusals += [refusal for refusal in refusals if refusal is not None]
    for workload in sorted(queue.individually_checked):
        refusal = gates.turned_away(queue.individually_checked[workload])
        if refusal is None:
            singles.append(queue.individually_checked[workload])
        elif explain:
            board.refusals.append(refusal)
    return groups, singles
