"""Advise people and teams what to ask for next time, from the reports of their ended runs, with money."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from portal import policy
from portal.models import User
from portal.reads.money import cost_totals
from portal.wording.capacity import right_sizing_texts
from scheduler.models import Project, Workload
from telemetry.core.amounts import HOURS_PER_MONTH, round_amount
from telemetry.core.capacity.right_sizing import RightSizing, right_sizings
from telemetry.core.currencies import smallest_unit
from telemetry.reads.capacity.reported_runs import reported_runs
from telemetry.reads.usage_filters import UsageFilters


@dataclass(frozen=True)
class SizingAdvice:
    """Advice for repeated work of a person. ``saved`` is the money of the period; None if it is unknown, or
    if the viewer may not see the charges of the work.

    ``url`` opens the report of the last of these runs.
    """

    sizing: RightSizing
    project: Project
    person: str
    url: str
    saved: Decimal | None
    saved_per_month: Decimal | None
    currency: str

    @property
    def headline(self) -> str:
        """Return what to ask for, as in the report of a run."""
        return right_sizing_texts.headline(self.sizing)

    @property
    def evidence(self) -> str:
        """Return the number of runs with the advice, and their numbers."""
        return right_sizing_texts.evidence(self.sizing, self.project.name)


def sizing_advice(
    viewer: User,
    filters: UsageFilters,
    now: datetime,
    led_teams: Callable[[], frozenset[int]] | None = None,
) -> list[SizingAdvice]:
    """Return the advice that the viewer may see, in order of saved GPU-hours.

    People see the advice for their own work, and leads that for the work of their teams. The saved money
    reveals the cost, so only people who may see the charges of the work see it. ``led_teams`` returns the
    teams that the viewer leads, if the caller has read them.
    """
    led = policy.teams_whose_waste_is_named(viewer)
    if led is not None:
        filters = replace(filters, teams=led, users=[viewer.pk])
    found = right_sizings(reported_runs(filters))
    if not found:
        return []
    last = Workload.objects.select_related("project__team", "owner").in_bulk(
        [max(each.saved) for each in found]
    )
    # Most ended runs are charged completely. The present prices are read only for the others.
    prices: Any = SimpleLazyObject(lambda: cost_totals.prices(now))
    may_see = policy.charge_right(viewer, led_teams)
    # All runs of one advice have the same project and the same owner.
    priced = [each for each in found if may_see(last[max(each.saved)])]
    costs = cost_totals.workload_costs({pk for each in priced for pk in each.saved}, now, prices)
    return [
        SizingAdvice(
            each,
            (workload := last[max(each.saved)]).project,
            workload.owner.username,
            reverse("workload-report", args=[workload.public_id]),
            saved := _saved(each, costs, filters.currency),
            None if saved is None else _per_month(saved, filters),
            filters.currency,
        )
        for each in found
    ]


def _saved(sizing: RightSizing, costs: dict[int, cost_totals.CurrencySums], currency: str) -> Decimal | None:
    """Return the saved part of the cost of the advised runs; None if the cost of one is unknown."""
    total = Decimal(0)
    for pk, share in sizing.saved.items():
        if pk not in costs:
            return None
        total += costs[pk].get(currency, Decimal(0)) * Decimal(str(round(share, 6)))
    return round_amount(total, smallest_unit(currency))


def _per_month(saved: Decimal, filters: UsageFilters) -> Decimal:
    """Scale the amount of the period to a month."""
    return round_amount(
        saved * HOURS_PER_MONTH / Decimal(str(filters.hours)), smallest_unit(filters.currency)
    )
