"""Test by which weights idle time is divided: the guarantees of the month, or its charged use."""

from __future__ import annotations

import datetime as dt
import importlib
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from portal.services.approvals import decisions, submissions
from scheduler import services
from scheduler.models import GuaranteeChange, Pool, Quota, Team
from scheduler.services import removal
from telemetry.audit.sum_audit import audit_idle_shares
from telemetry.core.guarantees import GuaranteeStep, guaranteed_slot_seconds
from telemetry.models import StatementLine
from telemetry.money.charges import charge_all_gpus
from telemetry.money.idle_shares import load_idle_weights
from telemetry.money.shared_idle import idle_cost_by_team
from telemetry.money.statement_lines import statement_lines
from telemetry.money.statements import set_idle_payer
from tests.telemetry.rows import at, change_in_place, hold, workload
from tests.world import A100, H100, World, units_of

START, END = at(0, day=1), dt.datetime(2026, 4, 1, tzinfo=dt.UTC)
MARCH, APRIL = dt.date(2026, 3, 1), dt.date(2026, 4, 1)
MARCH_SECONDS = 31 * 86_400


# -- the sum of a guarantee over a period -------------------------------------------------------------------


@given(
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(-5, 45), st.integers(0, 9)), max_size=6),
    st.integers(0, 30),
    st.integers(1, 30),
)
def test_a_guarantee_is_summed_over_each_second_in_which_it_was_in_force(
    first: int, changes: list[tuple[int, int]], low: int, length: int
) -> None:
    second = dt.timedelta(seconds=1)
    changes = sorted(changes, key=lambda change: change[0])
    by_second = {}
    for moment in range(low, low + length):
        by_second[moment] = next((slots for at_, slots in reversed(changes) if at_ <= moment), first)
    levels = [first, *(slots for _, slots in changes)]
    steps = [
        GuaranteeStep(START + at_ * second, levels[index], slots)
        for index, (at_, slots) in enumerate(changes)
        if at_ > low
    ]
    present = levels[-1]
    start, end = START + low * second, START + (low + length) * second
    assert guaranteed_slot_seconds(present, steps, start, end) == sum(by_second.values())


# -- the weights of a month ---------------------------------------------------------------------------------

pytestmark = pytest.mark.django_db


def set_guarantee(world: World, team: Team, gpus: int, now: dt.datetime, model: str = H100) -> None:
    assert services.change_quota(
        team=team,
        pool=world.shared,
        model=model,
        guaranteed_slots=gpus * 840,
        borrow_limit_slots=None,
        now=now,
    )


def weights(world: World, month: dt.date = MARCH, model: str = H100) -> dict[str, float]:
    """Return the weight of each team in the shared pool, in GPUs over the whole month."""
    found = load_idle_weights(month, "guarantee").get((world.shared.pk, model), {})
    names = {team.team.pk: team.team.slug for team in world.teams}
    return {names[team]: round(weight / 840 / MARCH_SECONDS, 6) for team, weight in found.items()}


def test_a_guarantee_without_changes_counts_for_the_whole_month(world: World) -> None:
    assert weights(world) == {"vision": 8, "language": 4, "robotics": 2}


