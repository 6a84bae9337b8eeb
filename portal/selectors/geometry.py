"""Reads of how the GPUs of a host are split into MIG instances, what they could be, and what came of changes."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler import geometry
from scheduler.core.geometry import described
from scheduler.core.model import PoolKind
from scheduler.models import GeometryChange, Gpu, Host
from scheduler.states import GeometryState


@dataclass(frozen=True)
class GpuGeometry:
    """One GPU. ``present``: "" for one whole GPU, None where it is split and has no instances; ``offers``: what it can be split
    into, by name; ``last``: its newest change."""

    gpu: Gpu
    present: str | None
    offers: dict[str, geometry.Offer]
    last: GeometryChange | None
    static: bool

    @property
    def may_change(self) -> bool:
        """Whether it can be split otherwise at all."""
        return bool(self.offers) and not self.static

    @property
    def open(self) -> bool:
        """Whether that is on its way."""
        return self.last is not None and self.last.state in geometry.OPEN

    @property
    def failed(self) -> bool:
        """Whether the last change failed."""
        return self.last is not None and self.last.state == GeometryState.FAILED

    @property
    def wanted(self) -> str:
        """What the last change wants; "" for one whole GPU."""
        return described(self.last.profiles) if self.last is not None else ""


def of_host(host: Host) -> list[GpuGeometry]:
    """Every GPU in order. Two queries; its pool is loaded."""
    rows = list(host.gpus.filter(retired_at=None).order_by("index"))
    newest = GeometryChange.objects.filter(gpu__in=rows).order_by("gpu", "-created_at", "-pk").distinct("gpu")
    last = {row.gpu_id: row for row in newest}
    return [_one(host, gpu, last.get(gpu.pk)) for gpu in rows]


def of_gpu(host: Host, gpu: Gpu) -> GpuGeometry:
    """One of them."""
    return _one(host, gpu, GeometryChange.objects.filter(gpu=gpu).order_by("-created_at", "-pk").first())


def _one(host: Host, gpu: Gpu, last: GeometryChange | None) -> GpuGeometry:
    there = geometry.present(host, gpu)
    present = None if there is None else described(there)
    return GpuGeometry(gpu, present, geometry.offers(host, gpu), last, host.pool.kind == PoolKind.STATIC)
