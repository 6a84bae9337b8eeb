"""Test the FOCUS files of a month: their rows, sums, bytes and scope."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from django.db.models import F, Value
from django.db.models.functions import Concat

from scheduler.models import Pool, Project, Team, Workload
from telemetry.exports import table_files
from telemetry.exports.export_model import ExportOptions, ExportScope
from telemetry.exports.focus import files
from telemetry.exports.focus.check import check_focus_month, datasets_of
from telemetry.exports.focus.columns import FocusDataset, FocusVersion, focus_columns
from telemetry.exports.focus.files import focus_csv, focus_parquet
from telemetry.models import Charge, ChargeCell, CostCentreStatement, Statement, StatementLine
from telemetry.money import statements
from telemetry.money.charges import charge_all_gpus
from telemetry.money.closing.cost_centre_statements import StatementTerms
from tests.telemetry.rows import at, end_hold, hold, price, reservation, workload
from tests.telemetry.test_statements import AFTER, APRIL, MARCH, busy_march, running_allocation
from tests.world import H100, World, units_of

__all__ = ["busy_march"]
pytestmark = [pytest.mark.django_db, pytest.mark.long]
COST, DETAIL = FocusDataset.COST_AND_USAGE, FocusDataset.INVOICE_DETAIL
OPTIONS = ExportOptions(currency="EUR", issuer="Example")
MAY = dt.datetime(2026, 5, 1, 2, tzinfo=dt.UTC)
VERSIONS: tuple[FocusVersion, ...] = ("1.4", "1.2")


def everything() -> ExportScope:
    return ExportScope("all", Charge.objects.all(), with_cost=True)


def close(world: World, month: dt.date = MARCH, now: dt.datetime = AFTER) -> Statement:
    terms = StatementTerms(issuer="Example", payment_days=30)
    return statements.close_month(month=month, closed_by=world.finance, now=now, terms=terms)


def read(
    dataset: FocusDataset = COST,
    month: dt.date = MARCH,
    scope: ExportScope | None = None,
    version: FocusVersion = "1.4",
) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    parts = focus_csv(dataset, month, scope or everything(), OPTIONS, version)
    return list(csv.DictReader(io.StringIO(b"".join(parts).decode())))


def read_parquet(dataset: FocusDataset, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file of March."""
    path = folder / "focus.parquet"
    path.write_bytes(b"".join(focus_parquet(dataset, MARCH, everything(), OPTIONS)))
    with duckdb.connect(":memory:") as database:
        found = database.execute(f"SELECT * FROM '{path}'")
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def billed(rows: Sequence[dict[str, str]]) -> Decimal:
    return sum((Decimal(row["BilledCost"]) for row in rows), Decimal(0))


@pytest.mark.parametrize(
    ("closed", "version"),
    [
        (True, "1.4"),
        (False, "1.2"),
        (True, "1.2"),
        (False, "1.4"),
    ],
)
def test_the_files_of_a_month_obey_every_rule(busy_march: World, version: FocusVersion, closed: bool) -> None:
    if closed:
        close(busy_march)
    report = check_focus_month(MARCH, everything(), OPTIONS, version)
    assert report.failures == ()
    assert set(report.rows) == set(datasets_of(version))
    owned = Charge.objects.filter(
        month=MARCH, bucket__in=("used", "reserved_unused", "preempted", "hardware_lost")
    )
    assert report.rows[COST] == owned.count() + CostCentreStatement.objects.count() + (0 if closed else 4)


def test_the_charges_of_each_invoice_sum_to_the_total_of_its_statement(busy_march: World) -> None:
    close(busy_march)
    totals = dict(CostCentreStatement.objects.values_list("number", "total"))
    assert len(totals) == 4
    for dataset in (COST, DETAIL):
        rows = read(dataset)
        assert {
            number: billed([row for row in rows if row["InvoiceId"] == number]) for number in totals
        } == totals
    rounding = [row for row in read() if row["x_Bucket"] == "rounding"]
    assert Counter(row["InvoiceId"] for row in rounding) == dict.fromkeys(totals, 1)
    assert any(Decimal(row["BilledCost"]) for row in rounding)
    assert {row["ChargeCategory"] for row in rounding} == {"Adjustment"}


