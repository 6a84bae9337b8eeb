"""Map the FOCUS columns to SQL expressions, for each source of rows.

PostgreSQL formats every value, so that files with millions of rows are written quickly. A column without an
expression is null. Tables: ``c`` charge line, ``e`` its evidence, ``g`` its GPU, ``p`` its price, ``l``
statement line, ``a`` adjustment, ``i`` invoice, ``m`` corrected month, ``r`` corrected invoice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.exports.focus.columns import FocusColumn

_FORMULA_STARTS = "'=', '+', '-', '@', E'\\t', E'\\r'"
_UNIT = "'GPU-Hours'"
_UNMAPPED = "'unmapped'"  # account of charges without a cost centre; only open months have such charges
_USE_TEXTS = """CASE {bucket} WHEN 'used' THEN 'in use' WHEN 'reserved_unused' THEN 'reserved, not used'
    WHEN 'preempted' THEN 'lost to a preemption, not charged' WHEN 'hardware_lost'
    THEN 'lost to hardware, not charged' ELSE 'share of idle time' END"""
_LINE_TEXT = f"""CASE l.bucket WHEN 'credit' THEN 'credits' WHEN 'adjustment' THEN 'manual adjustments'
    ELSE l.model || ': ' || {_USE_TEXTS.format(bucket="l.bucket")} END"""
_BILLING_MODE = "CASE WHEN l.showback THEN 'showback' ELSE 'chargeback' END"
_PERIOD = {"BillingPeriodStart": "%(period_start)s", "BillingPeriodEnd": "%(period_end)s"}
_ONE_ISSUER = dict.fromkeys(
    ("InvoiceIssuerName", "ServiceProviderName", "HostProviderName", "ProviderName", "PublisherName"),
    "%(issuer)s",
)


@dataclass(frozen=True)
class FocusSource:
    """The sources of a file's values.

    A closed month has the names that its close copied into statement lines; other months have today's.
    ``for_spreadsheet`` puts an apostrophe before texts that a spreadsheet would run as formulas.
    """

    is_closed: bool
    for_spreadsheet: bool

    def text(self, value: str) -> str:
        """Return the SQL of a text that people chose. It is null if the text is empty."""
        if not self.for_spreadsheet:
            return f"nullif({value}, '')"
        return (
            f"CASE WHEN left({value}, 1) IN ({_FORMULA_STARTS}) THEN '''' || {value} "
            f"ELSE nullif({value}, '') END"
        )

    def name(self, table: str) -> str:
        """Return the SQL of the name of a statement line's pool, team or project."""
        return self.text(f"l.{table}_name" if self.is_closed else f"{table}.name")


def select_list(columns: Iterable[FocusColumn], values: Mapping[str, str]) -> str:
    """Return the expressions of ``columns`` for SELECT, in their order."""
    return ", ".join(f'{values.get(column.name, _null(column))} AS "{column.name}"' for column in columns)


def _null(column: FocusColumn) -> str:
    return f"NULL::{'numeric' if column.is_decimal else 'text'}"


def charge_values(source: FocusSource) -> dict[str, str]:
    """Return the expressions for a charge line."""
    reservation = (
        "coalesce('reservation/' || c.reservation_id, "
        "CASE WHEN c.bucket = 'reserved_unused' THEN 'pool/' || c.pool_id END)"
    )
    return {
        **_shared_values(source, "c.cost_centre", "coalesce(l.currency, %(currency)s)"),
        **_price_values(),
        "BilledCost": "CASE WHEN l.showback THEN 0.000000 ELSE c.charged END",
        "CapacityReservationId": reservation,
        "CapacityReservationStatus": (
            f"CASE WHEN {reservation} IS NOT NULL THEN "
            "CASE c.bucket WHEN 'reserved_unused' THEN 'Unused' ELSE 'Used' END END"
        ),
        "ChargeCategory": "'Usage'",
        "ChargeClass": "CASE WHEN c.start < %(start)s THEN 'Correction' END",
        "ChargeDescription": source.text(f"c.model || ': ' || {_USE_TEXTS.format(bucket='c.bucket')}"),
        "ChargeFrequency": "'Usage-Based'",
        "ChargePeriodStart": _time("c.start"),
        "ChargePeriodEnd": _time('c."end"'),
        "EffectiveCost": "c.charged",
        "InvoiceDetailId": "CASE WHEN i.number IS NOT NULL THEN 'line/' || l.id END",
        "ResourceId": "g.uuid",
        "ResourceType": "'GPU'",
        "SkuId": source.text("c.model"),
        "SkuMeter": "'GPU time'",
        "SubAccountId": "'project/' || c.project_id",
        "SubAccountName": source.text("c.project_name"),
        "x_BillingMode": _BILLING_MODE,
        "x_Bucket": "c.bucket",
        "x_ChargeId": "c.id::text",
        "x_CorrectedMonth": "to_char(l.corrected_month, 'YYYY-MM')",
        "x_CorrectsChargeId": "c.corrects_id::text",
        "x_CoveredGpuHours": _gpu_hours("e.covered_slot_seconds::numeric"),
        "x_OwnerCost": "c.cost",
        "x_PoolName": source.name("pool"),
        "x_Simulated": _flag("c.simulated"),
        "x_TeamName": source.text("c.team_name"),
        "x_UsedGpuHours": _gpu_hours("e.used_slot_seconds::numeric"),
        "x_UserName": source.text("c.user_name"),
        "x_WorkloadId": "'workload/' || c.workload_id",
        "x_WorkloadName": source.text("c.workload_name"),
        "x_WorkloadType": source.text("c.workload_type"),
    }


