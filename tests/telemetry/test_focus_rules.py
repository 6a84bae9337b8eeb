"""Test that the rules for FOCUS files find each kind of wrong file."""

from __future__ import annotations

import csv
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from telemetry.exports.focus.check import FocusReport, check_focus, load_focus_file
from telemetry.exports.focus.columns import FocusColumn, FocusDataset, FocusType, column_names, focus_columns
from telemetry.exports.focus.rules import SUM_RULES, FocusRule, row_rules
from tests.seeds import first_cases

Row = dict[str, str]
COST, PERIOD, DETAIL = FocusDataset.COST_AND_USAGE, FocusDataset.BILLING_PERIOD, FocusDataset.INVOICE_DETAIL
START, END = "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"
NUMBER = "2026-03/CC-100/1"
SHARED = {
    "BillingPeriodStart": START,
    "BillingPeriodEnd": END,
    "InvoiceIssuerName": "Example",
    "BillingCurrency": "EUR",
    "BillingAccountId": "CC-100",
    "InvoiceId": NUMBER,
}
USAGE: Row = {
    **SHARED,
    "BilledCost": "2.400000",
    "ChargeCategory": "Usage",
    "ChargeDescription": "H100",
    "ChargeFrequency": "Usage-Based",
    "ChargePeriodStart": START,
    "ChargePeriodEnd": "2026-03-01T01:00:00Z",
    "ConsumedQuantity": "1.000000000",
    "ConsumedUnit": "GPU-Hours",
    "ContractedCost": "2.400000000000000",
    "ContractedUnitPrice": "2.400000",
    "EffectiveCost": "2.400000",
    "HostProviderName": "Example",
    "InvoiceDetailId": "line/1",
    "ListCost": "2.400000000000000",
    "ListUnitPrice": "2.400000",
    "PricingCategory": "Standard",
    "PricingQuantity": "1.000000000",
    "PricingUnit": "GPU-Hours",
    "ResourceId": "GPU-1",
    "ResourceType": "GPU",
    "ServiceCategory": "Compute",
    "ServiceName": "GPU pool",
    "ServiceProviderName": "Example",
    "ServiceSubcategory": "Other (Compute)",
    "SkuId": "H100",
    "SkuMeter": "GPU time",
    "SkuPriceDetails": '{"GpuCount": 1}',
    "SkuPriceId": "price/1",
    "SubAccountId": "project/1",
    "SubAccountName": "Imaging",
    "x_BillingMode": "chargeback",
    "x_Bucket": "used",
    "x_ChargeId": "1",
    "x_OwnerCost": "2.100000",
    "x_Scope": "all",
    "x_Simulated": "false",
}
ROUNDING: Row = {
    **{name: USAGE[name] for name in (*SHARED, "HostProviderName", "ServiceCategory", "ServiceName")},
    **{name: USAGE[name] for name in ("ServiceProviderName", "ServiceSubcategory", "x_Scope", "x_Simulated")},
    "x_BillingMode": "chargeback",
    **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), "0.000000"),
    "ChargeCategory": "Adjustment",
    "ChargeDescription": "rounding",
    "ChargeFrequency": "One-Time",
    "ChargePeriodStart": START,
    "ChargePeriodEnd": END,
    "InvoiceDetailId": "rounding",
    "x_Bucket": "rounding",
}
BILLING_PERIOD: Row = {
    **{name: SHARED[name] for name in ("BillingPeriodStart", "BillingPeriodEnd", "InvoiceIssuerName")},
    "BillingPeriodCreated": START,
    "BillingPeriodLastUpdated": END,
    "BillingPeriodStatus": "Closed",
}
LINE: Row = {
    **SHARED,
    "BilledCost": "2.40",
    "ChargeCategory": "Usage",
    "InvoiceDetailCreated": END,
    "InvoiceDetailGrain": '{"SkuId": "H100"}',
    "InvoiceDetailId": "line/1",
    "InvoiceDetailLastUpdated": END,
    "InvoiceIssueDate": END,
    "InvoiceIssueStatus": "Issued",
    "PaymentCurrency": "EUR",
    "PaymentTerms": "Net 30",
    "ReferenceInvoiceId": NUMBER,
}
ROUNDING_LINE: Row = {
    **LINE,
    "BilledCost": "0.00",
    "InvoiceDetailId": "rounding",
    "InvoiceDetailGrain": '{"x_Bucket": "rounding"}',
}
COLUMN_RULES = ("not null", "UTC time", "decimal", "JSON object", "no empty text", "allowed values")
Files = dict[FocusDataset, list[Row]]


