"""Estimate the spending to come from running work and from booked reservations. This spending is certain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal

from django.db.models import Q

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Allocation, Gpu, Reservation, Unit
from scheduler.state.states import OPEN_RESERVATION_STATES
from telemetry.budgets.spending import DailySpend, SpendScope, owners_of
from telemetry.core.cost_shares import CostSplit
from telemetry.core.currencies import DEFAULT_CURRENCY
from telemetry.cost_centres.splits import Payer, load_all_splits
from telemetry.models import BudgetMeasure
from telemetry.money.billing_months import billing_calendar, month_of
from telemetry.money.pricing.billing_currencies import load_billing_currencies
from telemetry.money.pricing.price_factors import load_price_factors
from telemetry.money.rate_card import RateCard, load_rate_card


@dataclass(frozen=True)
class _Commitment:
    team: int
    project: int
    start: datetime
    end: datetime
    gpus: float
    price: Decimal | None  # of one GPU-hour


def committed_spend(
    scopes: Collection[SpendScope], measure: str, now: datetime, end: datetime
) -> dict[SpendScope, DailySpend]:
    """Return the certain spending of each day from ``now`` to ``end``, for each scope.

    Running work counts until its expected end, a booked reservation for its whole window. The prices in force
    now apply. A reservation counts with the cheapest model that it accepts. The number of queries does not
    depend on the number of scopes.
    """
    card = load_rate_card()
    splits = load_all_splits()
    currency = DEFAULT_CURRENCY
    if measure == BudgetMeasure.MONEY:
        currency = load_billing_currencies().of(month_of(now))
    found: dict[SpendScope, DailySpend] = {scope: defaultdict(float) for scope in scopes}
    for each in (*_running_work(card, now), *_booked_reservations(card, now, end)):
        price = Decimal(1) if measure == BudgetMeasure.GPU_HOURS else each.price
        shares = _shares_by_owner(each, splits.at(Payer(project=each.project), now), currency)
        for scope in (found.keys() & shares.keys()) if price is not None else ():
            for day, hours in hours_by_day(max(each.start, now), min(each.end, end)):
                found[scope][day] += each.gpus * hours * float(price or 0) * shares[scope]
    return found


def committed_charges(person: int, teams: Collection[int], now: datetime, end: datetime) -> DailySpend:
    """Return the certain charges of each day from ``now`` to ``end``, of some teams and of one person.

    Work and reservations of the person count in every team. ``committed_spend`` has the rules.
    """
    card, found = load_rate_card(), defaultdict[date, float](float)
    of_teams = Q(project__team__in=teams)
    running = _running_work(card, now, of_teams | Q(workload__owner=person))
    for each in (*running, *_booked_reservations(card, now, end, of_teams | Q(owner=person))):
        if each.price is not None:
            for day, hours in hours_by_day(max(each.start, now), min(each.end, end)):
                found[day] += each.gpus * hours * float(each.price)
    return found


def hours_by_day(start: datetime, end: datetime) -> Iterator[tuple[date, float]]:
    """Yield each billing day of ``[start, end)`` with its hours in the interval."""
    calendar = billing_calendar()
    while start < end:
        midnight = calendar.next_midnight(start)
        yield calendar.day_of(start), (min(end, midnight) - start).total_seconds() / 3600
        start = midnight


def _shares_by_owner(commitment: _Commitment, split: CostSplit, currency: str) -> dict[SpendScope, float]:
    """Return the part of a commitment that counts for each owner, from 0 to 1.

    The whole commitment counts for the team and the project. For a cost centre, its share counts.
    """
    owners = dict.fromkeys(owners_of(commitment.team, commitment.project, "", currency), 1.0)
    for share in split:
        [*_, scope] = owners_of(commitment.team, commitment.project, share.code, currency)
        owners[scope] = float(share.percent) / 100
    return owners


def _running_work(card: RateCard, now: datetime, of: Q | None = None) -> Iterator[_Commitment]:
    """Yield the commitment of each running allocation that matches ``of``.

    Work inside a reservation is left out. It costs nothing more, because the whole window of a reservation is
    charged, whether used or not.
    """
    held = Allocation.objects.filter(of or Q(), period__upper_inf=True, reservation__isnull=True)
    columns = (
        "project__team_id",
        "project_id",
        "period",
        "slots",
        "workload__predicted_seconds",
        "unit__gpu__pool_id",
        "unit__gpu__model",
        "workload__priority",
        "workload__type",
    )
    factors = load_price_factors()
    for team, project, period, slots, seconds, pool, model, priority, kind in held.values_list(*columns):
        rate = card.at(pool, model, now)
        yield _Commitment(
            team,
            project,
            now,
            period.lower + timedelta(seconds=seconds),
            (slots.upper - slots.lower) / SLOTS_PER_GPU,
            None if rate is None else rate.price_with(factors.at(pool, priority, kind, now)),
        )


def _booked_reservations(
    card: RateCard, now: datetime, end: datetime, of: Q | None = None
) -> Iterator[_Commitment]:
    """Yield the commitment of each booked reservation that matches ``of``."""
    booked = list(
        Reservation.objects.filter(of or Q(), start__lt=end, end__gt=now, state__in=OPEN_RESERVATION_STATES)
        .select_related("project")
        .order_by("pk")
    )
    pools = {row.pool_id for row in booked}
    sizes = _unit_sizes(pools, {row.profile for row in booked})
    models: dict[int, set[str]] = defaultdict(set)
    for pool, model in (
        Gpu.objects.filter(Q(host__pool__in=pools), retired_at=None)
        .values_list("host__pool_id", "model")
        .distinct()
    ):
        models[pool].add(model)
    for row in booked:
        rates = [card.at(row.pool_id, model, now) for model in row.models_wanted or models[row.pool_id]]
        slots = sizes.get((row.pool_id, row.profile), SLOTS_PER_GPU)
        yield _Commitment(
            row.project.team_id,
            row.project_id,
            row.start,
            row.end,
            row.units * row.hosts * slots / SLOTS_PER_GPU,
            min((rate.price for rate in rates if rate is not None), default=None),
        )


def _unit_sizes(pools: Collection[int], profiles: Collection[str]) -> dict[tuple[int, str], int]:
    """Return the size in slots of the smallest unit of each MIG profile, by pool id and profile name."""
    rows = Unit.objects.filter(gpu__host__pool__in=pools, profile__in=profiles, retired_at=None)
    sizes: dict[tuple[int, str], int] = {}
    for pool, profile, slots in rows.values_list("gpu__host__pool_id", "profile", "slots").distinct():
        size = slots.upper - slots.lower
        sizes[pool, profile] = min(size, sizes.get((pool, profile), size))
    return sizes
