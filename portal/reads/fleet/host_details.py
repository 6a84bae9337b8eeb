"""Read one host for its page: hardware, holders of its GPUs, events, and the work that remains on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from django.db.models import F, Max, Min, Q
from django.db.models.functions import Coalesce

from portal import policy
from portal.models import User
from scheduler.core.fit.mig_layout import layout_text
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.cycle import schedulable_hosts
from scheduler.models import Allocation, BoundUnit, Host, Unit, Workload
from scheduler.runs.commands import LIVE_STATES
from scheduler.state.isolation import Isolation, missing_levels
from scheduler.state.states import TERMINATING_STATES, AdminState, LeaseState, RepairState
from telemetry.models import Sample

RECENT_SAMPLE_WINDOW = timedelta(seconds=60)  # older readings are not current


def visible_host(viewer: User, name: str) -> Host | None:
    """Return the host of this name with its pool; None if the viewer may not see it."""
    return policy.visible_hosts(viewer).select_related("pool__team", "dcgm_target").filter(name=name).first()


def visible_or_removed_host(viewer: User, name: str) -> Host | None:
    """Return the visible host of this name with its pool.

    If only removed hosts have the name, return the host that was removed last. Return None without any.
    """
    rows = policy.visible_hosts_with_removed(viewer).filter(name=name)
    rows = rows.select_related("pool__team", "dcgm_target")
    return rows.order_by(F("removed_at").desc(nulls_first=True), "-pk").first()


def host_state(host: Host) -> str:
    """Return the one state that pages show for a host.

    A host has a repair state, a lease state and an administrative state. Return the first of the three, in
    this order, that is not normal; return "ready" if all are normal. A removed host is "removed".
    """
    if host.removed_at is not None:
        return "removed"
    if host.repair_state != RepairState.WELL:
        return str(host.repair_state)
    if host.lease_state != LeaseState.ALIVE:
        return str(host.lease_state)
    return "ready" if host.admin_state == AdminState.IN_SERVICE else str(host.admin_state)


def host_units(viewer: User, host: Host, now: datetime) -> list[dict[str, Any]]:
    """Return a dict for every unit of a host, sorted by GPU and slots. The caller has loaded ``host.pool``.

    ``held`` is True if a workload holds the unit. ``holder`` is that workload, or None if the viewer may not
    see it. ``team`` is the team that holds or reserved the unit. ``reading`` is the last reading; None if it
    is older than a minute. ``takes_work`` is True if the GPU is healthy and the host accepts new workloads.
    """
    rows = list(
        Unit.objects.filter(gpu__host=host, retired_at=None, gpu__retired_at=None)
        .select_related("gpu")
        .order_by("gpu__index", "slots")
    )
    seen = set(
        policy.visible_workloads(viewer).filter(allocations__unit__in=rows).values_list("pk", flat=True)
    )
    open_ = Allocation.objects.filter(unit__in=rows, period__upper_inf=True)
    holders = {a.unit_id: a for a in open_.select_related("workload__project__team", "workload__owner")}
    bound = BoundUnit.objects.filter(unit__in=rows, period__contains=now).select_related(
        "reservation__project__team"
    )
    reserved = {b.unit_id: b.reservation for b in bound}
    readings = latest_samples([row.pk for row in rows], now)
    is_open = schedulable_hosts.is_schedulable(host)
    return [
        _unit(row, holders.get(row.pk), reserved.get(row.pk), readings.get(row.pk), seen, is_open)
        for row in rows
    ]


def _unit(
    row: Unit, held: Allocation | None, reserved: Any, reading: Sample | None, seen: set[int], is_open: bool
) -> dict[str, Any]:
    workload: Workload | None = held.workload if held else None
    return {
        "unit": row,
        "gpu": row.gpu,
        "held": held is not None,
        "team": workload.project.team if workload else reserved.project.team if reserved else None,
        "holder": workload if workload and workload.pk in seen else None,
        "reservation": reserved,
        "reading": reading,
        "well": row.gpu.repair_state == RepairState.WELL,
        "takes_work": row.gpu.repair_state == RepairState.WELL and is_open,
    }


def latest_samples(unit_ids: list[int], now: datetime) -> dict[int, Sample]:
    """Return the last reading of each unit, by unit id. Readings older than a minute are ignored."""
    rows = (
        Sample.objects.filter(unit__in=unit_ids, ts__gt=now - RECENT_SAMPLE_WINDOW, ts__lte=now)
        .order_by("unit", "-ts")
        .distinct("unit")
    )
    return {row.unit_id: row for row in rows}


def last_rejected_agent(host: Host) -> dict[str, Any] | None:
    """Return the last agent that used this host's name and was rejected; None if there was none.

    Rejections before the host joined do not count. The keys are ``reason`` and ``at`` (time) and, if known,
    ``instance`` and ``boot_id``.
    """
    kept = host.refused_agent
    return kept and {**kept, "at": datetime.fromisoformat(kept["at"])}


ISOLATION_REQUIREMENTS = {
    str(Isolation.SANDBOX): "a sandbox",
    str(Isolation.TEAM_USERS): "a user id per team",
    str(Isolation.LIMITS): "limits of CPU, memory and processes",
}


def missing_isolation(host: Host) -> list[str]:
    """Return a text for each isolation level that the pool requires and the host lacks.

    The caller has loaded ``host.pool``.
    """
    return [
        ISOLATION_REQUIREMENTS[level]
        for level in missing_levels(host.hardware.get("reported") or {}, host.pool.isolation)
    ]


def is_closed_to_new_work(host: Host) -> bool:
    """Return True if the host accepts no new workloads because of an operator's action or a fault."""
    return host.admin_state != AdminState.IN_SERVICE or host.repair_state != RepairState.WELL