def valid_files() -> Files:
    return {
        COST: [dict(USAGE), dict(ROUNDING)],
        PERIOD: [dict(BILLING_PERIOD)],
        DETAIL: [dict(LINE), dict(ROUNDING_LINE)],
    }


def check(folder: Path, rows: Files) -> FocusReport:
    return check_focus(write(folder, rows), {NUMBER: Decimal("2.40")}, with_cost=True)


def write(folder: Path, rows: Files) -> dict[FocusDataset, Path]:
    paths = {}
    for dataset, values in rows.items():
        names = column_names(focus_columns(dataset, with_cost=True))
        paths[dataset] = folder / f"{dataset.value}.csv"
        with paths[dataset].open("w", newline="") as file:
            file.write(",".join(names) + "\n")
            for row in values:
                assert set(row) <= set(names)
                file.write(",".join(cell(row.get(name)) for name in names) + "\n")
    return paths


def cell(value: str | None) -> str:
    """Return a CSV cell. None is an empty cell, and an empty text has quotes."""
    return "" if value is None else '"' + value.replace('"', '""') + '"'


def rules_of(dataset: FocusDataset) -> list[FocusRule]:
    return list(row_rules(dataset, "1.4", focus_columns(dataset, with_cost=True)))


def broken_by(folder: Path, rows: Files) -> set[str]:
    return {failure.rule for failure in check(folder, rows).failures}


def test_valid_files_break_no_rule(tmp_path: Path) -> None:
    report = check(tmp_path, valid_files())
    assert report.failures == ()
    assert report.rows == {COST: 2, PERIOD: 1, DETAIL: 2}


def changed(dataset: FocusDataset, column: str, value: str | None, row: int = 0) -> Files:
    rows = valid_files()
    if value is None:
        rows[dataset][row].pop(column, None)
    else:
        rows[dataset][row][column] = value
    return rows


def wrong_values(column: FocusColumn) -> dict[str, str | None]:
    """Return, for each rule of a column, a value that breaks it."""
    found: dict[str, str | None] = {}
    if not column.nullable:
        found["not null"] = None
    if column.type == FocusType.TIME:
        found["UTC time"] = "2026-13-01T00:00:00Z"
    elif column.is_decimal:
        found["decimal"] = "1,5"
    elif column.type == FocusType.JSON:
        found["JSON object"] = "[1]"
    else:
        found["no empty text"] = " "
    if column.allowed:
        found["allowed values"] = "Other value"
    return found


def test_a_wrong_value_in_any_column_breaks_a_rule_of_the_column(tmp_path: Path) -> None:
    rows, tried = valid_files(), set()
    for dataset in FocusDataset:
        for column in focus_columns(dataset, with_cost=True):
            for rule, value in wrong_values(column).items():
                tried.add((dataset, f"{column.name}: {rule}"))
                rows[dataset].append(changed(dataset, column.name, value)[dataset][0])
    assert tried <= {(failure.dataset, failure.rule) for failure in check(tmp_path, rows).failures}
    rules = {(each, rule.id) for each in FocusDataset for rule in rules_of(each)}
    assert {rule for rule in rules if rule[1].partition(": ")[2] in COLUMN_RULES} == tried


