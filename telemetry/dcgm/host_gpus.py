"""Find the units of a host to which the lines of its dcgm-exporter belong."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from scheduler.models import Host, Unit
from telemetry.core.reading_bounds import UnitLimits
from telemetry.readings.unit_limits import load_units


@dataclass(frozen=True, slots=True)
class ScrapedUnit:
    """A unit in service. ``instance`` is NVIDIA's number of its MIG instance; None if it is unknown."""

    id: int
    uuid: str
    profile: str  # "" for a whole GPU
    instance: int | None
    limits: UnitLimits


@dataclass(slots=True)
class ScrapedGpu:
    """A GPU in service and its units."""

    id: int
    uuid: str
    units: list[ScrapedUnit] = field(default_factory=list)

    def unit_of(self, instance: str, profile: str) -> ScrapedUnit | None:
        """Return the unit with this number of a MIG instance; with "", the whole GPU if it is not split.

        Agents up to version 0.1 do not report the numbers. The profile then identifies the unit, unless
        several units of the GPU have it.
        """
        if not instance:
            return next((unit for unit in self.units if not unit.profile), None)
        split = [unit for unit in self.units if unit.profile]
        for unit in split:
            if unit.instance is not None and str(unit.instance) == instance:
                return unit
        alike = [unit for unit in split if unit.instance is None and unit.profile == profile]
        return alike[0] if len(alike) == 1 else None


def load_gpus(hosts: Collection[Host]) -> dict[int, dict[str, ScrapedGpu]]:
    """Return the GPUs in service of each host, by host id and uuid. Runs three queries."""
    ids = [host.pk for host in hosts]
    known = load_units(ids)
    instances = {host.pk: _reported_instances(host) for host in hosts}
    found: dict[int, dict[str, ScrapedGpu]] = {pk: {} for pk in ids}
    rows = Unit.objects.filter(gpu__host__in=ids, gpu__retired_at=None, retired_at=None).order_by("pk")
    for host, gpu_id, gpu_uuid, pk, uuid, profile in rows.values_list(
        "gpu__host_id", "gpu_id", "gpu__uuid", "pk", "uuid", "profile"
    ):
        gpu = found[host].setdefault(gpu_uuid, ScrapedGpu(gpu_id, gpu_uuid))
        limits = known[host][uuid].limits
        gpu.units.append(ScrapedUnit(pk, uuid, profile, instances[host].get(uuid), limits))
    return found


def _reported_instances(host: Host) -> Mapping[str, int]:
    """Return the numbers of the MIG instances that the host's agent reported, by uuid of the unit."""
    gpus = (host.hardware.get("reported") or {}).get("gpus") or []
    return {
        unit["uuid"]: unit["instance"]
        for gpu in gpus
        for unit in gpu.get("units") or []
        if isinstance(unit.get("instance"), int)
    }
