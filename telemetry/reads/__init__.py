"""Reads of telemetry and money for pages and the API. Each figure comes with its coverage; unknown is None, never zero.

Nothing here asks who may see what: callers give filters that their policy made (``UsageFilters.teams``, ``UsageFilters.users``).
GPU-hours count slots: a slice of a seventh for seven hours is one GPU-hour. Shares are of 1. Money is Decimal, to the cent, and
the rows of one answer sum to its total exactly.
"""

from telemetry.money.statements import CostReconciliation, reconcile_costs
from telemetry.reads.chargeback import (
    BudgetStatus,
    ChargeGroup,
    ChargeTable,
    CurrentPrices,
    budget_status,
    charge_lines,
    charges_by,
    find_budget_status,
    forecast_spend,
    load_current_prices,
)
from telemetry.reads.live_readings import LiveUnitReading, live_unit_readings
from telemetry.reads.usage import (
    GroupUsage,
    GroupWaitTimes,
    PoolingSavings,
    UsageSeries,
    UsageTable,
    UsageWaterfall,
    WaterfallStep,
    pooling_savings,
    usage_by,
    usage_over_time,
    usage_waterfall,
    utilisation_heatmap,
    wait_times,
)
from telemetry.reads.usage_filters import USAGE_DIMENSIONS, DataFreshness, UsageFilters, data_freshness
from telemetry.reads.usage_rows import UsageRows

__all__ = [
    "USAGE_DIMENSIONS",
    "BudgetStatus",
    "ChargeGroup",
    "ChargeTable",
    "CostReconciliation",
    "UsageFilters",
    "DataFreshness",
    "GroupUsage",
    "LiveUnitReading",
    "PoolingSavings",
    "CurrentPrices",
    "UsageRows",
    "UsageSeries",
    "WaterfallStep",
    "UsageTable",
    "GroupWaitTimes",
    "UsageWaterfall",
    "find_budget_status",
    "budget_status",
    "charge_lines",
    "charges_by",
    "reconcile_costs",
    "forecast_spend",
    "data_freshness",
    "live_unit_readings",
    "pooling_savings",
    "load_current_prices",
    "utilisation_heatmap",
    "usage_by",
    "usage_over_time",
    "wait_times",
    "usage_waterfall",
]
