"""Read every GPU of the visible pools with its holder, utilisation and health.

The number of queries is fixed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count

from portal import policy
from portal.models import User
from portal.reads.fleet.host_details import RECENT_SAMPLE_WINDOW, host_state
from portal.wording.pages import fleet_pages
from scheduler.cycle import schedulable_hosts
from scheduler.models import Allocation, BoundUnit, Gpu, Host, MaintenanceWindow, Team, Unit
from scheduler.state.states import LeaseState, RepairState
from telemetry.core.rollup import BUSY_PERCENT
from telemetry.health.rules import event_title
from telemetry.models import HealthEvent, HealthRule, Sample

ATTENTION_WINDOW = timedelta(hours=24)


@dataclass
class GpuCell:
    """One GPU on the fleet page.

    ``utilisation`` (percent) and ``temperature`` (degrees Celsius) are the highest values of its units. They
    are None without a reading in the last minute.
    """

    gpu: Gpu
    units: int = 1
    held: int = 0  # number of held units
    team: Team | None = None  # the team that holds the GPU; None if no team or several teams do
    reserved: bool = False
    utilisation: float | None = None
    temperature: float | None = None
    seen: bool = False  # it has a reading of the last minute
    away: bool = False  # its host accepts no workloads
    unwell: bool = False

    @property
    def sliced(self) -> bool:
        return self.units > 1

    @property
    def idle(self) -> bool:
        return self.held > 0 and self.utilisation is not None and self.utilisation < BUSY_PERCENT

    @property
    def condition(self) -> str:
        """Return the one condition in which the GPU counts: held, out, reserved or free."""
        if self.held:
            return "held"
        if self.away or self.unwell:
            return "out"
        return "reserved" if self.reserved else "free"

    @property
    def free(self) -> bool:
        return self.condition == "free"


@dataclass
class FleetHostRow:
    host: Host
    state: str
    cells: list[GpuCell] = field(default_factory=list)

    @property
    def free(self) -> int:
        return sum(1 for cell in self.cells if cell.free)

    @property
    def free_whole(self) -> int:
        return sum(1 for cell in self.cells if cell.free and not cell.sliced)

    @property
    def held(self) -> int:
        return sum(1 for cell in self.cells if cell.held)

    @property
    def reserved(self) -> int:
        return sum(1 for cell in self.cells if cell.condition == "reserved")


@dataclass
class FleetModelGroup:
    """The hosts with GPUs of one model."""

    model: str
    hosts: list[FleetHostRow] = field(default_factory=list)

    @property
    def cells(self) -> list[GpuCell]:
        return [cell for row in self.hosts for cell in row.cells]

    @property
    def free(self) -> int:
        return sum(row.free for row in self.hosts)

    @property
    def free_whole(self) -> int:
        """Return the number of free GPUs that are not split."""
        return sum(row.free_whole for row in self.hosts)

    @property
    def free_split(self) -> int:
        """Return the number of free GPUs that are split. They serve only requests for slices."""
        return self.free - self.free_whole

    @property
    def free_on_one_host(self) -> int:
        """Return the largest number of free whole GPUs on one host."""
        return max((row.free_whole for row in self.hosts), default=0)

    @property
    def mean_of_held(self) -> float | None:
        known = [cell.utilisation for cell in self.cells if cell.held and cell.utilisation is not None]
        return sum(known) / len(known) if known else None


def fleet_overview(viewer: User, now: datetime, pool_slug: str = "") -> list[FleetModelGroup]:
    """Return the visible GPUs by model and host. Always takes six queries."""
    hosts = policy.visible_hosts(viewer).select_related("pool").order_by("name")
    if pool_slug:
        hosts = hosts.filter(pool__slug=pool_slug)
    rows = {host.pk: host for host in hosts}
    gpus = list(Gpu.objects.filter(host__in=rows, retired_at=None).order_by("host__name", "index"))
    cells = {gpu.pk: _cell(gpu, rows[gpu.host_id]) for gpu in gpus}
    units = dict(Unit.objects.filter(gpu__in=cells, retired_at=None).values_list("pk", "gpu_id"))
    _count_units(cells, units)
    _fill_holders(cells, units, now)
    _fill_readings(cells, units, now)
    groups: dict[str, FleetModelGroup] = {}
    by_host: dict[tuple[str, int], FleetHostRow] = {}
    for gpu in gpus:
        host = rows[gpu.host_id]
        group = groups.setdefault(gpu.model, FleetModelGroup(gpu.model))
        key = (gpu.model, host.pk)
        if key not in by_host:
            by_host[key] = FleetHostRow(host, host_state(host))
            group.hosts.append(by_host[key])
        by_host[key].cells.append(cells[gpu.pk])
    return sorted(groups.values(), key=lambda group: (-len(group.cells), group.model))


def _cell(gpu: Gpu, host: Host) -> GpuCell:
    away = not schedulable_hosts.is_schedulable(host)
    return GpuCell(
        gpu, away=away, unwell=gpu.repair_state != RepairState.WELL or host.repair_state != RepairState.WELL
    )


def _count_units(cells: dict[int, GpuCell], units: dict[int, int]) -> None:
    counts: dict[int, int] = defaultdict(int)
    for gpu in units.values():
        counts[gpu] += 1
    for gpu, count in counts.items():
        cells[gpu].units = count


def _fill_holders(cells: dict[int, GpuCell], units: dict[int, int], now: datetime) -> None:
    teams: dict[int, set[Team]] = defaultdict(set)
    held = Allocation.objects.filter(unit__in=units, period__upper_inf=True).select_related("project__team")
    for allocation in held:
        gpu = units[allocation.unit_id]
        cells[gpu].held += 1
        teams[gpu].add(allocation.project.team)
    for bound in BoundUnit.objects.filter(unit__in=units, period__contains=now).select_related(
        "reservation__project__team"
    ):
        gpu = units[bound.unit_id]
        cells[gpu].reserved = True
        teams[gpu].add(bound.reservation.project.team)
    for gpu, found in teams.items():
        cells[gpu].team = next(iter(found)) if len(found) == 1 else None


def _fill_readings(cells: dict[int, GpuCell], units: dict[int, int], now: datetime) -> None:
    rows = (
        Sample.objects.filter(unit__in=units, ts__gt=now - RECENT_SAMPLE_WINDOW, ts__lte=now)
        .order_by("unit", "-ts")
        .distinct("unit")
    )
    for unit, utilisation, temperature in rows.values_list("unit_id", "utilisation", "temperature_c"):
        cell = cells[units[unit]]
        cell.seen = True
        cell.utilisation = _larger(cell.utilisation, utilisation)
        cell.temperature = _larger(cell.temperature, temperature)


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


def fleet_totals(groups: list[FleetModelGroup]) -> dict[str, int]:
    """Return numbers of GPUs.

    ``gpus`` is the sum of ``held``, ``reserved`` (for a reservation of now, without a workload), ``free`` and
    ``out`` (not held, and unhealthy or on a host that accepts no workloads). Some of the same GPUs are
    ``idle`` (held, but hardly used), ``unwell`` (they may be held), and ``unseen`` (no reading in the last
    minute).
    """
    cells = [cell for group in groups for cell in group.cells]
    return {
        "gpus": len(cells),
        **{
            condition: sum(1 for cell in cells if cell.condition == condition)
            for condition in ("held", "reserved", "free", "out")
        },
        "idle": sum(1 for cell in cells if cell.idle),
        "unwell": sum(1 for cell in cells if cell.unwell),
        "unseen": sum(1 for cell in cells if not cell.seen),
    }


def largest_requests(groups: list[FleetModelGroup]) -> list[dict[str, Any]]:
    """Return one entry per model. ``free`` is the number of free whole GPUs.

    ``on_one_host`` is the largest number of them on a single host. ``elsewhere`` is the rest.
    """
    asks = []
    for group in groups:
        free, most = group.free_whole, group.free_on_one_host
        asks.append({"model": group.model, "free": free, "on_one_host": most, "elsewhere": free - most})
    return asks


def attention_list(viewer: User, groups: list[FleetModelGroup], now: datetime) -> list[dict[str, Any]]:
    """Return the problems of hosts, worst first.

    Each entry has a ``host`` name, a ``kind`` (bad, warn or info), and ``words`` that describe the problem.
    Some entries have a time ``at``.
    """
    hosts = {row.host.pk: row for group in groups for row in group.hosts}
    found = [*_hardware_events(hosts, now), *_planned_maintenance(hosts, now)]
    for row in hosts.values():
        found += _host_problems(row)
    if policy.may(viewer, "host.change"):
        found += _hosts_not_joined(viewer)
    order = {"bad": 0, "warn": 1, "info": 2}
    return sorted(found, key=lambda entry: (order[entry["kind"]], entry["host"], entry["words"]))


def _hardware_events(hosts: Mapping[int, FleetHostRow], now: datetime) -> list[dict[str, Any]]:
    """Return the hardware events of the last 24 hours, as one entry for each host and event code."""
    recent = HealthEvent.objects.filter(host__in=hosts, at__gt=now - ATTENTION_WINDOW, at__lte=now)
    meanings = dict(HealthRule.objects.filter(code__in=recent.values("code")).values_list("code", "meaning"))
    counted = recent.values_list("host__name", "code").annotate(Count("pk")).order_by("host__name", "code")
    return [
        {
            "host": name,
            "kind": "bad",
            "words": fleet_pages.event_count(event_title(code, meanings.get(code, "")), count),
        }
        for name, code, count in counted
    ]


def _host_problems(row: FleetHostRow) -> list[dict[str, Any]]:
    """Return the problems of one host: full disk, state, missing telemetry, idle GPUs."""
    host = row.host
    problems: list[tuple[str, str]] = []
    if host.disk_full:
        problems.append(("bad", fleet_pages.DISK_FULL))
    if row.state not in ("ready", "maintenance"):
        kind = "bad" if row.state in ("silent", "quarantined", "out") else "warn"
        problems.append((kind, fleet_pages.host_state_note(row.state, host.state_reason)))
    unseen = sum(1 for cell in row.cells if not cell.seen)
    if unseen and host.lease_state == LeaseState.ALIVE:
        problems.append(("warn", fleet_pages.NO_TELEMETRY.format(unseen=unseen, gpus=len(row.cells))))
    idle = sum(1 for cell in row.cells if cell.idle)
    if idle:
        problems.append(("warn", fleet_pages.idle_gpus(idle)))
    return [{"host": host.name, "kind": kind, "words": words} for kind, words in problems]


def _planned_maintenance(hosts: Mapping[int, FleetHostRow], now: datetime) -> list[dict[str, Any]]:
    """Return the maintenance windows that are open or begin within 24 hours."""
    windows = MaintenanceWindow.objects.filter(start__lte=now + ATTENTION_WINDOW, end__gt=now, host__in=hosts)
    return [
        {
            "host": window.host.name,
            "kind": "info",
            "words": fleet_pages.MAINTENANCE_NOTE.format(reason=window.reason),
            "at": window.start,
        }
        for window in windows.select_related("host").order_by("start")
    ]


def _hosts_not_joined(viewer: User) -> list[dict[str, Any]]:
    """Return the hosts whose agent has never joined."""
    expected = policy.visible_hosts(viewer).filter(last_sync_at=None, gpus=None)
    return [
        {"host": name, "kind": "info", "words": fleet_pages.NOT_JOINED, "at": at}
        for name, at in expected.values_list("name", "created_at")
    ]
