"""Test percentage splits: every part of a piece goes to one cost centre, and all parts sum to the whole."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from django.db import transaction
from django.db.models import Sum
from hypothesis import given
from hypothesis import strategies as st

from telemetry.audit.ledger_audit import audit_ledger
from telemetry.core.cost_shares import CostShare, cost_split, split_parts, split_text
from telemetry.cost_centres.splits import CostSplits, Payer
from telemetry.ledger.sums import sum_differences
from telemetry.models import Charge, CostCentreShare, SettledShare
from telemetry.money import transfers
from telemetry.money.charges import charge_all_gpus
from telemetry.money.shared_idle import assign_due_cents
from telemetry.money.transfers import moved_amounts
from telemetry.reads.chargeback import charges_by
from tests.documents import table_rows
from tests.seeds import first_cases
from tests.telemetry.rows import at, end_hold, hold, insert_copy, split, workload
from tests.telemetry.test_charges import assert_conserved
from tests.world import World, units_of

MARCH = dt.date(2026, 3, 1)
COST_CENTRES = ("CC-100", "CC-200")


@st.composite
def splits_of_100(draw: st.DrawFn) -> tuple[CostShare, ...]:
    """Return 1 to 8 shares in hundredths of a percent that sum to 100 %."""
    cuts = draw(st.sets(st.integers(1, 9_999), max_size=7))
    edges = [0, *sorted(cuts), 10_000]
    parts = [Decimal(high - low) / 100 for low, high in zip(edges, edges[1:], strict=False)]
    return cost_split([CostShare(f"CC-{index}", part) for index, part in enumerate(parts)])


@given(
    splits_of_100(),
    st.integers(1, 840 * 86_400),
    st.integers(0, 10**14),
    st.integers(0, 10**14),
)
def test_the_parts_of_any_split_sum_to_the_whole(
    shares: tuple[CostShare, ...], seconds: int, cost: int, charged: int
) -> None:
    whole_cost, whole_charged = Decimal(cost) / 10**6, Decimal(charged) / 10**6
    parts = split_parts(seconds, whole_cost, whole_charged, shares)
    assert [part.share for part in parts] == list(shares)
    assert sum(part.slot_seconds for part in parts) == seconds
    assert sum(part.cost for part in parts) == whole_cost
    assert sum(part.charged for part in parts) == whole_charged
    for part in parts:
        assert abs(part.slot_seconds - seconds * part.share.percent / 100) < 1
        assert abs(part.cost - whole_cost * part.share.percent / 100) < Decimal("0.000001")


def test_equal_remainders_go_to_the_lower_code() -> None:
    shares = cost_split([CostShare("CC-2", Decimal(50)), CostShare("CC-1", Decimal(50))])
    parts = split_parts(1, Decimal("0.000001"), Decimal("0.000003"), shares)
    assert [(part.share.code, part.slot_seconds, part.cost) for part in parts] == [
        ("CC-1", 1, Decimal("0.000001")),
        ("CC-2", 0, Decimal("0.000000")),
    ]
    assert [part.charged for part in parts] == [Decimal("0.000002"), Decimal("0.000001")]


def test_a_split_that_does_not_sum_to_100_percent_is_no_split() -> None:
    with pytest.raises(ValueError, match="allowed: exactly 100 %"):
        cost_split([CostShare("CC-1", Decimal("99.99"))])


def test_a_split_is_written_with_its_percents() -> None:
    shares = cost_split([CostShare("CC-2", Decimal("40.50")), CostShare("CC-1", Decimal("59.50"))])
    assert split_text(shares) == "CC-1 59.5 %, CC-2 40.5 %"
    assert split_text((CostShare("CC-1", Decimal(100)),)) == "CC-1"


def test_of_two_splits_with_one_date_the_newest_counts() -> None:
    rows = [
        CostCentreShare(project_id=1, code=code, percent=percent, valid_from=at(hour), created_at=at(created))
        for code, percent, hour, created in (
            ("CC-1", Decimal(100), 9, 9),
            ("CC-3", Decimal(40), 9, 11),
            ("CC-2", Decimal(60), 9, 11),
            ("CC-4", Decimal(100), 12, 8),
        )
    ]
    splits = CostSplits(rows)
    payer = Payer(project=1)
    assert splits.at(payer, at(8))[0].code == ""
    assert [share.code for share in splits.at(payer, at(9))] == ["CC-2", "CC-3"]
    assert [(period.start, period.end) for period in splits.periods(payer)] == [
        (at(9), at(12)),
        (at(12), None),
    ]


# -- charges ------------------------------------------------------------------------------------------------


@pytest.fixture
def held(rates: World) -> World:
    """One H100 that Vision's job holds on 2 March from 09:00 to 11:00, charged until 12:05."""
    unit = units_of(rates.hosts["alpha"])[0]
    hold(workload(rates, rates.vision), unit, at(9), at(11), end_code="finished")
    return rates