# For each rule outside COLUMN_RULES, a change that breaks it: dataset, row, column and value.
CHANGES: dict[str, tuple[FocusDataset, int, str, str | None]] = {
    "BillingCurrency: ISO 4217": (COST, 0, "BillingCurrency", "eur"),
    "BillingPeriodEnd: after its start": (COST, 0, "BillingPeriodEnd", START),
    "BillingPeriodLastUpdated: not before its creation": (
        PERIOD,
        0,
        "BillingPeriodLastUpdated",
        "2026-02-01T00:00:00Z",
    ),
    "BilledCost: 0 for time that is not charged": (COST, 0, "x_Bucket", "preempted"),
    "x_BillingMode: showback is on no invoice": (COST, 0, "x_BillingMode", "showback"),
    "ChargeCategory: Credit for credits": (COST, 1, "ChargeCategory", "Credit"),
    "CapacityReservationStatus: Unused for reserved time without work": (
        COST,
        0,
        "x_Bucket",
        "reserved_unused",
    ),
    "CapacityReservationStatus: null with CapacityReservationId": (
        COST,
        0,
        "CapacityReservationId",
        "pool/1",
    ),
    "ChargeClass: Correction only before the billing period": (COST, 0, "ChargeClass", "Correction"),
    "ChargePeriodEnd: after its start": (COST, 0, "ChargePeriodEnd", START),
    "ChargePeriodStart: in the billing period without ChargeClass Correction": (
        COST,
        0,
        "ChargePeriodStart",
        "2026-02-28T23:00:00Z",
    ),
    "ConsumedQuantity: null without Usage": (COST, 1, "ConsumedQuantity", "1.000000000"),
    "ConsumedQuantity: of Usage": (COST, 0, "ConsumedQuantity", None),
    "ConsumedUnit: null with ConsumedQuantity": (COST, 0, "ConsumedUnit", None),
    "ContractedCost: ContractedUnitPrice x PricingQuantity": (COST, 0, "ContractedCost", "2.500000"),
    "ContractedUnitPrice: not negative": (COST, 0, "ContractedUnitPrice", "-2.400000"),
    "ContractedUnitPrice: of Usage": (COST, 0, "ContractedUnitPrice", None),
    "EffectiveCost: BilledCost without Usage": (COST, 1, "EffectiveCost", "1.000000"),
    "InvoiceDetailId: null with InvoiceId": (COST, 0, "InvoiceDetailId", None),
    "InvoiceDetailLastUpdated: not before its creation": (DETAIL, 0, "InvoiceDetailLastUpdated", START),
    "InvoiceIssueDate: of issued invoices": (DETAIL, 0, "InvoiceIssueDate", None),
    "ListCost: ListUnitPrice x PricingQuantity": (COST, 0, "ListCost", "2.400001"),
    "ListUnitPrice: not negative": (COST, 0, "ListUnitPrice", "-2.400000"),
    "ListUnitPrice: of Usage": (COST, 0, "ListUnitPrice", None),
    "PricingCategory: of Usage": (COST, 0, "PricingCategory", None),
    "PricingQuantity: of Usage": (COST, 0, "PricingQuantity", None),
    "PricingUnit: null with PricingQuantity": (COST, 0, "PricingUnit", None),
    "ReferenceInvoiceId: the invoice itself without a correction": (DETAIL, 0, "ReferenceInvoiceId", "x"),
    "ResourceId: of Usage": (COST, 0, "ResourceId", None),
    "ResourceType: null with ResourceId": (COST, 0, "ResourceType", None),
    "SkuId: of Usage": (COST, 0, "SkuId", None),
    "SkuMeter: null with SkuId": (COST, 0, "SkuMeter", None),
    "SkuPriceDetails: null with SkuPriceId": (COST, 0, "SkuPriceDetails", None),
    "SkuPriceId: of Usage": (COST, 0, "SkuPriceId", None),
    "SubAccountName: null with SubAccountId": (COST, 0, "SubAccountName", None),
}


