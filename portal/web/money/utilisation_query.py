"""Define the query of the utilisation page, and results that several charts share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from portal.models import User
from scheduler.models import Pool, Team
from telemetry.reads.pooling import PoolingSavings, pooling_savings
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_rows import UsageRows
from telemetry.reads.wait_times import GroupWaitTimes, wait_times
from telemetry.reads.waterfall import UsageWaterfall, usage_waterfall

DIMENSIONS = (
    ("team", "Team"),
    ("project", "Project"),
    ("user", "Person"),
    ("type", "Workload type"),
    ("model", "Model"),
    ("host", "Host"),
    ("gpu", "GPU"),
)
# Everybody who may use a pool may see sums by these dimensions, because they name no person or workload.
ANONYMOUS_DIMENSIONS = {"model", "host", "gpu", "type", "team"}


@dataclass
class UtilisationQuery:
    """The filters of the utilisation page, and the results that its charts share.

    ``mine`` contains the ids of the teams whose names the viewer may see. None means all teams.
    """

    filters: UsageFilters
    mine: list[int] | None
    viewer: User
    dimension: str
    pools: list[Pool]
    teams: list[Team]
    models: list[str]
    now: datetime
    currency: str

    @cached_property
    def usage_rows(self) -> UsageRows:
        """Return the usage rows that several charts share."""
        return UsageRows(self.filters)

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
    def saving(self) -> PoolingSavings:
        return pooling_savings(self.filters, self.usage_rows)

    @cached_property
    def waits_by_size(self) -> list[GroupWaitTimes]:
        return wait_times("size", self.filters)
