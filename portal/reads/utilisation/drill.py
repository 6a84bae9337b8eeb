"""Return the use of one host, of one GPU and of one run, down to the samples.

Sums by GPU are visible to everybody who may use the pool. A run is named only to people who may see its
work, and only they get its samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from portal import policy
from portal.errors import ObjectNotFound
from portal.reads.utilisation.query import UtilisationScope
from portal.wording.pages.money import drill_texts
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Allocation, Gpu, Host, Workload
from telemetry.models import Rollup
from telemetry.reads.utilisation.raw_series import Points, raw_series
from telemetry.rollups.storage import rollup_condition

HOUR = timedelta(hours=1)
MAX_RUNS = 200
MAX_INDEX_DIGITS = 5
_GPU_HOURS_SQL = """
SELECT unit.gpu_id, used.bucket,
    sum(used.utilisation_seconds * (upper(unit.slots) - lower(unit.slots)))
        / nullif(sum(used.covered_seconds * (upper(unit.slots) - lower(unit.slots)))
            FILTER (WHERE used.utilisation_seconds IS NOT NULL), 0)
FROM telemetry_rollup AS used JOIN scheduler_unit AS unit ON unit.id = used.unit_id
WHERE used.unit_id = ANY(ARRAY(SELECT id FROM scheduler_unit WHERE gpu_id = ANY(%s))) AND {buckets}
GROUP BY 1, 2
"""


@dataclass(frozen=True)
class GpuHours:
    """The busy share of one GPU, 0 to 1, in each hour of the period; None if nothing was measured."""

    gpu: Gpu
    busy: list[float | None]


@dataclass(frozen=True)
class GpuRun:
    """A workload that held a GPU. ``workload`` is None if the viewer may not see it."""

    workload: Workload | None
    start: datetime
    end: datetime | None
    share: float  # of the GPU


@dataclass(frozen=True)
class HeldRun:
    """A workload on one GPU: the part of the period in which it held the GPU, its units and allocations."""

    workload: Workload
    start: datetime
    end: datetime
    units: list[int]
    allocations: list[int]


@dataclass(frozen=True)
class RunSamples:
    """The samples of a workload on one GPU, in the part of the period in which it held the GPU."""

    workload: Workload
    start: datetime
    end: datetime
    series: dict[str, Points]


def chosen_host(scope: UtilisationScope, name: str) -> Host:
    """Return a visible host. Raises ObjectNotFound for any other name."""
    found = policy.visible_hosts(scope.viewer).filter(name=name).select_related("pool").first()
    if found is None:
        raise ObjectNotFound("host", name, drill_texts.ALLOWED_HOST)
    return found


def chosen_gpu(scope: UtilisationScope, host: Host, index: str) -> Gpu:
    """Return a GPU of a host. Raises ObjectNotFound for any other index."""
    gpus = Gpu.objects.filter(host=host, retired_at=None)
    is_number = index.isascii() and index.isdigit() and len(index) <= MAX_INDEX_DIGITS
    found = gpus.filter(index=int(index)).first() if is_number else None
    if found is None:
        listed = ", ".join(str(number) for number in gpus.order_by("index").values_list("index", flat=True))
        raise ObjectNotFound("gpu", index, listed or drill_texts.NO_GPU)
    return found


def hours_of(scope: UtilisationScope) -> list[datetime]:
    """Return the starts of the hours of the period that have begun."""
    first = scope.filters.start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    end = min(scope.filters.end, scope.now)
    return [first + number * HOUR for number in range(max(0, -int((first - end) // HOUR)))]


def gpu_hours(scope: UtilisationScope, host: Host) -> list[GpuHours]:
    """Return the hours of each GPU of a host, in order of the index. A long period has none."""
    gpus = list(Gpu.objects.filter(host=host, retired_at=None).order_by("index"))
    starts = hours_of(scope)
    known: dict[tuple[int, datetime], float | None] = {}
    if not scope.filters.is_long and starts:
        buckets, values = rollup_condition(Rollup.Resolution.HOUR, starts[0], scope.filters.end)
        with connection.cursor() as cursor:
            cursor.execute(_GPU_HOURS_SQL.format(buckets=buckets), [[gpu.pk for gpu in gpus], *values])
            known = {(gpu, bucket): share for gpu, bucket, share in cursor.fetchall()}
    return [GpuHours(gpu, [_share(known.get((gpu.pk, start))) for start in starts]) for gpu in gpus]


def gpu_runs(scope: UtilisationScope, gpu: Gpu) -> list[GpuRun]:
    """Return the runs on a GPU in the period, newest first, at most MAX_RUNS."""
    held = _held(scope, gpu).select_related("workload__project__team", "unit").order_by("-period")
    rows = list(held[:MAX_RUNS])
    seen = set(
        policy.visible_workloads(scope.viewer)
        .filter(pk__in=[row.workload_id for row in rows])
        .values_list("pk", flat=True)
    )
    return [
        GpuRun(
            row.workload if row.workload_id in seen else None,
            row.period.lower,
            row.period.upper,
            (row.unit.slots.upper - row.unit.slots.lower) / SLOTS_PER_GPU,
        )
        for row in rows
    ]


def held_run(scope: UtilisationScope, gpu: Gpu, run: str) -> HeldRun:
    """Return when a run held a GPU. Raises ObjectNotFound unless the viewer may see its work."""
    visible = policy.visible_workloads(scope.viewer).select_related("project__team", "owner")
    workload = visible.filter(public_id=run).first() if _is_id(run) else None
    held = list(_held(scope, gpu).filter(workload=workload)) if workload else []
    if workload is None or not held:
        raise ObjectNotFound("run", run, drill_texts.ALLOWED_RUN)
    start = max(scope.filters.start, min(row.period.lower for row in held))
    end = min(
        scope.filters.end, scope.now, max((row.period.upper or scope.now for row in held), default=scope.now)
    )
    return HeldRun(workload, start, end, [row.unit_id for row in held], [row.pk for row in held])


def run_samples(scope: UtilisationScope, gpu: Gpu, run: str) -> RunSamples:
    """Return the samples of a run on a GPU. Raises ObjectNotFound unless the viewer may see its work."""
    held = held_run(scope, gpu, run)
    series = raw_series(held.units, held.allocations, held.start, held.end)
    return RunSamples(held.workload, held.start, held.end, series)


def _held(scope: UtilisationScope, gpu: Gpu) -> Any:
    period = (scope.filters.start, scope.filters.end)
    return Allocation.objects.filter(unit__gpu=gpu, workload__isnull=False, period__overlap=period)


def _share(value: Any) -> float | None:
    return None if value is None else min(1.0, float(value))


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