def _price_values() -> dict[str, str]:
    """Return the expressions for the quantity and the price of a charge line."""
    quantity = _gpu_hours("c.slot_seconds")
    price = "round(p.price_per_gpu_hour * coalesce(pf.factor, 1) * coalesce(tf.factor, 1), 6)"
    return {
        "ConsumedQuantity": f"CASE WHEN c.bucket = 'reserved_unused' THEN 0.000000000 ELSE {quantity} END",
        "ConsumedUnit": _UNIT,
        "ContractedCost": f"coalesce({quantity} * {price}, c.charged)",
        "ContractedUnitPrice": price,
        "ListCost": f"coalesce({quantity} * p.price_per_gpu_hour, c.charged)",
        "ListUnitPrice": "p.price_per_gpu_hour",
        "PricingCategory": "'Standard'",
        "PricingCurrencyContractedUnitPrice": price,
        "PricingCurrencyEffectiveCost": "c.charged",
        "PricingCurrencyListUnitPrice": "p.price_per_gpu_hour",
        "PricingQuantity": quantity,
        "PricingUnit": _UNIT,
        "SkuPriceDetails": (
            "CASE WHEN c.price_id IS NOT NULL THEN "
            "json_build_object('InstanceType', c.model, 'GpuCount', 1)::text END"
        ),
        "SkuPriceId": "'price/' || c.price_id",
    }


def idle_share_values(source: FocusSource) -> dict[str, str]:
    """Return the expressions for a team's share of the idle time of a pool."""
    return {
        **_shared_values(source, "l.cost_centre", "l.currency"),
        **_adjustment("l.charged"),
        "BilledCost": "CASE WHEN l.showback THEN 0.000000 ELSE l.charged END",
        "ChargeClass": "CASE WHEN l.corrected_month IS NOT NULL THEN 'Correction' END",
        "ChargeDescription": source.text(f"l.model || ': ' || {_USE_TEXTS.format(bucket='l.bucket')}"),
        "ChargePeriodStart": _time("coalesce(m.first, %(start)s)"),
        "ChargePeriodEnd": _time("coalesce(m.last, %(end)s)"),
        "InvoiceDetailId": "CASE WHEN i.number IS NOT NULL THEN 'line/' || l.id END",
        "x_BillingMode": _BILLING_MODE,
        "x_Bucket": "l.bucket",
        "x_CorrectedMonth": "to_char(l.corrected_month, 'YYYY-MM')",
        "x_OwnerCost": "l.cost",
        "x_PoolName": source.name("pool"),
        "x_Simulated": "'false'",
        "x_TeamName": source.name("team"),
    }


def adjustment_values(source: FocusSource) -> dict[str, str]:
    """Return the expressions for an approved credit or manual adjustment."""
    return {
        **_shared_values(source, "a.cost_centre", "a.currency"),
        **_adjustment(_amount("a.amount")),
        "BilledCost": f"CASE WHEN l.showback THEN 0.000000 ELSE {_amount('a.amount')} END",
        "ChargeCategory": "initcap(a.kind)",
        "ChargeDescription": source.text("a.kind || ' ' || a.number || ': ' || a.reason"),
        "ChargePeriodStart": _time("%(start)s"),
        "ChargePeriodEnd": _time("%(end)s"),
        "InvoiceDetailId": "CASE WHEN i.number IS NOT NULL THEN 'line/' || l.id END",
        "SubAccountId": "'project/' || a.project_id",
        "SubAccountName": source.name("project"),
        "x_BillingMode": _BILLING_MODE,
        "x_Bucket": "a.kind",
        "x_Simulated": "'false'",
        "x_TeamName": source.name("team"),
        "x_UserName": source.text("c.user_name"),
        "x_WorkloadId": "'workload/' || c.workload_id",
        "x_WorkloadName": source.text("c.workload_name"),
    }


def rounding_values(source: FocusSource) -> dict[str, str]:
    """Return the expressions for the difference between an invoice and the sum of its charges."""
    return {
        **_shared_values(source, "i.cost_centre", "i.currency"),
        **_adjustment(_amount("i.rounding")),
        "ChargeDescription": "'rounding of the statement'",
        "ChargePeriodStart": "%(period_start)s",
        "ChargePeriodEnd": "%(period_end)s",
        "InvoiceDetailId": "'rounding'",
        "x_BillingMode": "'chargeback'",
        "x_Bucket": "'rounding'",
        "x_Simulated": "'false'",
    }


