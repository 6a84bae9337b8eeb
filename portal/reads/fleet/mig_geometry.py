"""Read the present and possible MIG geometries of a host's GPUs, and their recent changes."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.fit.mig_layout import layout_text
from scheduler.core.model.snapshot import PoolKind
from scheduler.models import GeometryChange, Gpu, Host
from scheduler.state.states import GeometryState
from scheduler.sync import geometry_changes


@dataclass(frozen=True)
class GpuGeometry:
    """The MIG geometry of one GPU: how it is split into instances.

    ``present`` is the geometry as text. It is "" for a whole GPU, and None for a GPU in MIG mode that has no
    instances. ``offers`` are the possible MIG profiles by name. ``last`` is the newest change of geometry.
    ``static`` is True in a pool of one team.
    """

    gpu: Gpu
    present: str | None
    offers: dict[str, geometry_changes.OfferedProfile]
    last: GeometryChange | None
    static: bool

    @property
    def can_be_split(self) -> bool:
        """Return True if the GPU has MIG profiles and its pool allows changes of geometry."""
        return bool(self.offers) and not self.static

    @property
    def open(self) -> bool:
        """Return True while a change is in progress."""
        return self.last is not None and self.last.state in geometry_changes.OPEN_GEOMETRY_STATES

    @property
    def failed(self) -> bool:
        """Return True if the last change failed."""
        return self.last is not None and self.last.state == GeometryState.FAILED

    @property
    def wanted(self) -> str:
        """Return the geometry that the last change requests; "" for a whole GPU."""
        return layout_text(self.last.profiles) if self.last is not None else ""


def host_geometries(host: Host) -> list[GpuGeometry]:
    """Return the geometry of each GPU, sorted by index. Takes two queries if ``host.pool`` is loaded."""
    rows = list(host.gpus.filter(retired_at=None).order_by("index"))
    newest = GeometryChange.objects.filter(gpu__in=rows).order_by("gpu", "-created_at", "-pk").distinct("gpu")
    last = {row.gpu_id: row for row in newest}
    return [_geometry_of(host, gpu, last.get(gpu.pk)) for gpu in rows]


def gpu_geometry(host: Host, gpu: Gpu) -> GpuGeometry:
    """Return the geometry of one GPU."""
    return _geometry_of(
        host, gpu, GeometryChange.objects.filter(gpu=gpu).order_by("-created_at", "-pk").first()
    )


def _geometry_of(host: Host, gpu: Gpu, last: GeometryChange | None) -> GpuGeometry:
    there = geometry_changes.current_profiles(host, gpu)
    present = None if there is None else layout_text(there)
    return GpuGeometry(
        gpu, present, geometry_changes.offered_profiles(host, gpu), last, host.pool.kind == PoolKind.STATIC
    )
