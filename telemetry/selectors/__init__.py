"""Reads of telemetry and money for pages and the API. Each figure comes with its coverage; unknown is None, never zero.

Nothing here asks who may see what: callers give filters that their policy made (``Filters.teams``, ``Filters.users``).
GPU-hours count slots: a slice of a seventh for seven hours is one GPU-hour. Shares are of 1. Money is Decimal, to the cent, and
the rows of one answer sum to its total exactly.
"""

from telemetry.selectors.live import LiveUnit, live
from telemetry.selectors.money import (
    BudgetView,
    ChargeGroup,
    ChargeTable,
    PricesNow,
    budget_left,
    budget_view,
    charge_lines,
    charges_by,
    forecast,
    prices_now,
)
from telemetry.selectors.reads import Reads
from telemetry.selectors.scope import DIMENSIONS, Filters, Freshness, freshness
from telemetry.selectors.use import (
    GroupUse,
    PoolingSaving,
    Series,
    Step,
    UseTable,
    WaitRow,
    Waterfall,
    pooling_saving,
    rhythm,
    use_by,
    use_over_time,
    waits,
    waterfall,
)
from telemetry.statements import Conservation, conservation

__all__ = [
    "DIMENSIONS",
    "BudgetView",
    "ChargeGroup",
    "ChargeTable",
    "Conservation",
    "Filters",
    "Freshness",
    "GroupUse",
    "LiveUnit",
    "PoolingSaving",
    "PricesNow",
    "Reads",
    "Series",
    "Step",
    "UseTable",
    "WaitRow",
    "Waterfall",
    "budget_left",
    "budget_view",
    "charge_lines",
    "charges_by",
    "conservation",
    "forecast",
    "freshness",
    "live",
    "pooling_saving",
    "prices_now",
    "rhythm",
    "use_by",
    "use_over_time",
    "waits",
    "waterfall",
]
