"""Read data of the utilisation page that is not in ``telemetry.reads``."""

from __future__ import annotations

from portal import policy
from portal.models import User
from telemetry.models import Rollup
from telemetry.reads.usage_filters import UsageFilters


def visible_gpu_models(viewer: User) -> list[str]:
    """Return every GPU model of the visible pools."""
    return sorted(set(policy.visible_gpus(viewer).filter(retired_at=None).values_list("model", flat=True)))


def has_simulated_use(filters: UsageFilters) -> bool:
    """Return True if a part of the filtered use is simulated history."""
    rows = Rollup.objects.filter(
        resolution=Rollup.Resolution.HOUR, bucket__gte=filters.start, bucket__lt=filters.end
    )
    return rows.filter(simulated=True).exists()
