"""Define the filters of the utilisation page, and the results that its charts and API answers share."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from portal import policy
from portal.models import User
from portal.reads.fleet.demand_forecast import DemandOutlook, demand_outlook
from portal.reads.fleet.utilisation import HostGpus, NamedWork, names_of_work, visible_works
from portal.reads.utilisation.period import UtilisationPeriod
from portal.reads.utilisation.right_sizing import SizingAdvice, sizing_advice
from scheduler.models import Pool, Team
from telemetry.reads.demand import HourlyDemand, hourly_demand
from telemetry.reads.pooling import PoolingSavings, pooling_savings
from telemetry.reads.usage_by_group import UsageTable, mean_gpus_by, usage_by
from telemetry.reads.usage_filters import CUBE_DIMENSIONS, UsageFilters
from telemetry.reads.usage_over_time import UsageSeries, usage_over_time
from telemetry.reads.usage_rows import UsageRows, load_charges, load_holds, load_hours, load_rollups
from telemetry.reads.utilisation.events import UseEvent, use_events
from telemetry.reads.utilisation.waste import WASTE_STEPS, WasteRow, waste_by, waste_trends
from telemetry.reads.wait_times import WAIT_GROUPS, GroupWaitTimes, wait_times
from telemetry.reads.waterfall import UsageWaterfall, WorkKey, usage_waterfall, use_dimension

DIMENSIONS = (
    ("team", "Team"),
    ("project", "Project"),
    ("user", "Person"),
    ("type", "Workload type"),
    ("model", "Model"),
    ("host", "Host"),
    ("gpu", "GPU"),
)
UNITS = ("hours", "money")
# The parameter "waste" and the ranking of telemetry.reads.utilisation.waste.
RANKING_DIMENSIONS = (("person", "user"), ("project", "project"), ("workload", "workload"))
# Whole weeks, so that the compared period has the same weekdays; "before" is as long as the period.
COMPARISONS: dict[str, timedelta | None] = {
    "before": None,
    "4w": timedelta(weeks=4),
    "52w": timedelta(weeks=52),
    "off": None,
}
# Everybody who may use a pool may see sums by these dimensions, because they name no person or workload.
ANONYMOUS_DIMENSIONS = {"model", "host", "gpu", "type", "team"}
MAX_WORK_POINTS = 60
LISTED_ROWS = 10  # of the waste, unless all rows are asked for


def dimensions_of(filters: UsageFilters) -> list[str]:
    """Return the dimensions that a period can be grouped by."""
    return [name for name, _ in DIMENSIONS if name in CUBE_DIMENSIONS or not filters.is_long]


def rankings_of(filters: UsageFilters) -> list[str]:
    """Return the values of the parameter "waste" for a period, the default last."""
    return [name for name, ranking in RANKING_DIMENSIONS if ranking in CUBE_DIMENSIONS or not filters.is_long]


@dataclass
class UtilisationScope:
    """The filters of the utilisation page, and the results that its charts share.

    ``mine`` contains the ids of the teams whose names the viewer may see. None means all teams.
    ``parameters`` are those of the address. ``unit`` is one of UNITS. ``compared`` is how much earlier the
    compared period is; None without a comparison.
    """

    filters: UsageFilters
    period: UtilisationPeriod
    mine: list[int] | None
    viewer: User
    dimension: str
    pools: list[Pool]
    teams: list[Team]
    models: list[str]
    host_gpus: list[HostGpus]
    now: datetime
    currency: str
    parameters: dict[str, str] = field(default_factory=dict)
    unit: str = "hours"
    ranking: str = "workload"
    waits: str = "size"
    compared: timedelta | None = None
    # Returns the teams that the viewer leads, if the caller has read them. Otherwise they are read if needed.
    led_teams: Callable[[], frozenset[int]] | None = None
    # The zone of the organisation, for figures that must not depend on the viewer.
    fixed_zone: ZoneInfo = ZoneInfo("UTC")

    @cached_property
    def usage_rows(self) -> UsageRows:
        """Return the usage rows that several charts share."""
        return UsageRows(self.filters)

    def load_shared_rows(self) -> None:
        """Load the rows that most charts share. Related rows are loaded with one query."""
        now, before = self.usage_rows, self.rows_before
        both = [now] if before is None else [now, before]
        use = use_dimension(self.filters)
        load_charges(both)
        load_rollups([(now, "team"), *((rows, use) for rows in both)])
        load_hours([(now, "team")])
        if not self.filters.is_long:
            load_holds([(rows, "team") for rows in both])

    def filters_for_names(self, dimension: str) -> UsageFilters:
        """Return the filters of a chart whose groups have names, such as names of people.

        They select only the viewer's teams, unless everybody may see the sums by this dimension.
        """
        if self.mine is None or dimension in ANONYMOUS_DIMENSIONS:
            return self.filters
        return dataclasses.replace(self.filters, teams=self.mine)

    @cached_property
    def waterfall(self) -> UsageWaterfall:
        return usage_waterfall(self.filters, self.usage_rows)

    @cached_property
    def waterfall_before(self) -> UsageWaterfall | None:
        """Return the waterfall of the compared period, without its parts and costs.

        The result is None without a comparison or without capacity.
        """
        if self.rows_before is None:
            return None
        fall = usage_waterfall(self.rows_before.filters, self.rows_before, with_parts=False)
        return fall if fall.gpu_hours else None

    @cached_property
    def rows_before(self) -> UsageRows | None:
        """Return the usage rows of the compared period; None without a comparison."""
        if self.compared is None:
            return None
        start, end = self.filters.start - self.compared, self.filters.end - self.compared
        filters = dataclasses.replace(self.filters, start=start, end=end)
        return UsageRows(filters, self.usage_rows.state)

    @cached_property
    def waste(self) -> list[WasteRow]:
        """Return the wasted time by the chosen ranking, in order of the chosen unit.

        The parameter ``step`` leaves only one step of the waterfall.
        """
        ranking = dict(RANKING_DIMENSIONS)[self.ranking]
        rows = waste_by(ranking, self.filters, self.waterfall.parts, self.usage_rows, self.waste_steps)
        return sorted(rows, key=lambda row: -row.cost) if self.unit == "money" else rows

    @property
    def waste_steps(self) -> Sequence[str]:
        """Return the steps of the waterfall that count as waste: one of them with the parameter ``step``."""
        return [self.parameters["step"]] if "step" in self.parameters else WASTE_STEPS

    @cached_property
    def held_longest(self) -> list[WasteRow]:
        """Return the workloads that held most and whose use is measured; of a long period, the projects."""
        ranking = "project" if self.filters.is_long else "workload"
        if self.ranking == ranking and "step" not in self.parameters:
            rows = self.waste
        else:
            rows = waste_by(ranking, self.filters, self.waterfall.parts, self.usage_rows)
        measured = [row for row in rows if row.busy is not None and row.sm_active is not None]
        return sorted(measured, key=lambda row: -row.held_hours)[:MAX_WORK_POINTS]

    @cached_property
    def names(self) -> dict[WorkKey, NamedWork]:
        """Return the names of the works in ``waste`` and ``held_longest`` that the viewer may see."""
        return names_of_work(self.viewer, {row.work for row in (*self.waste, *self.held_longest)})

    @cached_property
    def named_works(self) -> set[WorkKey]:
        """Return the works in ``waste`` that the viewer may see by name."""
        return visible_works(self.viewer, {row.work for row in self.waste})

    @cached_property
    def listed_waste(self) -> list[WasteRow]:
        """Return the first rows of ``waste`` that the viewer may see by name; with "shown", all of them."""
        named = [row for row in self.waste if row.work in self.named_works]
        return named if "shown" in self.parameters else named[:LISTED_ROWS]

    @cached_property
    def trends(self) -> dict[WorkKey, list[float | None]]:
        """Return the trend of each row of ``listed_waste`` that has one."""
        ranking = dict(RANKING_DIMENSIONS)[self.ranking]
        return waste_trends(ranking, self.usage_rows, (row.work for row in self.listed_waste))

    @cached_property
    def listed_names(self) -> dict[WorkKey, NamedWork]:
        """Return the part of ``names`` that the page shows: ``listed_waste`` and ``held_longest``."""
        return names_of_work(self.viewer, {row.work for row in (*self.listed_waste, *self.held_longest)})

    @cached_property
    def held_teams(self) -> dict[int, Team]:
        """Return the teams that held GPUs in the period, by id."""
        visible = {team.pk: team for team in self.teams}
        keys = {line.key for line in self.series if line.key is not None}
        others = Team.with_removed.in_bulk(keys - set(visible))
        return {key: visible.get(key) or others[key] for key in keys}

    @cached_property
    def series(self) -> list[UsageSeries]:
        """Return the held and busy GPUs of each team over time."""
        return usage_over_time(self.filters, dimension="team", reads=self.usage_rows, zone=self.period.zone)

    @cached_property
    def use_by_team(self) -> UsageTable:
        return usage_by("team", self.filters, self.usage_rows)

    @cached_property
    def use_by(self) -> UsageTable:
        """Return the use by the chosen dimension, of the groups whose names the viewer may see."""
        if self.dimension == "team":
            return self.use_by_team
        filters = self.filters_for_names(self.dimension)
        table = usage_by(self.dimension, filters, self.usage_rows if filters is self.filters else None)
        visible = policy.named_hardware(self.viewer, self.dimension)
        if visible is None:
            return table
        return dataclasses.replace(table, groups=[group for group in table.groups if group.key in visible])

    @cached_property
    def sees_charged(self) -> Callable[[Any], bool]:
        """Return a function that says whether the viewer may see the charges of a group of ``use_by``."""
        return policy.group_charge_right(self.viewer, self.dimension, self.led_teams)

    @cached_property
    def held_before(self) -> dict[Any, float] | None:
        """Return the mean held GPUs of the groups of ``use_by`` in the compared period.

        The result is None without a comparison or without capacity.
        """
        before = self.rows_before
        if before is None or self.waterfall_before is None:
            return None
        start, end = before.filters.start, before.filters.end
        filters = dataclasses.replace(self.filters_for_names(self.dimension), start=start, end=end)
        reads = before if filters == before.filters else UsageRows(filters, before.state)
        return mean_gpus_by(self.dimension, reads)

    @cached_property
    def demand(self) -> HourlyDemand:
        return hourly_demand(self.filters, self.usage_rows, self.period.zone, self.now)

    @cached_property
    def outlook(self) -> DemandOutlook:
        """Return the demand of the next weeks. Only the filters of pool and model apply."""
        pools = [pool for pool in self.pools if self.filters.pool in (None, pool.pk)]
        models = [self.filters.model] if self.filters.model else []
        present: Counter[tuple[int, str]] = Counter()
        for each in self.host_gpus:
            present[each.pool, each.model] += each.count
        return demand_outlook(pools, models, self.now, self.fixed_zone, present)

    @cached_property
    def sizings(self) -> list[SizingAdvice]:
        return sizing_advice(self.viewer, self.filters, self.now, self.led_teams)

    @cached_property
    def saving(self) -> PoolingSavings:
        return pooling_savings(self.filters, self.usage_rows)

    @cached_property
    def waits_by(self) -> dict[str, list[GroupWaitTimes]]:
        """Return the waiting times by size, model and team."""
        return wait_times(WAIT_GROUPS, self.filters)

    @cached_property
    def events(self) -> list[UseEvent]:
        """Return what changed the use or the capacity in the period, as far as the viewer may see it."""
        pools = [pool.pk for pool in self.pools if self.filters.pool in (None, pool.pk)]
        return use_events(
            self.filters.start,
            min(self.filters.end, self.now),
            pools=pools,
            model=self.filters.model,
            currency=self.currency,
            with_months=policy.sees_all_charges(self.viewer),
        )

    @cached_property
    def waits_before(self) -> list[GroupWaitTimes]:
        """Return the waiting times by size in the compared period; nothing without a comparison."""
        if self.rows_before is None:
            return []
        return wait_times(("size",), self.rows_before.filters)["size"]

    @property
    def waits_by_size(self) -> list[GroupWaitTimes]:
        return self.waits_by["size"]
