"""Reads of how the GPUs of a host are split into MIG instances, what they could be, and what came of changes."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.fit.mig_layout import layout_text
from scheduler.core.model.snapshot import PoolKind
from scheduler.models import GeometryChange, Gpu, Host
from scheduler.state.states import GeometryState
from scheduler.sync import geometry_changes


@dataclass(frozen=True)
class GpuGeometry:
    """One GPU. ``present``: "" for one whole GPU, None where it is split and has no instances; ``offers``: what it can be split
    into, by name; ``last``: its newest change."""

    gpu: Gpu
    present: str | None
    offers: dict[str, geometry_changes.OfferedProfile]
    last: GeometryChange | None
    static: bool

    @property
    def may_change(self) -> bool:
        """Whether it can be split otherwise at all."""
        return bool(self.offers) and not self.static

    @property
    def open(self) -> bool:
        """Whether that is on its way."""
        return self.last is not None and self.last.state in geometry_changes.OPEN_GEOMETRY_STATES

    @property
    def failed(self) -> bool:
        """Whether the last change failed."""
        return self.last is not None and self.last.state == GeometryState.FAILED

    @property
    def wanted(self) -> str:
        """What the last change wants; "" for one whole GPU."""
        return layout_text(self.last.profiles) if self.last is not None else ""


def host_geometries(host: Host) -> list[GpuGeometry]:
    """Every GPU in order. Two queries; its pool is loaded."""
    rows = list(host.gpus.filter(retired_at=None).order_by("index"))
    newest = GeometryChange.objects.filter(gpu__in=rows).order_by("gpu", "-created_at", "-pk").distinct("gpu")
    last = {row.gpu_id: row for row in newest}
    return [_geometry_of(host, gpu, last.get(gpu.pk)) for gpu in rows]


def gpu_geometry(host: Host, gpu: Gpu) -> GpuGeometry:
    """One of them."""
    return _geometry_of(
        host, gpu, GeometryChange.objects.filter(gpu=gpu).order_by("-created_at", "-pk").first()
    )


def _geometry_of(host: Host, gpu: Gpu, last: GeometryChange | None) -> GpuGeometry:
    there = geometry_changes.current_profiles(host, gpu)
    present = None if there is None else layout_text(there)
    return GpuGeometry(
        gpu, present, geometry_changes.offered_profiles(host, gpu), last, host.pool.kind == PoolKind.STATIC
    )