# Start of a workload's present attempt. The runtime limit counts from here: each attempt may use all of it.
ATTEMPT_STARTED_AT = Min(Coalesce("runs__running_at", "runs__placed_at"), filter=Q(runs__ended_at=None))


@dataclass(frozen=True)
class RemainingWorkload:
    """A workload that still runs on a host.

    ``leaves`` is True if the workload is being stopped, False if it runs to its end. ``by`` is the latest
    time at which it ends.
    """

    workload: Workload
    leaves: bool
    by: datetime


def remaining_workloads(host: Host, now: datetime) -> list[RemainingWorkload]:
    """Return the workloads that still run on the host, the earliest end first. Takes one query."""
    found = Workload.objects.filter(runs__host=host, runs__ended_at=None, state__in=LIVE_STATES).annotate(
        begun_at=ATTEMPT_STARTED_AT
    )
    rows = []
    for workload in found.select_related("project__team", "owner"):
        leaves = workload.state in TERMINATING_STATES
        limit = workload.begun_at + timedelta(seconds=workload.max_runtime_seconds)
        rows.append(
            RemainingWorkload(workload, leaves, workload.gone_by if leaves and workload.gone_by else limit)
        )
    return sorted(rows, key=lambda row: (row.by, row.workload.pk))


def simulation_options(host: Host) -> str:
    """Return the command-line options with which an agent simulates this host's GPUs.

    Return "" if the host has real GPUs or no GPUs.
    """
    gpus = list(host.gpus.filter(retired_at=None).order_by("index")) if host.simulated else []
    if not gpus:
        return ""
    boards = ",".join(f"{len(list(alike))}x{model}" for model, alike in groupby(gpu.model for gpu in gpus))
    slices: dict[int, list[str]] = defaultdict(list)
    rows = (
        Unit.objects.filter(gpu__in=gpus, retired_at=None)
        .exclude(profile=WHOLE_GPU_PROFILE)
        .order_by("gpu__index", "slots")
    )
    for index, profile in rows.values_list("gpu__index", "profile"):
        slices[index].append(profile)
    split = ",".join(f"{index}:{layout_text(profiles)}" for index, profiles in slices.items())
    return f"--simulate {boards}{f' --simulate-mig {split}' if split else ''}"


def host_sizes_by_pool(pools: Collection[int]) -> dict[int, tuple[int, int, int, int]]:
    """Return the smallest and the largest CPU and memory of each pool's hosts, by pool id.

    The values are (minimum CPU, maximum CPU, minimum memory, maximum memory), in millicores and MiB. Hosts
    that have not reported their size are ignored.
    """
    known = Host.objects.filter(pool__in=pools, cpu_milli__gt=0, memory_mib__gt=0).order_by().values("pool")
    rows = known.annotate(a=Min("cpu_milli"), b=Max("cpu_milli"), c=Min("memory_mib"), d=Max("memory_mib"))
    return {pool: (a, b, c, d) for pool, a, b, c, d in rows.values_list("pool", "a", "b", "c", "d")}


def gpu_models_of_host(host: Host) -> list[tuple[str, int]]:
    """Return (model, number of GPUs) for each model of the host, sorted by model."""
    counts: dict[str, int] = defaultdict(int)
    for gpu in host.gpus.filter(retired_at=None):
        counts[gpu.model] += 1
    return sorted(counts.items())
