"""Calculate the spending of running work and of reservations since their last charge lines.

While nothing changes on a GPU, charging writes a line only once an hour or once a day. Budgets do not wait
for this line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import F, Q, QuerySet

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Allocation, BoundUnit
from telemetry.budgets.spending import SpendScope, owners_of
from telemetry.core.amounts import ZERO
from telemetry.core.cost_shares import WHOLE_PERCENT
from telemetry.core.currencies import DEFAULT_CURRENCY
from telemetry.cost_centres.splits import Payer, load_all_splits
from telemetry.models import BudgetMeasure
from telemetry.money.billing_months import month_of
from telemetry.money.pricing.billing_currencies import load_billing_currencies
from telemetry.money.pricing.price_factors import load_price_factors
from telemetry.money.rate_card import load_rate_card

SECONDS_PER_HOUR = 3600


def uncharged_spend(scopes: Collection[SpendScope], measure: str, now: datetime) -> dict[SpendScope, Decimal]:
    """Return the spending up to ``now`` that is not in charge lines yet, by scope.

    ``measure`` selects money or GPU-hours. The prices and cost centres in force now apply. A bound unit
    counts for its whole time, used or not, so work inside a reservation is not counted again. Runs a fixed
    number of queries.
    """
    card, factors, splits = load_rate_card(), load_price_factors(), load_all_splits()
    in_money = measure == BudgetMeasure.MONEY
    currency = load_billing_currencies().of(month_of(now)) if in_money else DEFAULT_CURRENCY
    found: dict[SpendScope, Decimal] = defaultdict(lambda: ZERO)
    for team, project, pool, model, gpu_hours, work in _uncharged_time(now):
        rate = card.at(pool, model, now)
        price = Decimal(1)
        if in_money:
            price = (
                rate.price_with(factors.at(pool, *work, now))
                if rate and work
                else rate.price
                if rate
                else ZERO
            )
        amount = price * gpu_hours
        for scope in owners_of(team, project, "", currency):
            if scope in scopes:
                found[scope] += amount
        for share in splits.at(Payer(project=project), now):
            scope = SpendScope(cost_centre=share.code, currency=currency)
            if share.code and scope in scopes:
                found[scope] += amount * share.percent / WHOLE_PERCENT
    return found


def _uncharged_time(
    now: datetime,
) -> Iterator[tuple[int, int, int, str, Decimal, tuple[int, str] | None]]:
    """Yield the time of each held or bound unit since its last charge line.

    The values are team, project, pool, model, GPU-hours, and (priority, type) of the work. A bound unit has
    None instead of (priority, type), because its price has no factor.
    """
    held: QuerySet[Any] = Allocation.objects.filter(reservation__isnull=True)
    bound: QuerySet[Any] = BoundUnit.objects.all()
    for rows, project, work_columns in (
        (held, "project", ("workload__priority", "workload__type")),
        (bound, "reservation__project", ()),
    ):
        open_rows = rows.filter(unit__gpu__charged__until__lt=now).filter(
            Q(period__upper_inf=True) | Q(period__endswith__gt=F("unit__gpu__charged__until"))
        )
        columns = (f"{project}__team_id", f"{project}_id", "unit__gpu__pool_id", "unit__gpu__model")
        for team, project_id, pool, model, slots, period, charged_until, *work in open_rows.values_list(
            *columns, "slots", "period", "unit__gpu__charged__until", *work_columns
        ):
            seconds = (min(period.upper or now, now) - max(period.lower, charged_until)).total_seconds()
            if seconds > 0:
                gpus = Decimal(slots.upper - slots.lower) / SLOTS_PER_GPU
                hours = gpus * int(seconds) / SECONDS_PER_HOUR
                yield team, project_id, pool, model, hours, (work[0], work[1]) if work else None
