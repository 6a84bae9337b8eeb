"""Test the directory of cost centres and the splits of projects and dedicated pools."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, User
from portal.reads.money.cost_centres import payer_rows, visible_payers
from portal.services.money.cost_centres import directory, splits
from scheduler.models import Pool, Team
from telemetry.models import CostCentre, CostCentreShare, Statement
from telemetry.money.statements import create_missing_statements
from tests.portal.rejections import rejected
from tests.seeds import first_cases
from tests.telemetry import rows
from tests.telemetry.rows import at
from tests.world import World

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
NOT_FINANCE = ("member", "lead", "operator", "auditor", "stranger")


@pytest.fixture(autouse=True)
def entries(world: World) -> list[CostCentre]:
    return rows.directory("CC-6", "CC-7", "CC-8", since=at(0, day=1))


def problem(verb: Any, **fields: Any) -> dict[str, str]:
    """Return the problems by field that the service finds."""
    with pytest.raises(Invalid) as refused:
        verb(**fields)
    return refused.value.fields


# -- the directory ------------------------------------------------------------------------------------------


def entry_fields(world: World, **other: Any) -> dict[str, Any]:
    return {"actor": world.finance, "code": "CC-4110", "now": world.now} | other


def test_finance_adds_a_cost_centre_with_name_address_and_purchase_order(world: World) -> None:
    given = {"name": "Imaging research", "postal_address": "Street 3\n10117 Berlin", "purchase_order": "PO-1"}
    row = directory.add_cost_centre(**entry_fields(world, **given))
    assert str(row) == "CC-4110 Imaging research"
    event = AuditEvent.objects.get(verb="add_cost_centre")
    assert event.after == {"code": "CC-4110", **given}


@pytest.mark.parametrize("code", ["", "-CC", "=1+1", "CC 1", "CC/1", "x" * 41, "CC-1\n", None, 7])
def test_a_code_is_letters_digits_dots_dashes_and_underscores(world: World, code: Any) -> None:
    found = problem(directory.add_cost_centre, **entry_fields(world, code=code))
    assert "allowed: 1 to 40 letters, digits, dots, dashes and underscores" in found["code"]


def test_a_code_exists_once(world: World) -> None:
    with rejected("code is CC-7; the directory has a cost centre with this code already"):
        directory.add_cost_centre(**entry_fields(world, code="CC-7"))


def test_a_name_that_looks_like_a_formula_is_text(world: World) -> None:
    assert directory.add_cost_centre(**entry_fields(world, name="=1+1")).name == "=1+1"


def test_an_entry_changes_but_keeps_its_code(world: World, entries: list[CostCentre]) -> None:
    changed = directory.change_cost_centre(
        actor=world.finance, centre=entries[0], now=world.now, name="Imaging", postal_address="Street 4"
    )
    assert (changed.name, changed.postal_address) == ("Imaging", "Street 4")
    event = AuditEvent.objects.get(verb="change_cost_centre")
    assert event.before == {"name": "", "postal_address": ""}
    with pytest.raises(DatabaseError, match="keeps its code"), transaction.atomic():
        CostCentre.objects.filter(pk=changed.pk).update(code="CC-9")
    with pytest.raises(DatabaseError, match="retired, not deleted"), transaction.atomic():
        CostCentre.objects.filter(pk=changed.pk).delete()


def test_a_cost_centre_is_retired_once_it_pays_for_nothing(world: World, entries: list[CostCentre]) -> None:
    fields: dict[str, Any] = {"actor": world.finance, "centre": entries[1], "now": world.now}
    splits.set_split(**split_fields(world, valid_from=at(0, day=1)))
    splits.set_split(**split_fields(world, [("CC-8", 100)], valid_from=at(0, day=20)))
    with rejected("CC-7 can't be retired from that time on: it still pays for vision-only"):
        directory.retire_cost_centre(**fields, retired_from=at(0, day=19))
    row = directory.retire_cost_centre(**fields, retired_from=at(0, day=20), why="merged")
    assert row.retired_from == at(0, day=20)
    assert AuditEvent.objects.get(verb="retire_cost_centre").why == "merged"
    found = problem(splits.set_split, **split_fields(world, valid_from=at(0, day=25)))
    assert "shares is 'CC-7', retired from 2026-03-20T00:00:00+00:00 on" in found["shares"]
    directory.retire_cost_centre(**fields, retired_from=None)
    splits.set_split(**split_fields(world, valid_from=at(0, day=25)))


@pytest.mark.parametrize("role", NOT_FINANCE)
def test_only_finance_changes_cost_centres(world: World, entries: list[CostCentre], role: str) -> None:
    actor = world.people[role]
    verbs: list[tuple[Any, dict[str, Any]]] = [
        (directory.add_cost_centre, {"code": "CC-1"}),
        (directory.change_cost_centre, {"centre": entries[0], "name": "x"}),
        (directory.retire_cost_centre, {"centre": entries[0], "retired_from": None}),
        (splits.set_split, split_fields(world)),
    ]
    for verb, fields in verbs:
        with pytest.raises(NotAllowed, match="Only finance"):
            verb(**{"now": world.now} | fields | {"actor": actor})


# -- splits -------------------------------------------------------------------------------------------------


def split_fields(world: World, shares: Any = (("CC-7", 100),), **other: Any) -> dict[str, Any]:
    fields = {"actor": world.finance, "pool": world.static, "shares": shares, "now": world.now}
    return fields | {"valid_from": world.now} | other


def test_finance_names_the_cost_centres_of_a_dedicated_pool(world: World) -> None:
    splits.set_split(**split_fields(world, [("CC-8", "33.34"), ("CC-7", "66.66")], why="agreed"))
    found = CostCentreShare.objects.order_by("code").values_list("code", "percent", "pool")
    assert list(found) == [
        ("CC-7", Decimal("66.66"), world.static.pk),
        ("CC-8", Decimal("33.34"), world.static.pk),
    ]
    event = AuditEvent.objects.get(verb="set_cost_centres")
    assert event.before == {"pool": "vision-only", "shares": ""}
    assert event.after["shares"] == "CC-7 66.66 %, CC-8 33.34 %"
    assert event.why == "agreed"
    CostCentre.objects.filter(code="CC-8").update(name="Imaging")
    shown = {row.name: row for row in payer_rows(world.vision.member, world.now)}
    assert shown[world.static.name].is_pool and shown[world.static.name].now is not None
    assert shown[world.static.name].now.text == "CC-7 66.66 %, CC-8 Imaging 33.34 %"


def test_a_shared_pool_has_no_cost_centre_of_its_own(world: World) -> None:
    found = problem(splits.set_split, **split_fields(world, pool=world.shared))
    assert found["pool"].startswith("pool is shared; allowed: a static pool.")


def test_a_split_is_set_for_exactly_one_project_or_pool(world: World) -> None:
    for other in ({"pool": None}, {"project": world.vision.project}):
        found = problem(splits.set_split, **split_fields(world, **other))
        assert found == {"project": "project and pool: give exactly one of the two."}


@pytest.mark.parametrize(
    ("shares", "message"),
    first_cases(
        4,
        [
            ([("CC-7", 50), ("CC-8", 49)], "shares sum to 99.00 %; allowed: exactly 100 %."),
            ([("CC-7", 60), ("CC-8", "60")], "shares sum to 120.00 %; allowed: exactly 100 %."),
            ([("CC-7", "99.999"), ("CC-8", "0.001")], "percent of CC-7 is '99.999'; allowed: more than 0"),
            ([("CC-7", 100), ("CC-8", 0)], "percent of CC-8 is 0; allowed: more than 0, up to 100"),
            ([("CC-7", 101)], "percent of CC-7 is 101; allowed:"),
            ([("CC-7", -1)], "percent of CC-7 is -1; allowed:"),
            ([("CC-7", "x")], "percent of CC-7 is 'x'; allowed:"),
            ([("CC-7", "NaN")], "percent of CC-7 is 'NaN'; allowed:"),
            ([("CC-7", 1e2)], "percent of CC-7 is 100.0; allowed:"),
            ([("CC-7", 50), ("CC-7", 50)], "shares: CC-7 is given 2 times; allowed: each cost centre once."),
            (
                [("CC-9", 100)],
                "shares is 'CC-9'; allowed: a cost centre of the directory, such as CC-6, CC-7, CC-8.",
            ),
            ([], "shares is empty; allowed: 1 to 20 cost centres with their percent."),
            ([("CC-7", 1)] * 21, "shares has 21 cost centres; allowed: 1 to 20."),
        ],
    ),
)
def test_a_split_that_is_not_100_percent_of_known_cost_centres_is_refused(
    world: World, shares: Any, message: str
) -> None:
    found = problem(splits.set_split, **split_fields(world, shares))
    assert found["shares"].startswith(message)
    assert not CostCentreShare.objects.exists()


def test_the_database_refuses_a_split_that_is_not_100_percent(world: World) -> None:
    with pytest.raises(DatabaseError, match="sum to 60.00, allowed: exactly 100"), transaction.atomic():
        rows.split(world.vision, at(9), CC_7="60")
        CostCentreShare.objects.all().exists()
        with transaction.get_connection().cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_a_second_split_from_the_same_time_replaces_the_first(world: World) -> None:
    splits.set_split(**split_fields(world))
    with rejected("shares: CC-7 pays for Vision only at that time already"):
        splits.set_split(**split_fields(world, now=world.now + HOUR))
    splits.set_split(**split_fields(world, [("CC-8", 100)], now=world.now + HOUR))
    [row] = [row for row in payer_rows(world.finance, world.now) if row.name == world.static.name]
    assert row.now is not None and row.now.text == "CC-8"


def test_a_split_may_begin_in_the_past_but_never_in_a_closed_month(world: World) -> None:
    create_missing_statements([date(2026, 2, 1)])
    Statement.objects.update(state="closing")
    Statement.objects.update(state="closed")
    found = problem(splits.set_split, **split_fields(world, valid_from=at(0, day=1) - HOUR))
    assert found["valid_from"] == (
        "valid_from is 2026-02-28T23:00:00+00:00; allowed: from 2026-03-01T00:00:00+00:00 on, because the "
        "months before it are closed."
    )
    splits.set_split(**split_fields(world, valid_from=at(0, day=1)))


def test_payers_without_a_cost_centre_come_first(world: World) -> None:
    splits.set_split(**split_fields(world, pool=None, project=world.vision.project))
    shown = payer_rows(world.finance, world.now)
    assert [row.now is None for row in shown] == sorted((row.now is None for row in shown), reverse=True)
    assert shown[-1].name == world.vision.project.name


def test_finance_can_give_a_cost_centre_to_a_removed_pool_or_project_that_has_none(
    world: World,
) -> None:
    Pool.with_removed.filter(pk=world.static.pk).update(removed_at=world.now)
    Team.with_removed.filter(pk=world.vision.team.pk).update(removed_at=world.now)

    def names(viewer: User) -> set[str]:
        return {payer.name for payer in visible_payers(viewer)}

    unmapped = {world.static.name, world.vision.project.name}
    assert unmapped <= names(world.finance)
    assert not unmapped & names(world.operator)
    for payer in ({"pool": world.static}, {"pool": None, "project": world.vision.project}):
        splits.set_split(**split_fields(world, **payer))
    assert not unmapped & names(world.finance)
