"""Create charges of two tenants with names and amounts that only the right people may see."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from portal.models import User
from telemetry.models import Adjustment, Budget, Charge, CostCentreStatement, Statement, UnusualSpend
from telemetry.money import statements
from telemetry.money.adjusting import adjustments
from telemetry.money.adjusting.adjustments import AdjustmentDraft
from telemetry.money.adjusting.credit_limits import line_of_charge
from telemetry.money.charges import charge_all_gpus
from tests.telemetry.rows import at, begin_charges_at, directory, hold, workload, write_rates
from tests.world import TeamOfWorld, World, units_of, world_fixture

MARCH, APRIL = dt.date(2026, 3, 1), dt.date(2026, 4, 1)
CLOSED_AT = dt.datetime(2026, 4, 2, tzinfo=dt.UTC)
NOW = dt.datetime(2026, 4, 3, tzinfo=dt.UTC)
MONTHS = ("2026-03", "2026-04")


@dataclass(frozen=True)
class Tenants:
    """The world, and the texts that each role may see in answers about money. All other texts are secret."""

    world: World
    people: dict[str, User]
    allowed: dict[str, frozenset[str]]

    def secrets_of(self, role: str) -> frozenset[str]:
        """Return the texts that the role must not see."""
        return frozenset().union(*self.allowed.values()) - self.allowed[role]


def write_tenants(world: World) -> Tenants:
    """Charge March and April to two teams, and close March. Each person has work in both months."""
    write_rates(world)
    begin_charges_at(world, at(0, day=31))
    directory("CC-100", "CC-110", "CC-200", "CC-300")
    units = iter(units_of(world.hosts["alpha"]))
    owners = {
        "opal": (world.vision, world.vision.member),
        "amber": (world.vision, world.vision.members[1]),
        "jade": (world.language, world.language.member),
    }
    for number, (name, (team, owner)) in enumerate(owners.items(), start=1):
        unit = next(units)
        for start in (at(3, day=31), dt.datetime(2026, 4, 2, 3, tzinfo=dt.UTC)):
            work = workload(world, team, owner=owner, name=f"{name}-run")
            hold(work, unit, start, start + dt.timedelta(seconds=1000 * number + 7), end_code="finished")
    charge_all_gpus(CLOSED_AT)
    _adjust(world, MARCH, CLOSED_AT)
    statements.close_month(month=MARCH, closed_by=world.finance, now=CLOSED_AT)
    charge_all_gpus(NOW)
    _adjust(world, APRIL, NOW)
    adjustments.propose(_draft(APRIL, "CC-100", "waiting-reason"), author=world.finance, now=NOW)
    for team in (world.vision, world.language):
        _find_unusual(team, f"{team.team.slug}-finding")
    for owner, amount in (
        ({"team": world.vision.team}, "4321.09"),
        ({"project": world.language.project}, "5432.10"),
        ({"cost_centre": "CC-200"}, "6543.21"),
    ):
        for month in (MARCH, APRIL):
            Budget.objects.create(month=month, amount=amount, **owner)
    people = {**world.people, "other lead": world.language.lead}
    return Tenants(world, people, _allowed())


tenants = world_fixture(write_tenants)


def _adjust(world: World, month: dt.date, now: dt.datetime) -> None:
    """Approve an adjustment of each team, and a credit of a charge line of the first member of vision."""
    drafts = [
        _draft(month, "CC-100", "vision-reason", team=world.vision.team.pk),
        _draft(month, "CC-200", "language-reason", team=world.language.team.pk),
    ]
    line = Charge.objects.filter(month=month, workload_name="opal-run", bucket="used").earliest("pk")
    drafts.append(
        _draft(
            month,
            line.cost_centre,
            "opal-reason",
            kind="credit",
            team=line.team_id,
            project=line.project_id,
            credited=Statement.objects.get(month=month),
            line=line_of_charge(line),
            charge=line,
        )
    )
    for draft in drafts:
        row = adjustments.propose(draft, author=world.finance, now=now)
        adjustments.approve(row, decided_by=world.auditor, now=now)


def _draft(month: dt.date, code: str, reason: str, kind: str = "adjustment", **also: Any) -> AdjustmentDraft:
    return AdjustmentDraft(month, kind, code, Decimal("-0.10"), reason, **also)


def _find_unusual(team: TeamOfWorld, subject: str) -> None:
    for month in (MARCH, APRIL):
        UnusualSpend.objects.create(
            statement=Statement.objects.get(month=month),
            kind="high_day",
            team=team.team,
            project=team.project,
            subject=subject,
            first_day=month,
            last_day=month,
            currency="EUR",
            amount=Decimal("412.80"),
            usual=Decimal("70.00"),
            figures={"project": team.project.name, "gpu_hours": 172.0, "curve": ["70.00", "412.80"]},
            found_at=NOW,
        )


def _allowed() -> dict[str, frozenset[str]]:
    """Return the visible texts of each role, such as names of work and amounts of charge lines."""
    of_person = {name: {f"{name}-run", *_amounts(name)} for name in ("opal", "amber", "jade")}
    vision_budget, language_budget = {"4321.09", "4,321.09"}, {"5432.10", "5,432.10"}
    centre_budget = {"6543.21", "6,543.21"}
    opal = of_person["opal"] | {"opal-reason"}
    vision = opal | of_person["amber"] | {"vision-reason", "vision-finding", *_numbers("CC-100")}
    language = of_person["jade"] | {"language-reason", "language-finding", *_numbers("CC-200")}
    everything = vision | language | {"waiting-reason"} | vision_budget | language_budget | centre_budget
    texts = {
        "finance": everything,
        "auditor": everything,
        "lead": vision | vision_budget,
        # FOCUS files name the invoice of each charge, also to people who do not see the statement.
        "member": opal | vision_budget | _numbers("CC-100"),
        "team mate": of_person["amber"] | vision_budget | _numbers("CC-100"),
        "other lead": language | language_budget,
        "other team": of_person["jade"] | language_budget | _numbers("CC-200"),
        "operator": vision_budget | language_budget,
        "stranger": set(),
    }
    return {role: frozenset(each) for role, each in texts.items()}


def _amounts(name: str) -> set[str]:
    lines = Charge.objects.filter(workload_name=f"{name}-run", charged__gt=0)
    return {f"{line.charged:.6f}" for line in lines}


def _numbers(code: str) -> set[str]:
    """Return the numbers of the statements of a cost centre."""
    return set(CostCentreStatement.objects.filter(cost_centre=code).values_list("number", flat=True))


def adjustment_numbers() -> list[str]:
    """Return the numbers of all adjustments, with the proposed one."""
    return list(Adjustment.objects.order_by("number").values_list("number", flat=True))
