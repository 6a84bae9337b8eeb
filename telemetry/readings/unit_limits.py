"""Load the limits of the units of hosts from the inventory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from django.db import connection

from scheduler.models import Unit
from telemetry.core.reading_bounds import UnitLimits

# ``hardware.reported`` is the last inventory of the host (scheduler/sync/host_inventory.py). Agents of
# earlier versions do not report these two limits.
_GPU_LIMITS_SQL = """
SELECT gpu ->> 'uuid', (gpu ->> 'power_limit_w')::float8, (gpu ->> 'slowdown_temperature_c')::float8
FROM scheduler_host AS host
CROSS JOIN LATERAL jsonb_array_elements(host.hardware -> 'reported' -> 'gpus') AS gpu
WHERE host.id = ANY(%s) AND (gpu ? 'power_limit_w' OR gpu ? 'slowdown_temperature_c')
"""


@dataclass(frozen=True, slots=True)
class KnownUnit:
    """One unit of a host: its id and its limits."""

    id: int
    limits: UnitLimits


def load_units(hosts: Collection[int]) -> dict[int, dict[str, KnownUnit]]:
    """Return the units of the hosts by host id and uuid of the unit. Runs two queries.

    If several units of a host have one uuid, the unit in service is returned.
    """
    found: dict[int, dict[str, KnownUnit]] = defaultdict(dict)
    for host, uuid, retired, unit in _load(hosts):
        if not retired or uuid not in found[host]:
            found[host][uuid] = unit
    return found


def load_limits(hosts: Collection[int]) -> dict[int, UnitLimits]:
    """Return the limits of all units of the hosts by unit id, retired units included. Runs two queries."""
    return {unit.id: unit.limits for *_, unit in _load(hosts)}


def _load(hosts: Collection[int]) -> Iterator[tuple[int, str, bool, KnownUnit]]:
    """Yield (host id, uuid of the unit, True if it is retired, unit), in the order of the units' ids."""
    with connection.cursor() as cursor:
        cursor.execute(_GPU_LIMITS_SQL, [list(hosts)])
        limits = {uuid: (power, slowdown) for uuid, power, slowdown in cursor.fetchall()}
    rows = Unit.objects.filter(gpu__host__in=hosts).order_by("pk")
    for host, uuid, pk, memory, gpu, retired_at in rows.values_list(
        "gpu__host_id", "uuid", "pk", "memory_mib", "gpu__uuid", "retired_at"
    ):
        power, slowdown = limits.get(gpu, (None, None))
        yield host, uuid, retired_at is not None, KnownUnit(pk, UnitLimits(memory, power, slowdown))
