"""Read the metrics of pools, hosts, queues and the engine. The number of queries is fixed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db.models import Count, F, Min, Q, Sum

from portal.reads.fleet.alerts import open_alert_counts
from portal.reads.fleet.gpu_overview import ATTENTION_WINDOW
from portal.reads.fleet.host_details import host_state
from portal.reads.monitoring.definitions import MetricValues
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Gpu, Host, Leader, Quota, Team, Workload, WorkloadKind
from scheduler.reads import capacity
from scheduler.state.states import AdminState, LeaseState, RepairState, WorkloadState
from telemetry.models import HealthEvent, HealthRule, Stray

CODE_WITHOUT_RULE = "other"  # hosts can report any code, so the number of label values would have no limit
REASON_WITHOUT_PLAN = "not_planned"
_NORMAL = (LeaseState.ALIVE, AdminState.IN_SERVICE, RepairState.WELL)
HOST_STATES = (
    "ready",
    *(s for kind in (RepairState, LeaseState, AdminState) for s in kind if s not in _NORMAL),
)
OPEN_WORKLOAD_STATES = tuple(state for state in WorkloadState if state != WorkloadState.ENDED)

PoolSlugs = Mapping[int, str]  # the slugs of the present pools, by id


def gpu_metrics(pools: PoolSlugs, now: datetime) -> dict[str, MetricValues]:
    """Return the GPUs of each pool by state and by repair state. Takes two queries."""
    occupied: MetricValues = []
    occupancy = capacity.occupancy_of_pools(now)
    for pool, slug in pools.items():
        for each in occupancy.get(pool, ()):
            states = {
                "held": each.held,
                "reserved": each.bound_unused,
                "free": each.free,
                "closed": each.closed,
            }
            occupied += [
                ((slug, each.model, state), slots / SLOTS_PER_GPU) for state, slots in states.items()
            ]
    rows = Gpu.objects.filter(retired_at=None, host__removed_at=None, host__pool__in=pools).order_by()
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(RepairState, 0))
    for pool, model, state, count in rows.values_list("host__pool_id", "model", "repair_state").annotate(
        Count("pk")
    ):
        counts[pools[pool], model][state] = count
    return {
        "gpupool_pool_gpus": occupied,
        "gpupool_gpus": [
            ((*of, str(state)), count) for of, states in counts.items() for state, count in states.items()
        ],
    }


def host_metrics(pools: PoolSlugs, now: datetime) -> dict[str, MetricValues]:
    """Return the hosts of each pool by state, their hardware events and stray processes.

    Takes four queries.
    """
    states = {(slug, str(state)): 0 for slug in pools.values() for state in HOST_STATES}
    full = dict.fromkeys(pools.values(), 0)
    columns = ("pool_id", "lease_state", "admin_state", "repair_state", "disk_full")
    for *values, count in (
        Host.objects.filter(pool__in=pools).order_by().values_list(*columns).annotate(Count("pk"))
    ):
        host = Host(**dict(zip(columns, values, strict=True)))
        states[pools[host.pool_id], host_state(host)] += count
        full[pools[host.pool_id]] += count if host.disk_full else 0
    known = set(HealthRule.objects.values_list("code", flat=True))
    events: dict[tuple[str, str], int] = defaultdict(int)
    present = {"host__removed_at": None, "host__pool__in": pools}
    recent = HealthEvent.objects.filter(at__gt=now - ATTENTION_WINDOW, at__lte=now, **present)
    for pool, code, count in recent.order_by().values_list("host__pool_id", "code").annotate(Count("pk")):
        events[pools[pool], code if code in known else CODE_WITHOUT_RULE] += count
    strays = dict.fromkeys(pools.values(), 0)
    for pool, count in (
        Stray.objects.filter(gone_at=None, **present)
        .order_by()
        .values_list("host__pool_id")
        .annotate(Count("pk"))
    ):
        strays[pools[pool]] = count
    return {
        "gpupool_hosts": list(states.items()),
        "gpupool_hosts_disk_full": _by_pool(full),
        "gpupool_health_events": list(events.items()),
        "gpupool_stray_processes": _by_pool(strays),
    }


def team_metrics(pools: PoolSlugs, teams: Iterable[Team], now: datetime) -> dict[str, MetricValues]:
    """Return the GPUs that teams hold, and the GPUs that quotas guarantee to them. Takes three queries."""
    slugs = {team.pk: team.slug for team in teams}
    guaranteed = {
        (quota.team_id, quota.pool_id, quota.model): quota.guaranteed_slots
        for quota in Quota.objects.filter(team__in=slugs)
    }
    held = {**dict.fromkeys(guaranteed, 0), **capacity.held_by_team(list(slugs), now)}
    found = {"gpupool_team_gpus_held": held, "gpupool_team_gpus_guaranteed": guaranteed}
    return {
        name: [
            ((pools[pool], model, slugs[team]), slots / SLOTS_PER_GPU)
            for (team, pool, model), slots in rows.items()
            if pool in pools
        ]
        for name, rows in found.items()
    }


def workload_metrics(pools: PoolSlugs) -> dict[str, MetricValues]:
    """Return the workloads of each pool by kind and state, and its queue. Takes two queries."""
    counts = {
        (slug, str(kind), str(state)): 0
        for slug in pools.values()
        for kind in WorkloadKind.values
        for state in OPEN_WORKLOAD_STATES
    }
    present = Workload.objects.filter(~Q(state=WorkloadState.ENDED), pool__in=pools).order_by()
    for pool, kind, state, count in present.values_list("pool_id", "kind", "state").annotate(Count("pk")):
        counts[pools[pool], kind, state] = count
    reasons: dict[tuple[str, str], int] = {}
    requested = dict.fromkeys(pools.values(), 0)
    oldest: dict[str, float] = {}
    waiting = Workload.objects.filter(state=WorkloadState.QUEUED, pool__in=pools).order_by()
    queues = waiting.values_list("pool_id", "reason_code").annotate(
        count=Count("pk"), requested=Sum(F("units") * F("hosts")), oldest=Min("queued_at")
    )
    for pool, reason, count, units, since in queues:
        slug = pools[pool]
        reasons[slug, reason or REASON_WITHOUT_PLAN] = count
        requested[slug] += units
        oldest[slug] = min(oldest.get(slug, since.timestamp()), since.timestamp())
    return {
        "gpupool_workloads": list(counts.items()),
        "gpupool_queue_workloads": list(reasons.items()),
        "gpupool_queue_requested_units": _by_pool(requested),
        "gpupool_queue_oldest_timestamp_seconds": _by_pool(oldest),
    }


def alert_metrics(pools: PoolSlugs) -> dict[str, MetricValues]:
    """Return the number of open alerts. Takes one query."""
    counts = open_alert_counts(pools)
    return {"gpupool_alerts": [((pools[pool], kind, state), count) for pool, kind, state, count in counts]}


def engine_metrics() -> dict[str, MetricValues]:
    """Return the time and the duration of the last planning cycle. Takes one query."""
    leader = Leader.objects.first()
    at = leader.last_cycle_at if leader else None
    seconds = leader.last_cycle_seconds if leader else None
    return {
        "gpupool_engine_last_cycle_timestamp_seconds": [] if at is None else [((), at.timestamp())],
        "gpupool_engine_last_cycle_duration_seconds": [] if seconds is None else [((), seconds)],
    }


def _by_pool(values: Mapping[str, float]) -> MetricValues:
    return [((slug,), value) for slug, value in values.items()]
