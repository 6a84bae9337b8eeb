"""Test who pays for the unused time of a dedicated (static) pool: the cost centre that the pool names."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from django.db import IntegrityError, transaction

from scheduler.models import Project, Team
from telemetry.ledger.new_charges import NewCharge, insert_charge_lines
from telemetry.models import Charge, ChargeBucketChoices, CostCentreShare, Statement
from telemetry.money import transfers
from telemetry.money.charges import charge_all_gpus
from telemetry.money.close_checks import close_checks
from tests.telemetry.rows import at, cost_centre, hold, pool_cost_centre, price, workload
from tests.telemetry.test_charges import assert_conserved
from tests.world import A100, H100, World, units_of

pytestmark = pytest.mark.django_db
CHARGED = (ChargeBucketChoices.USED, ChargeBucketChoices.RESERVED_UNUSED)


def payers(world: World) -> set[tuple[str, str, str, str]]:
    """Return (bucket, team, project, cost centre) of each line of the static pool."""
    lines = Charge.objects.filter(pool=world.static)
    return {(line.bucket, line.team_name, line.project_name, line.cost_centre) for line in lines}


def test_the_cost_centre_of_a_dedicated_pool_pays_for_its_unused_gpus(rates: World) -> None:
    charge_all_gpus(at(10, 5))
    assert payers(rates) == {("reserved_unused", "Vision", "", "CC-110")}
    lines = Charge.objects.filter(pool=rates.static)
    assert sum(line.charged for line in lines) == Decimal("4.40")
    assert {line.team_id for line in lines} == {rates.vision.team.pk}


def test_work_in_a_dedicated_pool_is_charged_to_its_project(rates: World) -> None:
    unit = units_of(rates.hosts["delta"])[0]
    work = workload(rates, rates.vision, pool=rates.static)
    hold(work, unit, at(9), at(10), end_code="finished")
    charge_all_gpus(at(10, 5))
    assert ("used", "Vision", rates.vision.project.name, "CC-100") in payers(rates)


def test_the_age_of_projects_does_not_decide_who_pays_for_a_dedicated_pool(rates: World) -> None:
    Project.objects.filter(pk=rates.vision.project.pk).update(created_at=at(0, day=1))
    older = Project.objects.create(
        team=rates.vision.team, slug="older", name="Older", created_at=at(0, day=1) - dt.timedelta(days=9)
    )
    CostCentreShare.objects.create(
        project=older, code="CC-1", valid_from=at(0, day=1), created_at=at(0, day=1)
    )
    charge_all_gpus(at(10, 5))
    assert payers(rates) == {("reserved_unused", "Vision", "", "CC-110")}


def test_a_later_cost_centre_of_a_dedicated_pool_pays_from_its_date_on(rates: World) -> None:
    pool_cost_centre(rates.static, "CC-111", at(0, day=3))
    charge_all_gpus(at(1, 5, day=3))
    lines = Charge.objects.filter(pool=rates.static)
    assert {(line.start.day, line.cost_centre) for line in lines} == {(2, "CC-110"), (3, "CC-111")}


def test_a_renamed_team_keeps_paying_for_its_dedicated_pool(rates: World) -> None:
    Team.objects.filter(pk=rates.vision.team.pk).update(name="Sight")
    charge_all_gpus(at(10, 5))
    assert payers(rates) == {("reserved_unused", "Sight", "", "CC-110")}


def test_the_close_names_a_dedicated_pool_without_a_cost_centre(world: World) -> None:
    for model in (H100, A100):
        price(model, "1", since=at(0, day=1))
    cost_centre(world.vision, "CC-100", at(0, day=1))
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.language), unit, at(9), at(10), end_code="finished")
    charge_all_gpus(at(10, 5))
    assert payers(world) == {("reserved_unused", "Vision", "", "")}
    assert unmapped(world) == {
        "unmapped projects": [f"{world.language.project.name} of Language"],
        "unmapped dedicated pools": [f"{world.static.name} of Vision"],
    }


def unmapped(world: World) -> dict[str, object]:
    """Return the figures of the check of cost centres, for March."""
    checks = {row["check"]: row for row in close_checks(at(0).date().replace(day=1))}
    return checks["every charged line has a cost centre"]["figures"]


@pytest.mark.long
def test_lines_without_a_cost_centre_are_corrected_when_one_is_set_for_their_time(world: World) -> None:
    for model in (H100, A100):
        price(model, "1", since=at(0, day=1))
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(10), end_code="finished")
    charge_all_gpus(at(10, 5))
    charge_all_gpus(at(11, 5))
    pool_cost_centre(world.static, "CC-110", at(10))
    cost_centre(world.vision, "CC-100", at(9))
    assert charge_all_gpus(at(11, 6)).corrections == 5  # 4 GPUs from 10:00, and the job's line
    assert_conserved()

    def standing() -> set[tuple[str, int, str]]:
        lines = Charge.objects.filter(bucket__in=CHARGED, reversal=False).exclude(corrections__reversal=True)
        return {(line.bucket, line.start.hour, line.cost_centre) for line in lines}

    assert standing() == {
        ("used", 9, "CC-100"),
        ("reserved_unused", 9, ""),
        ("reserved_unused", 10, "CC-110"),
    }
    assert unmapped(world) == {"unmapped dedicated pools": [f"{world.static.name} of Vision"]}
    assert charge_all_gpus(at(11, 7)).corrections == 0
    pool_cost_centre(world.static, "CC-109", at(0, day=1))
    assert charge_all_gpus(at(11, 8)).corrections == 4
    assert unmapped(world) == {}
    amounts = Charge.objects.filter(pool=world.static).values_list("charged", flat=True)
    assert sum(amounts) == Decimal(8)
    assert_conserved()


def test_only_one_of_two_concurrent_runs_corrects_the_same_lines(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in (H100, A100):
        price(model, "1", since=at(0, day=1))
    charge_all_gpus(at(10, 5))
    pool_cost_centre(world.static, "CC-110", at(0, day=1))
    lines = Charge.objects.filter(pool=world.static)
    real = transfers.reversal_of

    def reversal_of_two_runs(line: Charge, closed: set[dt.date], now: dt.datetime) -> NewCharge:
        if not lines.filter(reversal=True).exists():
            insert_charge_lines([real(line, closed, now)])  # the other run was faster
        return real(line, closed, now)

    before = lines.count()
    monkeypatch.setattr(transfers, "reversal_of", reversal_of_two_runs)
    assert transfers.settle_cost_centres(at(10, 6)) == 0
    assert lines.count() == before
    monkeypatch.undo()
    assert transfers.settle_cost_centres(at(10, 7)) == before


def test_lines_of_a_closed_month_get_no_cost_centre(world: World) -> None:
    for model in (H100, A100):
        price(model, "1", since=at(0, day=1))
    charge_all_gpus(at(11, 5))
    Statement.objects.filter(month=at(0).date().replace(day=1)).update(state="closing")
    pool_cost_centre(world.static, "CC-110", at(0, day=1))
    assert charge_all_gpus(at(11, 6)).corrections == 0


def test_a_cost_centre_belongs_to_a_project_or_to_a_pool(world: World) -> None:
    given = {"code": "CC-1", "valid_from": at(9), "created_at": at(9)}
    for payer in ({}, {"project": world.vision.project, "pool": world.static}):
        with pytest.raises(IntegrityError, match="of_a_project_or_of_a_pool"), transaction.atomic():
            CostCentreShare.objects.create(**given, **payer)
    CostCentreShare.objects.create(**given, pool=world.static)
    with (
        pytest.raises(IntegrityError, match="one_share_per_pool_split"),
        transaction.atomic(),
    ):
        CostCentreShare.objects.create(**given, pool=world.static)
