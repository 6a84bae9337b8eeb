"""State the rules of FOCUS for the exported datasets as SQL conditions that DuckDB evaluates.

Each file is a table with the name of its dataset and text columns; null is an empty cell. The rules of
columns come from ``columns``. The others follow the section of the specification that their id names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from telemetry.exports.focus.columns import (
    PARQUET_TYPES,
    FocusColumn,
    FocusDataset,
    FocusType,
    FocusVersion,
)

_TIME = "'^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$'"
_DECIMAL = "'^-?[0-9]+[.][0-9]+$'"
_BOTH: tuple[FocusVersion, ...] = ("1.4", "1.2")
_NEW: tuple[FocusVersion, ...] = ("1.4",)


@dataclass(frozen=True)
class FocusRule:
    """A rule for the rows of a dataset. ``broken`` is the SQL condition of the rows that break it."""

    id: str
    broken: str


@dataclass(frozen=True)
class FocusSumRule:
    """A rule about sums and keys. ``query`` selects one row with a key for each violation."""

    id: str
    query: str
    datasets: frozenset[FocusDataset]


def row_rules(
    dataset: FocusDataset, version: FocusVersion, columns: Sequence[FocusColumn]
) -> Iterator[FocusRule]:
    """Yield the rules for single rows of a dataset whose file has these columns."""
    for column in columns:
        yield from _column_rules(column)
        if column.name == "x_BillingMode":
            yield _SHOWBACK_RULE
    yield from (rule for rule, versions in _ROW_RULES[dataset] if version in versions)


def _column_rules(column: FocusColumn) -> Iterator[FocusRule]:
    cell = f'"{column.name}"'
    if not column.nullable:
        yield FocusRule(f"{column.name}: not null", f"{cell} IS NULL")
    if column.type == FocusType.TIME:
        wrong = f"NOT regexp_full_match({cell}, {_TIME}) OR TRY_CAST({cell} AS TIMESTAMP) IS NULL"
        yield FocusRule(f"{column.name}: UTC time", f"{cell} IS NOT NULL AND ({wrong})")
    elif column.is_decimal:
        too_long = f"TRY_CAST({cell} AS {PARQUET_TYPES[column.type]}) IS NULL"
        wrong = f"NOT regexp_full_match({cell}, {_DECIMAL}) OR {too_long}"
        yield FocusRule(f"{column.name}: decimal", f"{cell} IS NOT NULL AND ({wrong})")
    elif column.type == FocusType.JSON:
        yield FocusRule(
            f"{column.name}: JSON object",
            f"coalesce(json_type({_json(cell)}) <> 'OBJECT', {cell} IS NOT NULL)",
        )
    else:
        yield FocusRule(f"{column.name}: no empty text", f"trim({cell}) = ''")
    if column.allowed:
        values = ", ".join(f"'{value}'" for value in column.allowed)
        yield FocusRule(f"{column.name}: allowed values", f"{cell} NOT IN ({values})")


def _json(cell: str) -> str:
    return f"CASE WHEN json_valid({cell}) THEN {cell} END"


def _number(column: str) -> str:
    return f'TRY_CAST("{column}" AS DECIMAL(38,15))'


def _null_together(first: str, second: str) -> FocusRule:
    return FocusRule(f"{second}: null with {first}", f'("{first}" IS NULL) <> ("{second}" IS NULL)')


def _product(price: str, cost: str) -> FocusRule:
    # The product has 38 digits: with 18 digits in both factors, DuckDB would keep only 18 digits of it.
    exact = f'TRY_CAST("{price}" AS DECIMAL(20,6)) * TRY_CAST("PricingQuantity" AS DECIMAL(18,9))'
    return FocusRule(
        f"{cost}: {price} x PricingQuantity",
        f"ChargeClass IS NULL AND {exact} <> {_number(cost)}",
    )


# Applies only to files that have the column. Files of months that were closed in an older format lack it.
_SHOWBACK_RULE = FocusRule(
    "x_BillingMode: showback is on no invoice",
    f"x_BillingMode = 'showback' AND (InvoiceId IS NOT NULL OR {_number('BilledCost')} <> 0)",
)
_IS_USAGE = "ChargeCategory = 'Usage' AND ChargeClass IS NULL"
_ROW_RULES: dict[FocusDataset, tuple[tuple[FocusRule, tuple[FocusVersion, ...]], ...]] = {
    FocusDataset.COST_AND_USAGE: (
        (FocusRule("BillingPeriodEnd: after its start", "BillingPeriodEnd <= BillingPeriodStart"), _BOTH),
        (FocusRule("ChargePeriodEnd: after its start", "ChargePeriodEnd <= ChargePeriodStart"), _BOTH),
        (
            FocusRule(
                "ChargePeriodStart: in the billing period without ChargeClass Correction",
                "ChargeClass IS NULL AND (ChargePeriodStart < BillingPeriodStart "
                "OR ChargePeriodEnd > BillingPeriodEnd)",
            ),
            _BOTH,
        ),
        (
            FocusRule(
                "ChargeClass: Correction only before the billing period",
                "ChargeClass = 'Correction' AND ChargePeriodStart >= BillingPeriodStart",
            ),
            _BOTH,
        ),
        (FocusRule("BillingCurrency: ISO 4217", "NOT regexp_full_match(BillingCurrency, '[A-Z]{3}')"), _BOTH),
        (_null_together("CapacityReservationId", "CapacityReservationStatus"), _BOTH),
        (
            FocusRule(
                "CapacityReservationStatus: Unused for reserved time without work",
                "(x_Bucket = 'reserved_unused') <> (CapacityReservationStatus IS NOT DISTINCT FROM 'Unused')",
            ),
            _BOTH,
        ),
        (_null_together("ConsumedQuantity", "ConsumedUnit"), _BOTH),
        (_null_together("PricingQuantity", "PricingUnit"), _BOTH),
        (FocusRule("ConsumedQuantity: of Usage", f"{_IS_USAGE} AND ConsumedQuantity IS NULL"), _BOTH),
        (
            FocusRule(
                "ConsumedQuantity: null without Usage",
                "ChargeCategory <> 'Usage' AND ConsumedQuantity IS NOT NULL",
            ),
            _BOTH,
        ),
        *(
            (FocusRule(f"{name}: of Usage", f'{_IS_USAGE} AND "{name}" IS NULL'), _BOTH)
            for name in (
                "ContractedUnitPrice",
                "ListUnitPrice",
                "PricingCategory",
                "PricingQuantity",
                "ResourceId",
                "SkuId",
                "SkuPriceId",
            )
        ),
        *(
            (FocusRule(f"{name}: not negative", f"{_number(name)} < 0"), _BOTH)
            for name in ("ContractedUnitPrice", "ListUnitPrice")
        ),
        (_product("ContractedUnitPrice", "ContractedCost"), _BOTH),
        (_product("ListUnitPrice", "ListCost"), _BOTH),
        (_null_together("SkuId", "SkuMeter"), _BOTH),
        (_null_together("SkuPriceId", "SkuPriceDetails"), _BOTH),
        (_null_together("ResourceId", "ResourceType"), _BOTH),
        (_null_together("SubAccountId", "SubAccountName"), _BOTH),
        (_null_together("InvoiceId", "InvoiceDetailId"), _NEW),
        (
            FocusRule(
                # The rows of showback are on no invoice and have a BilledCost of 0.
                "EffectiveCost: BilledCost without Usage",
                f"ChargeCategory <> 'Usage' AND {_number('EffectiveCost')} <> {_number('BilledCost')} "
                f"AND NOT (InvoiceId IS NULL AND {_number('BilledCost')} = 0)",
            ),
            _BOTH,
        ),
        (
            FocusRule(
                "ChargeCategory: Credit for credits",
                "(x_Bucket = 'credit') <> (ChargeCategory = 'Credit')",
            ),
            _BOTH,
        ),
        (
            FocusRule(
                "BilledCost: 0 for time that is not charged",
                f"x_Bucket IN ('preempted', 'hardware_lost') AND {_number('BilledCost')} <> 0",
            ),
            _BOTH,
        ),
    ),
    FocusDataset.BILLING_PERIOD: (
        (FocusRule("BillingPeriodEnd: after its start", "BillingPeriodEnd <= BillingPeriodStart"), _NEW),
        (
            FocusRule(
                "BillingPeriodLastUpdated: not before its creation",
                "BillingPeriodLastUpdated < BillingPeriodCreated",
            ),
            _NEW,
        ),
    ),
    FocusDataset.INVOICE_DETAIL: (
        (FocusRule("BillingCurrency: ISO 4217", "NOT regexp_full_match(BillingCurrency, '[A-Z]{3}')"), _NEW),
        (
            FocusRule(
                "InvoiceDetailLastUpdated: not before its creation",
                "InvoiceDetailLastUpdated < InvoiceDetailCreated",
            ),
            _NEW,
        ),
        (
            FocusRule(
                "InvoiceIssueDate: of issued invoices",
                "(InvoiceIssueStatus = 'Issued') <> (InvoiceIssueDate IS NOT NULL)",
            ),
            _NEW,
        ),
        (
            FocusRule(
                "ReferenceInvoiceId: the invoice itself without a correction",
                "x_CorrectedMonth IS NULL AND ReferenceInvoiceId <> InvoiceId",
            ),
            _NEW,
        ),
    ),
}

_COST, _PERIOD, _DETAIL = (
    FocusDataset.COST_AND_USAGE,
    FocusDataset.BILLING_PERIOD,
    FocusDataset.INVOICE_DETAIL,
)


def _wrong_invoices(dataset: str) -> str:
    """Return the query for invoices whose charges in a dataset do not sum to their total."""
    return (
        "SELECT coalesce(InvoiceId, number) FROM "
        "(SELECT InvoiceId, sum(TRY_CAST(BilledCost AS DECIMAL(38,6))) AS billed "
        f"FROM {dataset} WHERE InvoiceId IS NOT NULL GROUP BY InvoiceId) "
        "FULL JOIN expected_invoices ON number = InvoiceId "
        "WHERE number IS NULL OR coalesce(billed, 0) <> total"
    )


def _one_currency(dataset: FocusDataset) -> FocusSumRule:
    """Return the rule that the rows of an invoice in a dataset have one currency."""
    return FocusSumRule(
        f"BillingCurrency: one per invoice in {dataset.value}",
        f"SELECT InvoiceId FROM {dataset.value} WHERE InvoiceId IS NOT NULL "
        "GROUP BY InvoiceId HAVING count(DISTINCT BillingCurrency) <> 1",
        frozenset({dataset}),
    )


SUM_RULES = (
    _one_currency(_COST),
    _one_currency(_DETAIL),
    FocusSumRule(
        "SkuPriceId: one SkuId",
        "SELECT SkuPriceId FROM CostAndUsage WHERE SkuPriceId IS NOT NULL "
        "GROUP BY SkuPriceId HAVING count(DISTINCT SkuId) <> 1",
        frozenset({_COST}),
    ),
    FocusSumRule(
        "x_ChargeId: once",
        "SELECT x_ChargeId FROM CostAndUsage WHERE x_ChargeId IS NOT NULL "
        "GROUP BY x_ChargeId HAVING count(*) > 1",
        frozenset({_COST}),
    ),
    FocusSumRule(
        "BilledCost: sum of an invoice in CostAndUsage is its total",
        _wrong_invoices("CostAndUsage"),
        frozenset({_COST}),
    ),
    FocusSumRule(
        "ChargeCategory: one rounding per invoice",
        "SELECT number FROM expected_invoices LEFT JOIN CostAndUsage ON InvoiceId = number "
        "AND x_Bucket = 'rounding' GROUP BY number HAVING count(InvoiceId) <> 1",
        frozenset({_COST}),
    ),
    FocusSumRule(
        "BilledCost: sum of an invoice in InvoiceDetail is its total",
        _wrong_invoices("InvoiceDetail"),
        frozenset({_DETAIL}),
    ),
    FocusSumRule(
        "InvoiceDetailId: once in an invoice",
        "SELECT InvoiceId || ' ' || InvoiceDetailId FROM InvoiceDetail "
        "GROUP BY InvoiceId, InvoiceDetailId HAVING count(*) > 1",
        frozenset({_DETAIL}),
    ),
    FocusSumRule(
        "InvoiceDetailGrain: once in an invoice",
        "SELECT InvoiceId || ' ' || InvoiceDetailGrain FROM InvoiceDetail "
        "GROUP BY InvoiceId, InvoiceDetailGrain, ChargeCategory HAVING count(*) > 1",
        frozenset({_DETAIL}),
    ),
    FocusSumRule(
        "InvoiceDetailId: of CostAndUsage in InvoiceDetail",
        "SELECT DISTINCT InvoiceId || ' ' || InvoiceDetailId FROM CostAndUsage "
        "ANTI JOIN InvoiceDetail USING (InvoiceId, InvoiceDetailId) WHERE InvoiceId IS NOT NULL",
        frozenset({_COST, _DETAIL}),
    ),
    FocusSumRule(
        "BillingPeriodStart: of the billing period",
        "SELECT DISTINCT BillingPeriodStart FROM CostAndUsage ANTI JOIN BillingPeriod "
        "USING (BillingPeriodStart, BillingPeriodEnd, InvoiceIssuerName)",
        frozenset({_COST, _PERIOD}),
    ),
)