def test_each_charge_line_is_one_row_with_six_decimals(busy_march: World) -> None:
    rows = {row["x_ChargeId"]: row for row in read() if row["x_ChargeId"]}
    for charge in Charge.objects.filter(month=MARCH):
        if charge.bucket in ("unallocated", "unhealthy", "maintenance"):
            assert str(charge.pk) not in rows
        else:
            row = rows[str(charge.pk)]
            assert row["BilledCost"] == row["EffectiveCost"] == f"{charge.charged:.6f}"
            assert row["x_OwnerCost"] == f"{charge.cost:.6f}"
            assert row["ChargePeriodStart"] == f"{charge.start:%Y-%m-%dT%H:%M:%SZ}"


def test_reserved_time_without_work_is_unused_capacity(busy_march: World) -> None:
    rows = [row for row in read() if row["CapacityReservationId"].startswith("reservation/")]
    states = {(row["x_Bucket"], row["CapacityReservationStatus"]) for row in rows}
    assert states == {("used", "Used"), ("reserved_unused", "Unused")}
    pool = [row for row in read() if row["CapacityReservationId"].startswith("pool/")]
    assert {(row["x_Bucket"], row["CapacityReservationStatus"]) for row in pool} == {
        ("reserved_unused", "Unused")
    }
    assert {row["ConsumedQuantity"] for row in pool} == {"0.000000000"}