def standing() -> list[tuple[int, str, Decimal, Decimal]]:
    """Return (hour, cost centre, percent, charge) of the standing lines of Vision's job."""
    lines = Charge.objects.filter(bucket="used", reversal=False).exclude(corrections__reversal=True)
    return sorted((line.start.hour, line.cost_centre, line.share_percent, line.charged) for line in lines)


def assert_sound() -> None:
    assert_conserved()
    assert sum_differences(MARCH) == []
    assert [str(found) for found in audit_ledger(MARCH, at(12, day=3))] == []


@pytest.mark.django_db
def test_a_line_is_written_for_each_share(held: World) -> None:
    split(held.vision, at(9), CC_1="60", CC_2="40")
    charge_all_gpus(at(12, 5))
    assert standing() == [
        (9, "CC-1", Decimal(60), Decimal("2.880000")),
        (9, "CC-2", Decimal(40), Decimal("1.920000")),
    ]
    assert_sound()


@pytest.mark.django_db
def test_a_transfer_in_mid_month_rewrites_the_charged_time_from_its_date_on(held: World) -> None:
    charge_all_gpus(at(10, 5))
    charge_all_gpus(at(12, 5))
    before = Charge.objects.aggregate(total=Sum("charged"))["total"]
    split(held.vision, at(10), at(12, 6), CC_1="33.33", CC_2="33.33", CC_3="33.34")
    payer = Payer(project=held.vision.project.pk)
    [split_in_force] = [
        period.split
        for period in CostSplits(CostCentreShare.objects.all()).periods(payer)
        if len(period.split) == 3
    ]
    moved = {amount.code: amount.moved for amount in moved_amounts(payer, split_in_force, at(10))}
    assert moved == {
        "CC-100": Decimal("-2.40"),
        "CC-1": Decimal("0.80"),
        "CC-2": Decimal("0.80"),
        "CC-3": Decimal("0.80"),
    }
    assert charge_all_gpus(at(12, 7)).corrections == 1
    assert standing() == [
        (9, "CC-100", Decimal(100), Decimal("2.400000")),
        (10, "CC-1", Decimal("33.33"), Decimal("0.799920")),
        (10, "CC-2", Decimal("33.33"), Decimal("0.799920")),
        (10, "CC-3", Decimal("33.34"), Decimal("0.800160")),
    ]
    assert Charge.objects.aggregate(total=Sum("charged"))["total"] == before
    assert_sound()
    assert charge_all_gpus(at(12, 8)).corrections == 0
    assert SettledShare.objects.count() == CostCentreShare.objects.count()


