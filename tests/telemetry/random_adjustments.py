"""Write random credits and adjustments, and decide all of them."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

from telemetry.core.currencies import smallest_unit
from telemetry.models import Adjustment, Charge, CostCentreShare, Statement, StatementLine
from telemetry.money.adjusting import adjustments
from telemetry.money.adjusting.adjustments import AdjustmentDraft
from telemetry.money.adjusting.credit_limits import COUNTED_OR_WAITING, line_of_charge, smallest_limit
from tests.world import World

MAX_CENTS = 5_000


class RandomAdjustments:
    """Random credits and adjustments on the statement of an open month. ``dice`` decides everything.

    Credits give back charges of ``credited``: of a cost centre, of a statement line or of a charge line.
    Finance proposes them. The auditor stands for the second person of finance.
    """

    def __init__(self, world: World, dice: random.Random, month: dt.date, credited: dt.date) -> None:
        self.world = world
        self.dice = dice
        self.month = month
        self.credited = Statement.objects.get(month=credited)
        self.unit = smallest_unit(self.credited.currency)

    def write(self, count: int, now: dt.datetime) -> None:
        """Propose ``count`` credits and adjustments. Approve most of them, and take a few back."""
        for _ in range(count):
            draft = self.dice.choice([self._adjustment, self._credit, self._credit])()
            if draft is None:
                continue
            row = adjustments.propose(draft, author=self.world.finance, now=now)
            if self.dice.random() < 0.2:
                adjustments.reject(row, decided_by=self.world.auditor, now=now, note="no")
                continue
            adjustments.approve(row, decided_by=self.world.auditor, now=now)
            if self.dice.random() < 0.3:
                back = adjustments.withdraw(row, withdrawn_by=self.world.finance, reason="wrong", now=now)
                adjustments.approve(back, decided_by=self.world.auditor, now=now)

    def _adjustment(self) -> AdjustmentDraft:
        team = self.dice.choice(self.world.teams)
        with_team, with_project = self.dice.choice([(False, False), (True, False), (True, True)])
        codes = sorted(set(CostCentreShare.objects.values_list("code", flat=True)))
        cents = self.dice.choice([-1, 1]) * self.dice.randint(1, MAX_CENTS)
        return self._draft(
            kind="adjustment",
            cost_centre=self.dice.choice(codes),
            amount=cents * self.unit,
            team=team.team.pk if with_team else None,
            project=team.project.pk if with_project else None,
        )

    def _credit(self) -> AdjustmentDraft | None:
        """Return a credit within all its limits; None if the chosen charges have nothing left to credit."""
        lines = self.credited.lines.filter(bucket__in=("used", "reserved_unused"), charged_cents__gt=0)
        line: StatementLine | None = self.dice.choice(list(lines.order_by("pk")) or [None])
        if line is None or line.currency != self.credited.currency:
            return None
        of_line: dict[str, Any] = {}
        subject = self.dice.choice(["statement", "line", "charge"])
        if subject == "line":
            of_line = {"line": line}
        elif subject == "charge":
            of_line = self._charge_of(line)
        owner = {"cost_centre": line.cost_centre, "credited": self.credited}
        wanted = Adjustment(kind="credit", currency=line.currency, **owner, **of_line)
        left = int(smallest_limit(wanted, COUNTED_OR_WAITING).left / self.unit)
        if left < 1:
            return None
        cents = self.dice.choice([left, self.dice.randint(1, min(left, MAX_CENTS))])
        return self._draft(
            kind="credit",
            amount=-cents * self.unit,
            team=line.team_id,
            project=line.project_id,
            **owner,
            **of_line,
        )

    def _charge_of(self, line: StatementLine) -> dict[str, Any]:
        """Return a charge line of a statement line that was not reversed; {} without one."""
        charges = Charge.objects.filter(
            month=self.credited.month,
            cost_centre=line.cost_centre,
            project=line.project_id,
            charged__gte=self.unit,
        ).exclude(corrections__reversal=True)
        for charge in charges.exclude(reversal=True).order_by("pk")[:50]:
            if line_of_charge(charge) == line:
                return {"line": line, "charge": charge}
        return {}

    def _draft(self, amount: Decimal, **columns: Any) -> AdjustmentDraft:
        return AdjustmentDraft(month=self.month, amount=amount, reason="random", **columns)