def test_a_no_show_is_unused_capacity(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    booked = reservation(rates, rates.vision, [unit], at(10), at(12))
    booked.state = "no_show"
    booked.save(update_fields=["state"])
    charge_all_gpus(at(13, 5))
    rows = [row for row in read() if row["CapacityReservationId"] == f"reservation/{booked.pk}"]
    assert {row["CapacityReservationStatus"] for row in rows} == {"Unused"}
    assert billed(rows) == Decimal("4.80")


def test_a_correction_of_a_closed_month_names_its_month_and_its_invoice(busy_march: World) -> None:
    open_end = running_allocation()
    close(busy_march)
    end_hold(open_end, at(22, day=31), "finished")
    charge_all_gpus(AFTER + dt.timedelta(hours=3))
    rows = read(month=APRIL)
    late = [row for row in rows if row["ChargeClass"] == "Correction"]
    assert late
    assert {row["x_CorrectedMonth"] for row in late} == {"2026-03"}
    assert all(row["ChargePeriodStart"] < row["BillingPeriodStart"] for row in late)
    assert billed(late) == Decimal("-5.999998")
    assert check_focus_month(APRIL, everything(), OPTIONS).failures == ()
    charge_all_gpus(MAY + dt.timedelta(minutes=5))
    close(busy_march, APRIL, MAY + dt.timedelta(minutes=5))
    references = {row["ReferenceInvoiceId"] for row in read(DETAIL, APRIL) if row["x_CorrectedMonth"]}
    corrected = {line.cost_centre for line in StatementLine.objects.filter(corrected_month=MARCH)} - {""}
    assert references == {f"2026-03/{code}/1" for code in corrected}


def all_files(month: dt.date = MARCH) -> dict[str, bytes]:
    """Return the bytes of every file of a month."""
    made = {}
    for version in VERSIONS:
        for dataset in datasets_of(version):
            for write in (focus_csv, focus_parquet):
                parts = write(
                    dataset, month, everything(), ExportOptions(currency="USD", issuer="New"), version
                )
                made[f"{write.__name__} {dataset} {version}"] = b"".join(parts)
    return made


def test_the_files_of_a_closed_month_stay_the_same_byte_for_byte(busy_march: World) -> None:
    world = busy_march
    open_end = running_allocation()
    close(world)
    before = all_files()
    assert len(before) == 8

    for model in (Team, Project, Pool, Workload):
        model.objects.update(name=Concat(F("name"), Value(" renamed")))  # type: ignore[attr-defined]
    price(H100, "99", since=AFTER + dt.timedelta(hours=2))
    end_hold(open_end, at(22, day=31), "finished")
    charge_all_gpus(AFTER + dt.timedelta(hours=3))

    after = all_files()
    assert [name for name in before if before[name] != after[name]] == []


def test_names_that_look_like_formulas_are_text_in_csv_and_unchanged_in_parquet(
    rates: World, tmp_path: Path
) -> None:
    name = '=1+1,"x"\n%s 😀'
    Team.objects.filter(pk=rates.vision.team.pk).update(name=name)
    work = workload(rates, rates.vision, name="@sum")
    hold(work, units_of(rates.hosts["alpha"])[0], at(9), at(10), end_code="finished")
    charge_all_gpus(at(12, 5))
    rows = [row for row in read() if row["x_Bucket"] == "used"]
    assert {(row["x_TeamName"], row["x_WorkloadName"]) for row in rows} == {(f"'{name}", "'@sum")}
    rows = [row for row in read_parquet(COST, tmp_path) if row["x_Bucket"] == "used"]
    assert {(row["x_TeamName"], row["x_WorkloadName"]) for row in rows} == {(name, "@sum")}


def test_parquet_has_the_same_rows_with_types(busy_march: World, tmp_path: Path) -> None:
    for dataset in FocusDataset:
        text, typed = read(dataset), read_parquet(dataset, tmp_path)
        assert len(text) == len(typed)
        for left, right in zip(text, typed, strict=True):
            for column in focus_columns(dataset, with_cost=True):
                value = right[column.name]
                if column.is_decimal and value is not None:
                    assert Decimal(left[column.name]) == value
                elif isinstance(value, dt.datetime):
                    assert left[column.name] == f"{value:%Y-%m-%dT%H:%M:%SZ}"
                elif isinstance(value, bool):
                    assert left[column.name] == str(value).lower()
                else:
                    assert left[column.name] == (value or "")


def test_a_lead_gets_the_team_without_costs_and_without_rounding(busy_march: World) -> None:
    team = busy_march.vision.team
    scope = ExportScope(
        "led_teams", Charge.objects.filter(team=team), ChargeCell.objects.filter(line__team=team), {}, False
    )
    rows = read(scope=scope)
    assert {row["x_TeamName"] for row in rows} == {team.name}
    assert {row["x_Scope"] for row in rows} == {"led_teams"}
    assert "x_OwnerCost" not in rows[0]
    assert "rounding" not in {row["x_Bucket"] for row in rows}
    expected = sum(line.charged for line in Charge.objects.filter(team=team, month=MARCH))
    assert billed(rows) == expected
    with pytest.raises(ValueError, match="InvoiceDetail"):
        read(DETAIL, scope=scope)


def test_filters_limit_the_rows(busy_march: World) -> None:
    team = busy_march.language.team
    scope = ExportScope("all", Charge.objects.all(), None, {"team": team.pk, "bucket": "used"}, True)
    rows = read(scope=scope)
    assert {(row["x_TeamName"], row["x_Bucket"]) for row in rows} == {(team.name, "used")}


def test_teams_that_pay_idle_time_get_adjustments(busy_march: World) -> None:
    assert statements.set_idle_payer(MARCH, "guarantee")
    close(busy_march)
    idle = [row for row in read() if row["x_Bucket"] == "unallocated"]
    lines = StatementLine.objects.filter(statement__month=MARCH, idle_share=True)
    assert billed(idle) == sum(line.charged for line in lines) > 0
    assert {row["ChargeCategory"] for row in idle} == {"Adjustment"}
    assert check_focus_month(MARCH, everything(), OPTIONS).failures == ()


def test_the_size_of_the_queries_does_not_change_the_file(
    busy_march: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts() -> Iterator[bytes]:
        return focus_csv(COST, MARCH, everything(), OPTIONS)

    whole = b"".join(parts())
    monkeypatch.setattr(files, "IDS_PER_QUERY", 7)
    monkeypatch.setattr(table_files, "PART_BYTES", 1_000)
    small = list(parts())
    assert b"".join(small) == whole
    assert len(small) > 10


def test_a_month_without_charges_has_a_header_only() -> None:
    month = dt.date(2031, 1, 1)
    assert read(month=month) == read(DETAIL, month) == []
    assert read(FocusDataset.BILLING_PERIOD, month)[0]["BillingPeriodStatus"] == "Open"
