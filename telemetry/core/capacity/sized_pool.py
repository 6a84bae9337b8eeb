"""Change the number of GPUs of one model in a snapshot, for a replay with another size of the pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from scheduler.core.model.snapshot import HostInfo, Snapshot, UnitInfo

SIZE_CHANGES = (-20, -10, 0, 10, 20, 30, 40)  # per cent of the present GPUs


def model_sizes(gpus: int, changes: Sequence[int] = SIZE_CHANGES) -> dict[int, int]:
    """Return the number of GPUs for each change in per cent.

    A change that rounds to the number of another change is left out: a small pool has fewer sizes.
    """
    found: dict[int, int] = {0: gpus}
    for change in sorted(changes, key=abs):
        size = max(1, round(gpus * (100 + change) / 100))
        if size not in found.values():
            found[change] = size
    return dict(sorted(found.items()))


def gpus_of_model(snapshot: Snapshot, model: str) -> list[int]:
    """Return the ids of the GPUs of a model, host by host."""
    return [
        gpu for _, gpu in sorted({(unit.host, unit.gpu) for unit in snapshot.units if unit.model == model})
    ]


def with_gpus(snapshot: Snapshot, model: str, gpus: int) -> Snapshot:
    """Return the snapshot with ``gpus`` GPUs of a model.

    Fewer GPUs: the last hosts lose theirs. More GPUs: hosts like the present ones are added in turn, and the
    last one may have fewer GPUs than its pattern.
    """
    present = gpus_of_model(snapshot, model)
    if gpus <= len(present):
        kept = set(present[:gpus])
        units = tuple(unit for unit in snapshot.units if unit.model != model or unit.gpu in kept)
        used = {unit.host for unit in units}
        lost = {unit.host for unit in snapshot.units} - used
        return replace(
            snapshot, units=units, hosts=tuple(host for host in snapshot.hosts if host.id not in lost)
        )
    if not present:
        raise ValueError(f"model: {model!r} has no GPU in the snapshot")
    hosts, added = _added_hosts(snapshot, model, gpus - len(present))
    return replace(snapshot, hosts=(*snapshot.hosts, *hosts), units=(*snapshot.units, *added))


def _added_hosts(snapshot: Snapshot, model: str, gpus: int) -> tuple[list[HostInfo], list[UnitInfo]]:
    patterns: dict[int, dict[int, list[UnitInfo]]] = defaultdict(lambda: defaultdict(list))
    for unit in sorted(snapshot.units, key=lambda unit: (unit.host, unit.gpu, unit.id)):
        if unit.model == model:
            patterns[unit.host][unit.gpu].append(unit)
    by_id = {host.id: host for host in snapshot.hosts}
    order = sorted(patterns)
    host_ids = count(max(by_id) + 1)
    gpu_ids = count(max(unit.gpu for unit in snapshot.units) + 1)
    unit_ids = count(max(unit.id for unit in snapshot.units) + 1)
    hosts: list[HostInfo] = []
    units: list[UnitInfo] = []
    for number in count():
        pattern = order[number % len(order)]
        host = replace(by_id[pattern], id=next(host_ids), name=f"{by_id[pattern].name}+{number + 1}")
        hosts.append(host)
        for parts in patterns[pattern].values():
            if not gpus:
                return hosts, units
            gpu = next(gpu_ids)
            units += [replace(unit, id=next(unit_ids), host=host.id, gpu=gpu) for unit in parts]
            gpus -= 1
        if not gpus:
            return hosts, units
    raise AssertionError("the loop ends when all GPUs are added")
