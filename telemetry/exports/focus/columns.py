"""Define the columns of the FOCUS datasets: name, type, nullability and allowed values, per version.

Source: the specification of FOCUS 1.4 and 1.2 (focus.finops.org), for a provider with capacity reservations,
measured use, unit prices with a price list, sub accounts, provisioned resources and payable invoices, and
without commitment discounts, regions, several currencies per charge and split cost allocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from telemetry.money.statement_export import FILE_FORMAT

FocusVersion = Literal["1.4", "1.2"]
FOCUS_VERSIONS: tuple[FocusVersion, ...] = ("1.4", "1.2")


class FocusDataset(StrEnum):
    """The datasets that are exported. Only ``CostAndUsage`` exists in FOCUS 1.2."""

    COST_AND_USAGE = "CostAndUsage"
    BILLING_PERIOD = "BillingPeriod"
    INVOICE_DETAIL = "InvoiceDetail"


class FocusType(StrEnum):
    """The types of columns. Their decimals differ: amounts and prices have six, and quantities nine."""

    STRING = "String"
    JSON = "JSON"
    TIME = "Date/Time"
    BOOLEAN = "Boolean"
    AMOUNT = "Decimal"
    QUANTITY = "Decimal, 9 places"
    PRODUCT = "Decimal, 15 places"


# The type of each column in Parquet files, and the type to which the rules cast its texts.
PARQUET_TYPES = {
    FocusType.STRING: "VARCHAR",
    FocusType.JSON: "VARCHAR",
    FocusType.TIME: "TIMESTAMP",
    FocusType.BOOLEAN: "BOOLEAN",
    FocusType.AMOUNT: "DECIMAL(18,6)",
    FocusType.QUANTITY: "DECIMAL(24,9)",
    FocusType.PRODUCT: "DECIMAL(38,15)",
}


@dataclass(frozen=True)
class FocusColumn:
    """One column of a dataset. ``meaning`` is its source in gpupool, as docs/focus.md states it."""

    name: str
    meaning: str
    type: FocusType = FocusType.STRING
    nullable: bool = False
    allowed: tuple[str, ...] = ()
    versions: tuple[str, ...] = field(default=FOCUS_VERSIONS)
    finance_only: bool = False
    since_format: int = 1  # first file format with this column (telemetry/money/statement_export.py)

    @property
    def is_decimal(self) -> bool:
        return self.type in (FocusType.AMOUNT, FocusType.QUANTITY, FocusType.PRODUCT)


def focus_columns(
    dataset: FocusDataset, version: FocusVersion = "1.4", *, with_cost: bool, file_format: int = FILE_FORMAT
) -> tuple[FocusColumn, ...]:
    """Return the columns of a dataset in the order of its file.

    FOCUS columns come first, then the columns of gpupool (``x_``), each in alphabetical order. ``with_cost``
    adds the columns with the cost that the GPUs have for their owner. ``file_format`` is that of the month.
    """
    wanted = [
        each
        for each in _COLUMNS[dataset]
        if version in each.versions
        and (with_cost or not each.finance_only)
        and each.since_format <= file_format
    ]
    return tuple(sorted(wanted, key=lambda column: (column.name.startswith("x_"), column.name)))


def column_names(columns: Sequence[FocusColumn]) -> list[str]:
    """Return the names of ``columns`` in their order."""
    return [column.name for column in columns]


CHARGE_CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
_ONLY_1_4: tuple[str, ...] = ("1.4",)
_ONLY_1_2: tuple[str, ...] = ("1.2",)

_TIME, _JSON = FocusType.TIME, FocusType.JSON
_AMOUNT, _QUANTITY, _PRODUCT = FocusType.AMOUNT, FocusType.QUANTITY, FocusType.PRODUCT

_PERIOD = (
    FocusColumn("BillingPeriodStart", "first moment of the month", _TIME),
    FocusColumn("BillingPeriodEnd", "first moment of the next month", _TIME),
)
_INVOICE_ISSUER = FocusColumn("InvoiceIssuerName", "name of the organisation, at the close")
_CURRENCY = FocusColumn("BillingCurrency", "currency of the month that is charged or corrected")

_COST_AND_USAGE = (
    *_PERIOD,
    _INVOICE_ISSUER,
    _CURRENCY,
    FocusColumn("BilledCost", "amount of the charge line", _AMOUNT),
    FocusColumn("BillingAccountId", "code of the cost centre; `unmapped` without one"),
    FocusColumn("BillingAccountName", "name of the cost centre, at the close", nullable=True),
    FocusColumn(
        "CapacityReservationId",
        "`reservation/ID`; unused time of a dedicated pool: `pool/ID`",
        nullable=True,
    ),
    FocusColumn(
        "CapacityReservationStatus",
        "`Unused` for reserved time without work, with no-shows; else `Used`",
        nullable=True,
        allowed=("Used", "Unused"),
    ),
    FocusColumn(
        "ChargeCategory",
        "`Usage` for charge lines, `Credit` for credits, `Adjustment` for manual adjustments, shared idle "
        "time and rounding",
        allowed=CHARGE_CATEGORIES,
    ),
    FocusColumn(
        "ChargeClass", "`Correction` if a closed month is corrected", nullable=True, allowed=("Correction",)
    ),
    FocusColumn("ChargeDescription", "GPU model and use"),
    FocusColumn(
        "ChargeFrequency",
        "`Usage-Based`; `One-Time` for other categories than `Usage`",
        allowed=("One-Time", "Recurring", "Usage-Based"),
    ),
    FocusColumn("ChargePeriodStart", "start of the charge line", _TIME),
    FocusColumn("ChargePeriodEnd", "end of the charge line", _TIME),
    FocusColumn(
        "ConsumedQuantity",
        "GPU-hours that work held; 0 for reserved and unused time",
        _QUANTITY,
        nullable=True,
    ),
    FocusColumn("ConsumedUnit", "`GPU-Hours`", nullable=True),
    FocusColumn("CommitmentDiscountStatus", "empty: no commitments", nullable=True, versions=_ONLY_1_2),
    FocusColumn("ContractedCost", "PricingQuantity x ContractedUnitPrice", _PRODUCT),
    FocusColumn("ContractedUnitPrice", "price of a GPU-hour with its factors", _AMOUNT, nullable=True),
    FocusColumn("EffectiveCost", "amount of the charge line", _AMOUNT),
    FocusColumn("HostProviderName", "name of the organisation, at the close", versions=_ONLY_1_4),
    FocusColumn(
        "InvoiceDetailId",
        "id of the statement line; `rounding` for rounding",
        nullable=True,
        versions=_ONLY_1_4,
    ),
    FocusColumn("InvoiceId", "number of the cost centre's statement", nullable=True),
    FocusColumn("ListCost", "PricingQuantity x ListUnitPrice", _PRODUCT),
    FocusColumn("ListUnitPrice", "price of a GPU-hour on the rate card", _AMOUNT, nullable=True),
    FocusColumn(
        "PricingCategory",
        "`Standard`",
        nullable=True,
        allowed=("Standard", "Committed", "Dynamic", "Other"),
    ),
    FocusColumn("PricingCurrency", "currency of the month that is charged or corrected", versions=_ONLY_1_2),
    FocusColumn(
        "PricingCurrencyContractedUnitPrice",
        "as ContractedUnitPrice",
        _AMOUNT,
        nullable=True,
        versions=_ONLY_1_2,
    ),
    FocusColumn("PricingCurrencyEffectiveCost", "as EffectiveCost", _AMOUNT, versions=_ONLY_1_2),
    FocusColumn(
        "PricingCurrencyListUnitPrice", "as ListUnitPrice", _AMOUNT, nullable=True, versions=_ONLY_1_2
    ),
    FocusColumn("PricingQuantity", "GPU-hours: slots / 840 x hours", _QUANTITY, nullable=True),
    FocusColumn("PricingUnit", "`GPU-Hours`", nullable=True),
    FocusColumn("ProviderName", "name of the organisation, at the close", versions=_ONLY_1_2),
    FocusColumn("PublisherName", "name of the organisation, at the close", versions=_ONLY_1_2),
    FocusColumn("ResourceId", "UUID of the GPU", nullable=True),
    FocusColumn("ResourceName", "empty: GPUs have no other name", nullable=True),
    FocusColumn("ResourceType", "`GPU`", nullable=True),
    FocusColumn("ServiceCategory", "`Compute`", allowed=("Compute",)),
    FocusColumn("ServiceName", "`GPU pool`"),
    FocusColumn("ServiceProviderName", "name of the organisation, at the close", versions=_ONLY_1_4),
    FocusColumn("ServiceSubcategory", "`Other (Compute)`", allowed=("Other (Compute)",)),
    FocusColumn("SkuId", "GPU model", nullable=True),
    FocusColumn("SkuMeter", "`GPU time`", nullable=True),
    FocusColumn("SkuPriceDetails", "`InstanceType` (GPU model) and `GpuCount` (1)", _JSON, nullable=True),
    FocusColumn("SkuPriceId", "`price/ID` of the rate card's entry", nullable=True),
    FocusColumn("SubAccountId", "`project/ID`", nullable=True),
    FocusColumn("SubAccountName", "name of the project when it was charged", nullable=True),
    FocusColumn(
        "x_BillingMode",
        "`showback` if the charge is not invoiced, else `chargeback`; not in months that were closed before "
        "this column existed",
        allowed=("chargeback", "showback"),
        since_format=2,
    ),
    FocusColumn("x_Bucket", "bucket of the charge line, `rounding`, or `unallocated` for shared idle time"),
    FocusColumn("x_ChargeId", "id of the charge line", nullable=True),
    FocusColumn("x_CorrectedMonth", "closed month that is corrected, as YYYY-MM", nullable=True),
    FocusColumn("x_CorrectsChargeId", "id of the charge line that is corrected", nullable=True),
    FocusColumn("x_CoveredGpuHours", "GPU-hours that samples cover", _QUANTITY, nullable=True),
    FocusColumn(
        "x_OwnerCost", "cost of the time for the owner of the GPUs", _AMOUNT, nullable=True, finance_only=True
    ),
    FocusColumn("x_PoolName", "name of the pool, at the close", nullable=True),
    FocusColumn("x_Scope", "whose charges the file has", allowed=("all", "led_teams", "own")),
    FocusColumn("x_Simulated", "`true` for simulated history", FocusType.BOOLEAN, allowed=("true", "false")),
    FocusColumn("x_TeamName", "name of the team when it was charged", nullable=True),
    FocusColumn("x_UsedGpuHours", "GPU-hours in use by measurement", _QUANTITY, nullable=True),
    FocusColumn("x_UserName", "name of the person when charged", nullable=True),
    FocusColumn("x_WorkloadId", "`workload/ID`", nullable=True),
    FocusColumn("x_WorkloadName", "name of the workload when it was charged", nullable=True),
    FocusColumn("x_WorkloadType", "type of the workload", nullable=True),
)

_BILLING_PERIOD = (
    *_PERIOD,
    _INVOICE_ISSUER,
    FocusColumn("BillingPeriodCreated", "first moment of the month", _TIME),
    FocusColumn(
        "BillingPeriodLastUpdated", "time of the close; in an open month, of the last charge line", _TIME
    ),
    FocusColumn("BillingPeriodStatus", "`Closed` after the close, else `Open`", allowed=("Open", "Closed")),
)

_INVOICE_DETAIL = (
    *_PERIOD,
    _INVOICE_ISSUER,
    _CURRENCY,
    FocusColumn("BilledCost", "cents of the statement line", _AMOUNT),
    FocusColumn("BillingAccountId", "code of the cost centre"),
    FocusColumn("ChargeCategory", "as in CostAndUsage", allowed=CHARGE_CATEGORIES),
    FocusColumn("InvoiceDetailCreated", "time of the close; in an open month, its first moment", _TIME),
    FocusColumn("InvoiceDetailDescription", "GPU model and use", nullable=True),
    FocusColumn("InvoiceDetailGrain", "the ids by which charge lines are summed", _JSON, nullable=True),
    FocusColumn("InvoiceDetailId", "id of the statement line; `rounding` for rounding"),
    FocusColumn(
        "InvoiceDetailLastUpdated", "time of the close; in an open month, of the last charge line", _TIME
    ),
    FocusColumn("InvoiceId", "number of the cost centre's statement"),
    FocusColumn("InvoiceIssueDate", "time of the close", _TIME, nullable=True),
    FocusColumn("InvoiceIssueStatus", "`Issued` after the close, else `Open`", allowed=("Open", "Issued")),
    FocusColumn("PaymentCurrency", "currency of the month that is charged or corrected"),
    FocusColumn("PaymentDueDate", "due date of the statement", _TIME, nullable=True),
    FocusColumn("PaymentTerms", "`Net N`: N days from the close to the due date"),
    FocusColumn("PurchaseOrderNumber", "purchase order of the cost centre, at the close", nullable=True),
    FocusColumn("ReferenceInvoiceId", "statement that a correction corrects; else the statement itself"),
    FocusColumn("x_CorrectedMonth", "closed month that is corrected, as YYYY-MM", nullable=True),
    FocusColumn("x_GpuHours", "GPU-hours of the statement line", _QUANTITY, nullable=True),
    FocusColumn(
        "x_OwnerCost",
        "cents of the cost for the owner of the GPUs",
        _AMOUNT,
        nullable=True,
        finance_only=True,
    ),
    FocusColumn("x_PoolName", "name of the pool, at the close", nullable=True),
    FocusColumn("x_ProjectName", "name of the project, at the close", nullable=True),
    FocusColumn("x_TeamName", "name of the team, at the close", nullable=True),
)

_COLUMNS: dict[FocusDataset, tuple[FocusColumn, ...]] = {
    FocusDataset.COST_AND_USAGE: _COST_AND_USAGE,
    FocusDataset.BILLING_PERIOD: _BILLING_PERIOD,
    FocusDataset.INVOICE_DETAIL: _INVOICE_DETAIL,
}