def test_each_rule_about_several_columns_finds_a_wrong_row(tmp_path: Path) -> None:
    rules = {rule.id: (each, rule) for each in FocusDataset for rule in rules_of(each)}
    assert {rule for rule in rules if rule.partition(": ")[2] not in COLUMN_RULES} == set(CHANGES)
    rows: Files = {dataset: [] for dataset in FocusDataset}
    places = {}
    for rule, (dataset, row, column, value) in CHANGES.items():
        places[rule] = len(rows[dataset])
        rows[dataset].append(changed(dataset, column, value, row)[dataset][row])
    with duckdb.connect(":memory:") as database:
        for dataset, path in write(tmp_path, rows).items():
            load_focus_file(database, dataset, path, column_names(focus_columns(dataset, with_cost=True)))
        for rule, place in places.items():
            query = f"SELECT rowid FROM {CHANGES[rule][0].value} WHERE {rules[rule][1].broken}"
            assert (place,) in database.execute(query).fetchall(), rule


def _repeat_charge(rows: Files) -> None:
    rows[COST].append(dict(rows[COST][0]))


def _second_rounding(rows: Files) -> None:
    rows[COST].append(dict(rows[COST][1]))


def _second_sku(rows: Files) -> None:
    rows[COST].append(rows[COST][0] | {"SkuId": "A100", "x_ChargeId": "2"})


def _other_amount(rows: Files) -> None:
    rows[COST][0]["BilledCost"] = "2.400001"


def _other_record(rows: Files) -> None:
    rows[DETAIL][0]["BilledCost"] = "2.41"


def _repeat_record(rows: Files) -> None:
    rows[DETAIL].append(dict(rows[DETAIL][1]))


def _unknown_record(rows: Files) -> None:
    rows[COST][0]["InvoiceDetailId"] = "line/9"


def _other_currency(rows: Files) -> None:
    for dataset in (COST, DETAIL):
        rows[dataset][1]["BillingCurrency"] = "USD"


def _other_period(rows: Files) -> None:
    rows[PERIOD][0]["InvoiceIssuerName"] = "Other"


@pytest.mark.parametrize(
    ("change", "rule"),
    first_cases(
        4,
        [
            (_repeat_charge, "x_ChargeId: once"),
            (_repeat_charge, "BilledCost: sum of an invoice in CostAndUsage is its total"),
            (_other_amount, "BilledCost: sum of an invoice in CostAndUsage is its total"),
            (_second_rounding, "ChargeCategory: one rounding per invoice"),
            (_second_sku, "SkuPriceId: one SkuId"),
            (_other_record, "BilledCost: sum of an invoice in InvoiceDetail is its total"),
            (_repeat_record, "InvoiceDetailId: once in an invoice"),
            (_repeat_record, "InvoiceDetailGrain: once in an invoice"),
            (_unknown_record, "InvoiceDetailId: of CostAndUsage in InvoiceDetail"),
            (_other_currency, "BillingCurrency: one per invoice in CostAndUsage"),
            (_other_currency, "BillingCurrency: one per invoice in InvoiceDetail"),
            (_other_period, "BillingPeriodStart: of the billing period"),
        ],
    ),
)
def test_a_wrong_sum_or_key_is_found(change: Callable[[Files], None], rule: str, tmp_path: Path) -> None:
    rows = valid_files()
    change(rows)
    assert rule in broken_by(tmp_path, rows)
    assert rule in {each.id for each in SUM_RULES}


def test_a_missing_invoice_is_found(tmp_path: Path) -> None:
    rows = valid_files()
    rows[COST].clear()
    assert "BilledCost: sum of an invoice in CostAndUsage is its total" in broken_by(tmp_path, rows)


def test_a_changed_order_of_columns_is_found(tmp_path: Path) -> None:
    names = column_names(focus_columns(PERIOD, with_cost=True))
    path = tmp_path / "file.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerow(reversed(names))
    report = check_focus({PERIOD: path}, {}, with_cost=True)
    assert [failure.rule for failure in report.failures] == ["columns: names and order"]
