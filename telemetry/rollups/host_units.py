"""The units of hosts as arrays, and rows of rollups from the usage of these units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from scheduler.models import Unit
from telemetry.core.rollup_arrays import Bools, Ints, UsageArrays
from telemetry.rollups.storage import OpenRows


@dataclass(frozen=True, slots=True)
class HostUnits:
    """The units of ``hosts``, sorted by id. ``host`` is the position of the unit's host."""

    hosts: Sequence[int]
    ids: Ints
    host: Ints
    simulated: Bools


def load_units(hosts: Sequence[int]) -> HostUnits:
    """Return the units of the hosts. Runs one query."""
    rows = Unit.objects.filter(gpu__host__in=hosts).order_by("pk")
    values = list(rows.values_list("pk", "gpu__host_id", "gpu__host__simulated"))
    place_of = {host: place for place, host in enumerate(hosts)}
    return HostUnits(
        hosts,
        np.array([unit for unit, *_ in values], np.int64),
        np.array([place_of[host] for _, host, _ in values], np.int64),
        np.array([simulated for *_, simulated in values], bool),
    )


def usage_rows(
    resolution: int,
    starts: Sequence[datetime],
    units: HostUnits,
    usage: UsageArrays,
    removed: Sequence[tuple[int, int]],
) -> OpenRows:
    """Return the usage as rows to write. ``starts`` are the starts of its buckets.

    ``removed`` are the (position of the unit, bucket) that have no rollups any more.
    """
    place = np.concatenate([usage.unit, np.array([unit for unit, _ in removed], np.int64)])
    bucket = np.concatenate([usage.bucket, np.array([number for _, number in removed], np.int64)])
    empty = [None] * len(removed)
    return OpenRows(
        resolution,
        [starts[number] for number in bucket.tolist()],
        np.array(units.hosts, np.int64)[units.host[place]].tolist(),
        units.ids[place].tolist(),
        [allocation or None for allocation in usage.allocation.tolist()] + empty,
        units.simulated[place].tolist(),
        {name: [*_known_values(usage, name), *empty] for name in usage.sums},
    )


def _known_values(usage: UsageArrays, name: str) -> list[int | None]:
    values = usage.sums[name].astype(object)
    if name in usage.known:
        values[~usage.known[name]] = None
    return list(values.tolist())