def invoice_line_values(source: FocusSource) -> dict[str, str]:
    """Return the expressions for the record of a statement line on its invoice."""
    grain = (
        "json_strip_nulls(json_build_object('ServiceName', 'GPU pool', 'SkuId', nullif(l.model, ''), "
        "'SubAccountId', 'project/' || l.project_id, 'x_Bucket', l.bucket, "
        "'x_CorrectedMonth', to_char(l.corrected_month, 'YYYY-MM'), 'x_PoolId', l.pool_id, "
        "'x_TeamId', l.team_id, 'x_WorkloadType', nullif(l.workload_type, '')))::text"
    )
    return {
        **_invoice_values(source),
        "BilledCost": _amount("l.charged_cents"),
        "ChargeCategory": (
            "CASE WHEN l.bucket IN ('credit', 'adjustment') THEN initcap(l.bucket) "
            "WHEN l.idle_share THEN 'Adjustment' ELSE 'Usage' END"
        ),
        "InvoiceDetailDescription": source.text(_LINE_TEXT),
        "InvoiceDetailGrain": grain,
        "InvoiceDetailId": "'line/' || l.id",
        "ReferenceInvoiceId": source.text("coalesce(r.number, i.number)"),
        "x_CorrectedMonth": "to_char(l.corrected_month, 'YYYY-MM')",
        "x_GpuHours": _gpu_hours("l.slot_seconds"),
        "x_OwnerCost": _amount("l.cost_cents"),
        "x_PoolName": source.name("pool"),
        "x_ProjectName": source.name("project"),
        "x_TeamName": source.name("team"),
    }


def invoice_rounding_values(source: FocusSource) -> dict[str, str]:
    """Return the expressions for the record of rounding. Its amount is 0: statement lines have cents."""
    return {
        **_invoice_values(source),
        "BilledCost": "0.000000",
        "ChargeCategory": "'Adjustment'",
        "InvoiceDetailDescription": "'rounding of the statement'",
        "InvoiceDetailGrain": """'{"x_Bucket": "rounding"}'""",
        "InvoiceDetailId": "'rounding'",
        "ReferenceInvoiceId": source.text("i.number"),
    }


def billing_period_values() -> dict[str, str]:
    """Return the expressions for the billing period, which all are parameters."""
    return {
        **_PERIOD,
        **_ONE_ISSUER,
        "BillingPeriodCreated": "%(period_start)s",
        "BillingPeriodLastUpdated": "%(updated_at)s",
        "BillingPeriodStatus": "%(period_status)s",
    }


def _shared_values(source: FocusSource, cost_centre: str, currency: str) -> dict[str, str]:
    """Return the expressions that are equal for all rows of CostAndUsage."""
    return {
        **_PERIOD,
        **_ONE_ISSUER,
        "BillingAccountId": f"coalesce({source.text(cost_centre)}, {_UNMAPPED})",
        "BillingAccountName": source.text("i.name"),
        "BillingCurrency": currency,
        "InvoiceId": source.text("i.number"),
        "PricingCurrency": currency,
        "ServiceCategory": "'Compute'",
        "ServiceName": "'GPU pool'",
        "ServiceSubcategory": "'Other (Compute)'",
        "x_Scope": "%(scope)s",
    }


def _adjustment(amount: str) -> dict[str, str]:
    """Return the expressions of a charge that is an amount alone, without a price and a quantity."""
    return {
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), amount),
        "PricingCurrencyEffectiveCost": amount,
        "ChargeCategory": "'Adjustment'",
        "ChargeFrequency": "'One-Time'",
    }


def _invoice_values(source: FocusSource) -> dict[str, str]:
    """Return the expressions that are equal for all records of an invoice."""
    return {
        **_PERIOD,
        **_ONE_ISSUER,
        "BillingAccountId": source.text("i.cost_centre"),
        "BillingCurrency": "i.currency",
        "InvoiceDetailCreated": "coalesce(%(issued_at)s, %(period_start)s)",
        "InvoiceDetailLastUpdated": "%(updated_at)s",
        "InvoiceId": source.text("i.number"),
        "InvoiceIssueDate": "%(issued_at)s",
        "InvoiceIssueStatus": "%(issue_status)s",
        "PaymentCurrency": "i.currency",
        "PaymentDueDate": _time("i.due_at"),
        "PaymentTerms": "i.payment_terms",
        "PurchaseOrderNumber": source.text("i.purchase_order"),
    }


def _gpu_hours(slot_seconds: str) -> str:
    return f"round({slot_seconds} / {SLOT_SECONDS_PER_GPU_HOUR}.0, 9)"


def _amount(value: str) -> str:
    """Return the SQL of an amount with six decimals, whatever the decimals of its currency are."""
    return f"round({value}, 6)"


def _time(moment: str) -> str:
    return f"""to_char({moment} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""


def _flag(value: str) -> str:
    return f"CASE WHEN {value} THEN 'true' ELSE 'false' END"