def test_a_guarantee_counts_for_the_seconds_of_the_month_in_which_it_was_in_force(world: World) -> None:
    set_guarantee(world, world.vision.team, 0, START + dt.timedelta(seconds=MARCH_SECONDS // 4))
    set_guarantee(world, world.language.team, 12, START + dt.timedelta(seconds=MARCH_SECONDS // 2))
    assert weights(world) == {"vision": 2, "language": 8, "robotics": 2}


def test_a_change_after_the_month_does_not_change_its_weights(world: World) -> None:
    set_guarantee(world, world.vision.team, 1, END)
    assert weights(world) == {"vision": 8, "language": 4, "robotics": 2}
    assert weights(world, APRIL)["vision"] == round(30 / 31, 6)


def test_a_new_quota_counts_from_its_creation(world: World) -> None:
    Quota.objects.filter(team=world.robotics.team, model=H100).delete()
    set_guarantee(world, world.robotics.team, 2, START + dt.timedelta(seconds=MARCH_SECONDS // 2))
    assert weights(world)["robotics"] == 1


def test_a_removed_team_counts_until_its_removal(world: World) -> None:
    removal.remove_team(world.robotics.team, now=START + dt.timedelta(seconds=MARCH_SECONDS // 2))
    assert weights(world)["robotics"] == 1
    assert "robotics" not in weights(world, APRIL)


def test_the_guarantees_of_a_removed_pool_end_with_it(world: World) -> None:
    empty = Pool.objects.create(slug="empty", name="Empty", kind="dynamic", created_at=START)
    Quota.objects.create(team=world.vision.team, pool=empty, model=A100, guaranteed_slots=0, updated_at=START)
    Quota.objects.create(
        team=world.language.team, pool=empty, model=A100, guaranteed_slots=840, updated_at=START
    )
    removal.remove_pool(empty, now=at(9))
    changes = GuaranteeChange.objects.filter(pool=empty)
    assert [(row.team_id, row.slots_before, row.slots_after, row.at) for row in changes] == [
        (world.language.team.pk, 840, 0, at(9))
    ]


def test_an_unchanged_guarantee_is_not_recorded(world: World) -> None:
    set_guarantee(world, world.vision.team, 8, at(9))
    assert not GuaranteeChange.objects.exists()


def test_recorded_changes_are_never_edited(world: World) -> None:
    set_guarantee(world, world.vision.team, 1, at(9))
    for edit in (GuaranteeChange.objects.all().delete, lambda: GuaranteeChange.objects.update(slots_after=9)):
        with pytest.raises(DatabaseError, match="only ever added"), transaction.atomic():
            edit()


def test_the_upgrade_finds_the_changes_that_were_approved_before(world: World) -> None:
    migration: Any = importlib.import_module("portal.migrations.0010_approved_guarantees")
    for hour, gpus, approved in ((9, 6, None), (10, 3, 5)):
        request = submissions.request_quota_change(
            actor=world.vision.lead,
            team=world.vision.team,
            pool=world.shared,
            model=H100,
            guaranteed_gpus=gpus,
            now=at(hour),
        )
        changes = None if approved is None else {"guaranteed_gpus": approved}
        decisions.approve_submission(
            actor=world.operator, submission=request, changes=changes, now=at(hour, 30)
        )

    def history() -> list[tuple[int, int, dt.datetime]]:
        rows = GuaranteeChange.objects.order_by("at", "pk")
        return [(row.slots_before // 840, row.slots_after // 840, row.at) for row in rows]

    recorded = history()
    assert recorded == [(8, 6, at(9, 30)), (6, 5, at(10, 30))]
    with connection.cursor() as cursor:
        cursor.execute(migration.APPROVED_CHANGES)
    # The migration adds each change that the services have recorded here.
    assert history() == sorted(recorded * 2, key=lambda change: change[2])


# -- the statement ------------------------------------------------------------------------------------------


def test_the_idle_cost_of_the_statement_follows_the_guarantees_of_its_month(rates: World) -> None:
    charge_all_gpus(at(21, 5))
    set_guarantee(rates, rates.robotics.team, 0, at(9, day=16))
    set_guarantee(rates, rates.vision.team, 0, at(9, day=16))
    assert set_idle_payer(MARCH, "guarantee")
    lines = [line for line in statement_lines(MARCH) if line.bucket == "unallocated"]
    h100 = {line.team: line.cost for line in lines if line.model == H100}
    assert set(h100) == {"Vision", "Language", "Robotics"}
    assert sum(h100.values()) == Decimal("2.40") * 16 * 12
    share = (15 * 24 + 9) / (31 * 24)
    whole = 8 * share + 4 + 2 * share
    assert float(h100["Vision"]) == pytest.approx(2.4 * 16 * 12 * 8 * share / whole, abs=0.01)


@pytest.mark.parametrize("payer", ["operator", "guarantee", "use"])
def test_the_audit_divides_idle_time_itself_and_finds_a_changed_share(rates: World, payer: str) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    hold(workload(rates, rates.vision), unit, at(9, 10), at(10, 40), end_code="finished")
    hold(workload(rates, rates.language), unit, at(11), at(11, 0, 7), end_code="finished")
    charge_all_gpus(at(12, 5))
    set_guarantee(rates, rates.robotics.team, 0, at(9, 0, 13, day=16))
    assert set_idle_payer(MARCH, payer)
    assert list(audit_idle_shares(MARCH)) == []
    shares = StatementLine.objects.filter(idle_share=True).order_by("pk")
    assert shares.exists() == (payer != "operator")
    if payer == "operator":
        change_in_place(StatementLine.objects.filter(bucket="unallocated").earliest("pk"), shared_out=True)
        assert {each.field for each in audit_idle_shares(MARCH)} == {"shared out"}
        return
    line = shares[0]
    cell = line.cells.earliest("pk")
    change_in_place(cell, cost=cell.cost + Decimal("0.000001"))
    [found] = audit_idle_shares(MARCH)
    assert (found.check, found.field) == ("idle share", "cost")
    assert f"team {line.team_id}" in found.subject
    assert Decimal(found.found) - Decimal(found.expected) == Decimal("0.000001")
    change_in_place(cell, cost=cell.cost - Decimal("0.000001"))
    change_in_place(line, cost_centre="CC-x")
    assert any("CC-x" in each.subject for each in audit_idle_shares(MARCH))


@pytest.mark.parametrize("payer", ["operator", "guarantee", "use"])
def test_the_preview_of_a_payer_equals_the_lines_of_its_statement(rates: World, payer: str) -> None:
    hold(
        workload(rates, rates.vision),
        units_of(rates.hosts["alpha"])[0],
        at(9, 10),
        at(10, 40),
        end_code="finished",
    )
    charge_all_gpus(at(12, 5))
    shares = idle_cost_by_team(MARCH, payer)
    assert set_idle_payer(MARCH, payer)
    lines = statement_lines(MARCH)
    assert sum(shares.values()) == sum(line.cost for line in lines if line.bucket == "unallocated")
    expected = {"operator": {""}, "guarantee": {"Vision", "Language", "Robotics"}, "use": {"", "Vision"}}
    assert set(shares) == expected[payer]
    assert idle_cost_by_team(MARCH, payer) == shares
