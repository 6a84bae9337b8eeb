"""Read the closed budget gates and compute what they mean for a team's and a project's work."""

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
    """What closed budget gates mean for a workload: the ``gate`` and ``gate_numbers`` of ``snapshot.Queued``, and from when on (s) it
    may borrow again; None where it may now."""

    gate: str = ""
    gate_numbers: reasons.ReasonNumbers = ()
    borrows_again_from: int | None = None

    @property
    def may_borrow(self) -> bool:
        return self.borrows_again_from is None


def closed_budget_gates(now: datetime) -> ClosedGates:
    """The budget gates that are closed, by ("team" or "project", id) and action."""
    return gates_by_owner(BudgetGate.objects.filter(until__gt=now).order_by("pk"))


def gates_by_owner(gates: Iterable[BudgetGate]) -> ClosedGates:
    found: ClosedGates = defaultdict(dict)
    for gate in gates:
        whose = ("team", gate.team_id) if gate.team_id is not None else ("project", gate.project_id or 0)
        found[whose][gate.action] = gate
    return found


def budget_effect(gates: ClosedGates, team: int, project: int) -> BudgetEffect:
    """What the gates of a team and of its project say together."""
    both = gates.get(("team", team), {}), gates.get(("project", project), {})
    stopped = [
        of[BudgetGate.Action.STOP_BORROWING].until for of in both if BudgetGate.Action.STOP_BORROWING in of
    ]
    again = epoch_seconds(max(stopped)) if stopped else None
    refused = {**both[0], **both[1]}.get(BudgetGate.Action.REFUSE_NEW)
    if refused is None:
        return BudgetEffect(borrows_again_from=again)
    return BudgetEffect(str(ReasonCode.BUDGET_CLOSED), reason_numbers(refused.numbers), again)
