"""Read the health of a host's GPUs: repair state, diagnostics, and stray processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import QuerySet, Sum

from portal import policy
from portal.models import User
from portal.reads.fleet import host_history, mig_geometry
from scheduler.models import Diagnostic, DiagnosticTool, Gpu, Host, Pool
from scheduler.state.states import DiagnosticState, RepairState
from scheduler.sync import gpu_diagnostics
from telemetry.models import HealthEvent, HealthRule, ReadingFault, Stray

OPEN_DIAGNOSTIC_STATES = (DiagnosticState.WANTED, DiagnosticState.RUNNING)
MAX_STRAYS_SHOWN = 50
MAX_EVENTS_SHOWN = 20
FAULT_DAYS = 7


@dataclass(frozen=True)
class GpuHealth:
    """The health of one GPU of a host.

    ``last`` is its newest diagnostic. ``facts`` is its topology (links, PCIe lanes) as the agent reports it.
    """

    gpu: Gpu
    last: Diagnostic | None
    facts: dict[str, Any] = field(default_factory=dict)
    geometry: mig_geometry.GpuGeometry | None = None

    @property
    def well(self) -> bool:
        return bool(self.gpu.repair_state == RepairState.WELL)

    @property
    def open(self) -> bool:
        """Return True while a diagnostic is in progress."""
        return self.last is not None and self.last.state in OPEN_DIAGNOSTIC_STATES


def gpu_health_of_host(host: Host) -> list[GpuHealth]:
    """Return the health of each GPU, sorted by index. Takes three queries if ``host.pool`` is loaded."""
    split = mig_geometry.host_geometries(host)
    rows = [each.gpu for each in split]
    newest = Diagnostic.objects.filter(gpu__in=rows).order_by("gpu", "-created_at", "-pk").distinct("gpu")
    last = {row.gpu_id: row for row in newest}
    reported = (host.hardware.get("reported") or {}).get("gpus") or []
    facts = {each.get("uuid"): each for each in reported}
    return [GpuHealth(each.gpu, last.get(each.gpu.pk), facts.get(each.gpu.uuid, {}), each) for each in split]


def missing_gpus(host: Host) -> list[Gpu]:
    """Return the GPUs that the host no longer reports.

    A GPU leaves this list when the host reports it again or an operator removes it. Takes one query.
    """
    return list(host.gpus.filter(missing_since__isnull=False).order_by("index", "pk"))


def hardware_events(viewer: User, host: Host) -> list[dict[str, Any]]:
    """Return recent hardware events of a host, newest first. Takes two queries."""
    return visible_hardware_events(viewer, all_hardware_events(host)[:MAX_EVENTS_SHOWN])


def all_hardware_events(host: Host) -> QuerySet[HealthEvent]:
    """Return all hardware events of a host, newest first."""
    return HealthEvent.objects.filter(host=host).select_related("gpu").order_by("-at", "-pk")


def visible_hardware_events(viewer: User, rows: Iterable[HealthEvent]) -> list[dict[str, Any]]:
    """Return the hardware events with the details that the viewer may read.

    Takes one query in addition to the query of ``rows``.
    """
    rows = list(rows)
    meanings = dict(
        HealthRule.objects.filter(code__in={row.code for row in rows}).values_list("code", "meaning")
    )
    return [
        {
            "at": row.at,
            "gpu": row.gpu.index if row.gpu else None,
            "code": row.code,
            "meaning": meanings.get(row.code, ""),
            "detail": host_history.hardware_event_detail(viewer, row),
            "action": row.action_taken,
        }
        for row in rows
    ]


def diagnostic_tools(pool: Pool) -> list[tuple[str, str]]:
    """Return (value, label) of each diagnostic tool that a pool may select.

    These are the built-in tools and the tools that operators installed on the pool's hosts.
    """
    hosts, named = pool.hosts.count(), gpu_diagnostics.operator_diagnostics(pool)
    if pool.diagnostic_tool not in (*DiagnosticTool.values, *named):
        named[pool.diagnostic_tool] = 0  # the selected tool is listed even if no host has it any more
    own = [(name, f"{name}, on {count} of {hosts} hosts") for name, count in named.items()]
    return [*((str(value), str(words)) for value, words in DiagnosticTool.choices), *own]


def diagnostic_tool(pool: Pool) -> str:
    """Return the label of the diagnostic tool that the pool selects."""
    return dict(DiagnosticTool.choices).get(pool.diagnostic_tool, pool.diagnostic_tool)


def interconnects(health: list[GpuHealth]) -> list[tuple[str, str]]:
    """Return (type of link, pairs of GPUs) for each type of link between the GPUs of a host.

    Examples: ("NVLink", "0–1, 2–3"), or ("NVLink", "all") if every pair has the link
    and there are at least three GPUs.
    """
    index = {each.gpu.uuid: each.gpu.index for each in health}
    pairs: dict[str, list[tuple[int, int]]] = {}
    for each in health:
        for other, way in (each.facts.get("links") or {}).items():
            if other in index and each.gpu.index < index[other]:
                pairs.setdefault(str(way), []).append((each.gpu.index, index[other]))
    every = len(health) * (len(health) - 1) // 2
    return [
        (way, "all" if len(found) == every and every > 1 else ", ".join(f"{a}–{b}" for a, b in sorted(found)))
        for way, found in sorted(pairs.items())
    ]


def topology_rows(health: list[GpuHealth]) -> list[tuple[str, str]]:
    """Return rows (GPUs, text) about links, PCIe lanes and NUMA nodes.

    If all GPUs have facts in common, the first row has these facts and names no GPU. Each other row has the
    remaining facts of one or more GPUs. GPUs whose remaining facts are equal share a row.

    Example: [("", "18 NVLinks up"), ("0 to 3", "NUMA node 0"), ("4 to 7", "NUMA node 1")].
    """
    facts = [_parts_of(each) for each in health]
    alike = (
        [same[0] if len(set(same)) == 1 else "" for same in zip(*facts, strict=True)]
        if len(facts) > 1
        else []
    )
    found: dict[str, list[int]] = {}
    for each, parts in zip(health, facts, strict=True):
        if words := ", ".join(part for part in parts if part and part not in alike):
            found.setdefault(words, []).append(each.gpu.index)
    common = ", ".join(filter(None, alike))
    return [*([("", common)] if common else []), *((_ranges(gpus), words) for words, gpus in found.items())]


def _parts_of(each: GpuHealth) -> tuple[str, str, str]:
    links, pcie, node = each.facts.get("nvlinks"), each.facts.get("pcie"), each.gpu.numa_node
    return (
        f"{links} NVLinks up" if links else "",
        f"PCIe {pcie}" if pcie else "",
        "" if node is None else f"NUMA node {node}",
    )


def _ranges(gpus: list[int]) -> str:
    """Return GPU indices as text with ranges, such as "0 to 3, 6"."""
    runs: list[list[int]] = []
    for index in sorted(gpus):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(words)


@dataclass(frozen=True)
class StrayProcesses:
    """Processes on a host's GPUs that belong to no workload.

    ``rows`` is empty for viewers other than operators and auditors; these viewers get only ``count``.
    """

    count: int
    rows: list[Stray]


def stray_processes(viewer: User, host: Host) -> StrayProcesses:
    """Return the stray processes that are present on the host.

    Only operators and auditors get the rows, because a row can name a user who has no access to the pool.
    """
    rows = list(
        Stray.objects.filter(host=host, gone_at=None).select_related("gpu").order_by("gpu__index", "pid")
    )
    return StrayProcesses(len(rows), rows[:MAX_STRAYS_SHOWN] if policy.sees_all_teams(viewer) else [])


def maintenance_windows(host: Host, now: datetime) -> list[Any]:
    """Return the host's announced maintenance windows that are not over, the next window first."""
    return list(host.maintenance_windows.filter(end__gt=now).order_by("start", "pk"))


def reading_faults(host: Host, now: datetime) -> list[dict[str, Any]]:
    """Return the numbers of readings of a host that could not be stored as they arrived, in FAULT_DAYS days.

    There is one row by ``reading``, ``kind`` and ``source``, with the ``count``, and with the time and the
    value of the last one (``last_at``, ``last_value``).
    """
    first = (now - timedelta(days=FAULT_DAYS - 1)).astimezone(UTC).date()
    rows = ReadingFault.objects.filter(host=host, day__gte=first, count__gt=0)
    last = rows.order_by("reading", "kind", "source", "-last_at").distinct("reading", "kind", "source")
    sums = {
        (row["reading"], row["kind"], row["source"]): row["sum"]
        for row in rows.order_by().values("reading", "kind", "source").annotate(sum=Sum("count"))
    }
    return [
        {
            "reading": row.reading,
            "kind": row.kind,
            "source": row.source,
            "count": sums[row.reading, row.kind, row.source],
            "last_at": row.last_at,
            "last_value": row.last_value,
        }
        for row in last
    ]
