"""Read closed budget gates and compute their effect on the work of a team and a project.

Telemetry closes a budget gate when a budget is used up. A closed gate refuses new work or stops borrowing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from scheduler.core import reasons
from scheduler.core.reasons import ReasonCode
from scheduler.cycle.core_values import (
    epoch_seconds,
    reason_numbers,
)
from scheduler.models import BudgetGate

ClosedGates = dict[tuple[str, int], dict[str, BudgetGate]]


@dataclass(frozen=True, slots=True)
class BudgetEffect:
    """The effect of closed budget gates on a workload.

    ``gate`` is the reason code if new work is refused, otherwise empty. ``gate_numbers`` are the numbers of
    the reason. ``borrows_again_from`` is the time (seconds since the epoch) from which the workload may
    borrow again. It is None if no closed gate stops borrowing.
    """

    gate: str = ""
    gate_numbers: reasons.ReasonNumbers = ()
    borrows_again_from: int | None = None

    @property
    def may_borrow(self) -> bool:
        return self.borrows_again_from is None


def closed_budget_gates(now: datetime) -> ClosedGates:
    """Return the closed budget gates by owner and by action.

    An owner is a pair such as ("team", 7) or ("project", 12).
    """
    return gates_by_owner(BudgetGate.objects.filter(until__gt=now).order_by("pk"))


def gates_by_owner(gates: Iterable[BudgetGate]) -> ClosedGates:
    by_owner: ClosedGates = defaultdict(dict)
    for gate in gates:
        owner = ("team", gate.team_id) if gate.team_id is not None else ("project", gate.project_id or 0)
        by_owner[owner][gate.action] = gate
    return by_owner


def budget_effect(gates: ClosedGates, team: int, project: int) -> BudgetEffect:
    """Return the combined effect of the gates of a team and of its project."""
    both = gates.get(("team", team), {}), gates.get(("project", project), {})
    stopped = [
        of[BudgetGate.GateAction.STOP_BORROWING].until
        for of in both
        if BudgetGate.GateAction.STOP_BORROWING in of
    ]
    again = epoch_seconds(max(stopped)) if stopped else None
    refused = {**both[0], **both[1]}.get(BudgetGate.GateAction.REFUSE_NEW)
    if refused is None:
        return BudgetEffect(borrows_again_from=again)
    return BudgetEffect(str(ReasonCode.BUDGET_CLOSED), reason_numbers(refused.numbers), again)