@pytest.mark.django_db
def test_splits_that_make_no_line_wrong_are_settled_in_one_pass(
    held: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    split(held.vision, at(9), CC_1="60", CC_2="40")
    split(held.vision, at(10), CC_1="40", CC_2="60")
    split(held.language, at(9), CC_3="100")
    charge_all_gpus(at(12, 5))
    monkeypatch.setattr(transfers, "TRANSACTIONS_PER_RUN", 0)
    SettledShare.objects.all().delete()
    transfers.settle_cost_centres(at(12, 5))
    assert not CostCentreShare.objects.filter(settledshare=None).exists()
    # Vision has lines that a newer split makes wrong. They are left to the rewriting of lines.
    split(held.vision, at(9), created=at(12, 6), CC_4="100")
    split(held.language, at(9), created=at(12, 6), CC_5="100")
    transfers.settle_cost_centres(at(12, 7))
    assert {share.code for share in CostCentreShare.objects.filter(settledshare=None)} == {"CC-4"}


@pytest.mark.django_db
def test_a_split_that_replaces_a_split_equals_one_run_that_knows_all_facts(held: World) -> None:
    split(held.vision, at(9), CC_1="50", CC_2="50")
    charge_all_gpus(at(12, 5))
    split(held.vision, at(9), at(12, 6), CC_1="50", CC_2="30.01", CC_3="19.99")
    assert charge_all_gpus(at(12, 7)).corrections == 2
    corrected = standing()
    assert_sound()
    assert [(code, percent) for _, code, percent, _ in corrected] == [
        ("CC-1", Decimal(50)),
        ("CC-2", Decimal("30.01")),
        ("CC-3", Decimal("19.99")),
    ]
    assert sum(amount for *_, amount in corrected) == Decimal("4.800000")


@pytest.mark.django_db
def test_a_late_end_of_split_work_is_corrected_for_every_share(held: World) -> None:
    split(held.vision, at(9), CC_1="66.67", CC_2="33.33")
    unit = units_of(held.hosts["alpha"])[1]
    late = hold(workload(held, held.vision), unit, at(9))
    charge_all_gpus(at(12, 5))
    end_hold(late, at(11, 30), "killed_at_grace")
    assert charge_all_gpus(at(12, 6)).corrections > 0
    assert_sound()
    assert charge_all_gpus(at(12, 7)).corrections == 0


@pytest.mark.django_db
def test_a_share_of_a_short_time_may_have_no_slot_second(held: World) -> None:
    split(held.vision, at(9), CC_1="99.99", CC_2="0.01")
    unit = units_of(held.hosts["gamma"], "1g.5gb")[0]
    hold(workload(held, held.vision), unit, at(9), at(9, 0, 1), end_code="finished")
    charge_all_gpus(at(12, 5))
    assert Charge.objects.filter(slot_seconds=0, cost_centre="CC-2", cost=0).count() == 1
    assert_sound()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "field"),
    first_cases(
        2,
        [
            ({"cost_centre": "CC-3"}, "cost centre"),
            ({"cost_centre": "CC-1"}, "cost centre"),
            ({"share_percent": Decimal(41)}, "cost centre"),
            ({"charged": Decimal("1.93")}, "charged"),
            ({"slot_seconds": 1}, "slot-seconds"),
            ({"project_id": None}, "share"),
        ],
    ),
)
def test_the_audit_finds_a_changed_share(held: World, changes: dict[str, object], field: str) -> None:
    split(held.vision, at(9), CC_1="60", CC_2="40")
    charge_all_gpus(at(12, 5))
    line = Charge.objects.get(cost_centre="CC-2")
    values = {
        "reversal": True,
        "corrects_id": line.pk,
        "slots": -line.slots,
        "slot_seconds": -line.slot_seconds,
    }
    insert_copy(line, **values, cost=-line.cost, charged=-line.charged)
    insert_copy(line, corrects_id=line.pk, **changes)
    found = list(audit_ledger(MARCH, at(12, day=3)))
    assert field in {difference.field for difference in found}


@pytest.mark.django_db
def test_the_audit_finds_a_missing_share(held: World) -> None:
    split(held.vision, at(9), CC_1="50", CC_2="50")
    charge_all_gpus(at(12, 5))
    line = Charge.objects.get(cost_centre="CC-2")
    values = {
        "reversal": True,
        "corrects_id": line.pk,
        "slots": -line.slots,
        "slot_seconds": -line.slot_seconds,
    }
    insert_copy(line, **values, cost=-line.cost, charged=-line.charged)
    found = list(audit_ledger(MARCH, at(12, day=3)))
    assert ("share", "50 %", "100 %") in {(each.field, each.found, each.expected) for each in found}


def test_the_documented_transfer_moves_these_amounts(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    hold(workload(rates, rates.vision), unit, at(12, day=2), at(12, day=3), end_code="finished")
    rows = []
    for step, now in (("before", at(1, day=4)), ("after", at(2, day=4))):
        if step == "after":
            split(rates.vision, at(0, day=3), now, CC_200="100")
        charge_all_gpus(now)
        with transaction.atomic():
            assign_due_cents()
        table = charges_by("cost_centre", MARCH, project=rates.vision.project.pk)
        amounts = {group.key: group.charged for group in table.groups}
        rows.append([step, *(f"{amounts.get(code, Decimal(0)):.2f}" for code in COST_CENTRES)])
    assert table_rows("transfer") == rows
