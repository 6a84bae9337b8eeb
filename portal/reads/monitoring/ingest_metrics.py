"""Read the metrics of telemetry: the stream of samples, late hosts, faults, and the age of rollups."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db.models import Count, Exists, Min, OuterRef, Q, Sum
from redis.exceptions import RedisError

from portal.reads.monitoring.definitions import MetricValues
from portal.reads.monitoring.pool_metrics import PoolSlugs
from scheduler.models import Gpu, Host
from scheduler.state.states import LeaseState
from telemetry.ingest.redis_client import redis_client
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.models import ReadingFault, SampleWatermark
from telemetry.reads.live_readings import STALE_AFTER
from telemetry.reads.usage_filters import data_freshness


def ingest_metrics(pools: PoolSlugs, now: datetime) -> dict[str, MetricValues]:
    """Return the metrics of the ingest. Makes five queries, and one request to Valkey."""
    late, complete = _late_hosts(pools, now)
    batches = SampleWatermark.objects.aggregate(total=Sum("sequence"))["total"] or 0
    fresh = data_freshness()
    return {
        "gpupool_ingest_waiting_batches": _waiting_batches(),
        "gpupool_ingest_batches_total": [((), batches)],
        "gpupool_telemetry_hosts_late": late,
        "gpupool_telemetry_complete_timestamp_seconds": complete,
        "gpupool_reading_faults_total": _faults_of_the_day(pools, now),
        "gpupool_rollups_timestamp_seconds": _timestamp(fresh.rolled_up_until),
        "gpupool_charges_complete_timestamp_seconds": _timestamp(fresh.charged_until),
    }


def _waiting_batches() -> MetricValues:
    """Return the length of the stream. Without Valkey the length is unknown, so the result is empty."""
    try:
        return [((), redis_client().xlen(SAMPLE_STREAM_KEY))]
    except RedisError:
        return []


def _late_hosts(pools: PoolSlugs, now: datetime) -> tuple[MetricValues, MetricValues]:
    """Return, for each pool, the number of late hosts, and the time up to which all its hosts have sent
    samples. Only hosts with contact to the server count.
    """
    present = Gpu.objects.filter(host=OuterRef("pk"), retired_at=None)
    hosts = Host.objects.filter(Exists(present), lease_state=LeaseState.ALIVE, pool__in=pools).order_by()
    until = "samplewatermark__sampled_until"
    is_late = Q(**{f"{until}__lt": now - STALE_AFTER}) | Q(**{f"{until}__isnull": True})
    late = dict.fromkeys(pools.values(), 0)
    complete: MetricValues = []
    for pool, count, earliest in hosts.values_list("pool_id").annotate(
        late=Count("pk", filter=is_late), earliest=Min(until)
    ):
        late[pools[pool]] = count
        if earliest is not None:
            complete.append(((pools[pool],), earliest.timestamp()))
    return [((slug,), count) for slug, count in late.items()], complete


def _faults_of_the_day(pools: PoolSlugs, now: datetime) -> MetricValues:
    counts = {(slug, str(kind)): 0 for slug in pools.values() for kind in ReadingFault.Kind.values}
    of_today = ReadingFault.objects.filter(day=now.astimezone(UTC).date(), host__pool__in=pools).order_by()
    for pool, kind, count in of_today.values_list("host__pool_id", "kind").annotate(Sum("count")):
        counts[pools[pool], kind] = count
    return list(counts.items())


def _timestamp(at: datetime | None) -> MetricValues:
    return [] if at is None else [((), at.timestamp())]
