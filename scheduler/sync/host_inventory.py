"""Store a host's reported GPUs as Gpu and Unit rows.

The units of a GPU change only while no workload holds a part of the GPU.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import NumericRange
from django.db.models import F

from agent.protocol import (
    LONGEST_PATH,
    MOST_EXPOSED,
    MOST_PACKAGES,
    EnvironmentSeen,
    GpuSeen,
    Inventory,
    MigProfileSeen,
    UnitSeen,
)
from scheduler.coordination import locks
from scheduler.core.fit.mig_layout import COMPUTE_SLICES_PER_GPU
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Allocation, Gpu, GpuStateChange, Host, Unit
from scheduler.services.hosts import follow_disk_problem
from scheduler.state import nudge
from scheduler.state.isolation import isolation_level
from scheduler.state.states import RepairState, change_state

MAX_GPUS = 64
MAX_PROFILES = 40  # maximum number of MIG profiles of one GPU model
MAX_MEMORY_SLICES = 16  # NVIDIA's boards have 8
MAX_DIAGNOSTICS = 20
DIAGNOSTIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{1,39}")
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?|")
MAX_WORD_LENGTH = 60  # characters of a package's name, a version or another short text
CHANGED_WHILE_HELD = "its geometry changed while a part of it was in use"
NOT_REPORTED = "its host does not report it any more"
REPORTED_AGAIN = "its host reports it again"
UnitLayout = set[tuple[str, str, int, int]]  # (profile, uuid, first slot within the GPU, number of slots)


# Not split: it is a list of checks, one per field.
def inventory_problem(host: Host, inventory: Inventory) -> str:
    """Return the first problem of a reported inventory, or an empty string if the inventory is valid.

    The text of a problem has the field, its value and the allowed values.
    """
    if len(inventory.gpus) > MAX_GPUS:
        return f"inventory.gpus: {len(inventory.gpus)} entries; allowed: at most {MAX_GPUS}"
    indices, uuids = [g.index for g in inventory.gpus], [g.uuid for g in inventory.gpus]
    if len(set(indices)) < len(indices) or len(set(uuids)) < len(uuids):
        return "inventory.gpus: two GPUs have the same index or uuid; allowed: each once"
    units = [unit.uuid for gpu in inventory.gpus for unit in gpu.units]
    if len(set(units)) < len(units):
        return (
            "inventory.gpus: two units have the same uuid; "
            "allowed: each uuid once, since claims and samples identify units by uuid"
        )
    found = next(filter(None, map(_problem_of_gpu, inventory.gpus)), "")
    found = found or _problem_of_profiles(inventory.mig_profiles)
    if found:
        return found
    if len(inventory.diagnostics) > MAX_DIAGNOSTICS or not all(
        map(DIAGNOSTIC_NAME.fullmatch, inventory.diagnostics)
    ):
        return (
            f"inventory.diagnostics: {len(inventory.diagnostics)} entries; "
            f"allowed: at most {MAX_DIAGNOSTICS}, "
            "names of 2 to 40 letters, digits, . _ and -"
        )
    if not ADDRESS.fullmatch(inventory.address):
        return (
            f"inventory.address: {inventory.address[:60]!r}; allowed: an IP address, a host name, or nothing"
        )
    if inventory.environment is not None and (found := _problem_of_environment(inventory.environment)):
        return found
    elsewhere = (
        Gpu.objects.filter(uuid__in=uuids, retired_at__isnull=True)
        .exclude(host=host)
        .select_related("host")
        .first()
    )
    if elsewhere is not None:
        return (
            f"inventory.gpus: {elsewhere.uuid} is a GPU of host {elsewhere.host.name}; "
            f"allowed: GPUs of {host.name}"
        )
    return ""


# Not split: it is a list of checks, one per group of fields.
def _problem_of_gpu(gpu: GpuSeen) -> str:
    where = f"inventory.gpus[{gpu.index}]"
    if not 0 <= gpu.index < 1000 or not gpu.uuid or len(gpu.uuid) > 80:
        return (
            f"{where}: index {gpu.index}, uuid {gpu.uuid[:90]!r}; "
            "allowed: index 0 to 999, uuid of 1 to 80 characters"
        )
    if (
        not gpu.model
        or len(gpu.model) > 60
        or not 0 <= gpu.memory_mib < 2**31
        or not 0 <= gpu.compute_capability < 2**15
    ):
        return (
            f"{where}: model {gpu.model[:70]!r}, memory_mib {gpu.memory_mib}, "
            f"compute_capability {gpu.compute_capability}"
        )
    if (
        any(n is not None and not 0 <= n < 2**15 for n in (gpu.nvlink_group, gpu.numa_node))
        or len(gpu.pci_bus_id) > 32
    ):
        return (
            f"{where}: nvlink_group {gpu.nvlink_group}, numa_node {gpu.numa_node}, "
            f"pci_bus_id {gpu.pci_bus_id[:40]!r}"
        )
    if (
        len(gpu.links) > MAX_GPUS
        or len(gpu.pcie) > MAX_WORD_LENGTH
        or any(len(way) > MAX_WORD_LENGTH for way in gpu.links.values())
    ):
        return (
            f"{where}: {len(gpu.links)} links, pcie {gpu.pcie[:70]!r}; "
            f"allowed: at most {MAX_GPUS} links, texts of at most {MAX_WORD_LENGTH} characters"
        )
    return _problem_of_units(gpu, where)


def _problem_of_units(gpu: GpuSeen, where: str) -> str:
    at = 0
    for unit in sorted(gpu.units, key=lambda u: u.first_slot):
        inside = at <= unit.first_slot and unit.slots > 0 and unit.first_slot + unit.slots <= SLOTS_PER_GPU
        if (
            not inside
            or not unit.uuid
            or len(unit.uuid) > 80
            or len(unit.profile) > 30
            or not 0 <= unit.memory_mib < 2**31
        ):
            return (
                f"{where}.units: {unit.uuid[:90]!r} takes slots "
                f"{unit.first_slot} to {unit.first_slot + unit.slots}; "
                f"allowed: ranges within 0 to {SLOTS_PER_GPU} that do not overlap"
            )
        at = unit.first_slot + unit.slots
    return ""


def _problem_of_profiles(offered: Mapping[str, Sequence[MigProfileSeen]]) -> str:
    if len(offered) > MAX_GPUS or any(len(profiles) > MAX_PROFILES for profiles in offered.values()):
        return (
            f"inventory.mig_profiles: allowed are {MAX_GPUS} models with at most {MAX_PROFILES} profiles each"
        )
    for model, profiles in offered.items():
        for one in profiles:
            if not _is_possible(one):
                return (
                    f"inventory.mig_profiles.{model[:60]}: {one.name[:40]!r} has slices {one.slices}, "
                    f"most {one.most}, size {one.size}; "
                    f"allowed: slices and most 1 to {COMPUTE_SLICES_PER_GPU}, "
                    f"size and starts within {MAX_MEMORY_SLICES}"
                )
    return ""


def _is_possible(profile: MigProfileSeen) -> bool:
    fits = (
        1 <= profile.slices <= COMPUTE_SLICES_PER_GPU
        and 1 <= profile.most <= COMPUTE_SLICES_PER_GPU
        and 0 <= profile.size <= MAX_MEMORY_SLICES
    )
    starts = len(profile.starts) <= MAX_MEMORY_SLICES and all(
        0 <= start < MAX_MEMORY_SLICES for start in profile.starts
    )
    return 0 < len(profile.name) <= 30 and fits and starts and 0 <= profile.memory_mib < 2**31


def _problem_of_environment(seen: EnvironmentSeen) -> str:
    where = "inventory.environment"
    if len(seen.python) > MAX_WORD_LENGTH or not seen.python.isprintable():
        return (
            f"{where}.python: {seen.python[:60]!r}; "
            f"allowed: a version of at most {MAX_WORD_LENGTH} characters"
        )
    if len(seen.packages) > MOST_PACKAGES or any(
        len(word) > MAX_WORD_LENGTH or not word.isprintable()
        for pair in seen.packages.items()
        for word in pair
    ):
        return (
            f"{where}.packages: {len(seen.packages)} entries; allowed: at most {MOST_PACKAGES}, "
            f"names and versions of at most {MAX_WORD_LENGTH} printable characters"
        )
    for path in seen.exposed:
        if not path.startswith("/") or len(path) > LONGEST_PATH or not path.isprintable():
            return (
                f"{where}.exposed: {path[:60]!r}; "
                f"allowed: an absolute path of at most {LONGEST_PATH} characters"
            )
    if len(seen.exposed) > MOST_EXPOSED:
        return f"{where}.exposed: {len(seen.exposed)} entries; allowed: at most {MOST_EXPOSED}"
    return ""


def inventory_digest(inventory: Inventory) -> str:
    """Return a digest of the inventory.

    The digest is stored with the host. An equal digest shows that a report has the stored inventory.
    """
    return hashlib.sha256(repr(inventory).encode("utf-8", "backslashreplace")).hexdigest()


def store_inventory(host: Host, inventory: Inventory, now: datetime) -> bool:
    """Update the rows of a host, its GPUs and its units from its report. The caller has locked the host.

    Return False if the report equals the stored inventory, and the stored inventory was applied in full. A
    change of a GPU that a workload holds is not applied. The first report after the GPU is free applies it.
    """
    reported, short = dataclasses.asdict(inventory), inventory_digest(inventory)
    before = host.hardware
    if before.get("reported") == reported and before.get("applied") and before.get("digest") == short:
        return False
    known = _known_gpus(host, [seen.uuid for seen in inventory.gpus])
    held = _held_gpus(known.values())
    applied = _retire_missing(known, {gpu.uuid for gpu in inventory.gpus}, held, host, now)
    for seen in inventory.gpus:
        if seen.uuid in known:
            gpu = _gpu(host, known[seen.uuid], seen, now)
            applied = _units(gpu, seen, gpu.pk in held, now) and applied
    _create_gpus(host, [seen for seen in inventory.gpus if seen.uuid not in known], now)
    _store_host_hardware(host, inventory, {"reported": reported, "applied": applied, "digest": short}, now)
    nudge.engine()
    nudge.pages(nudge.HOSTS)
    return True


def _known_gpus(host: Host, reported: Sequence[str]) -> dict[str, Gpu]:
    """Return GPU rows by uuid: all rows of the host, and rows of reported GPUs from other hosts of the pool.

    Rows of another pool or of a removed host are left out, because they are kept as history. A GPU that has
    only such rows gets a new row.
    """
    rows = Gpu.objects.filter(pool=host.pool_id).order_by(F("retired_at").asc(nulls_last=True), "pk")
    elsewhere = rows.filter(uuid__in=reported, host__removed_at=None).exclude(host=host)
    # If a GPU has several rows, the row that is not retired comes last and replaces the others in the dict.
    return {gpu.uuid: gpu for gpu in (*elsewhere, *rows.filter(host=host))}


def _held_gpus(gpus: Iterable[Gpu]) -> set[int]:
    held = Allocation.objects.filter(period__upper_inf=True, unit__gpu__in=[gpu.pk for gpu in gpus])
    return set(held.values_list("unit__gpu_id", flat=True))


def _retire_missing(known: dict[str, Gpu], seen: set[str], held: set[int], host: Host, now: datetime) -> bool:
    """Retire GPUs that the host no longer reports, and mark them as missing.

    A missing GPU that a workload holds is quarantined and not retired. Return False if there is such a GPU.
    """
    applied = True
    for gpu in known.values():
        if gpu.uuid in seen or gpu.retired_at is not None or gpu.host_id != host.pk:
            continue
        if gpu.pk in held:
            _quarantine(gpu, NOT_REPORTED, now)
            applied = False
        else:
            Unit.objects.filter(gpu=gpu, retired_at__isnull=True).update(retired_at=now)
            Gpu.objects.filter(pk=gpu.pk).update(retired_at=now)
            if gpu.state_reason != NOT_REPORTED:  # otherwise the change was already recorded
                GpuStateChange.objects.create(
                    gpu=gpu, repair_state=gpu.repair_state, reason=NOT_REPORTED, at=now
                )
        Gpu.objects.filter(pk=gpu.pk, missing_since__isnull=True).update(missing_since=now)
    return applied


@transaction.atomic
def retire_missing_gpu(gpu: Gpu) -> bool:
    """Mark a missing GPU as removed by an operator.

    Return False if the GPU is not missing or a workload still holds it.
    """
    locks.hosts([gpu.host_id])
    missing = Gpu.objects.filter(pk=gpu.pk, missing_since__isnull=False, retired_at__isnull=False)
    removed = missing.update(missing_since=None) == 1
    if removed:
        nudge.pages(nudge.HOSTS)
    return removed


def _create_gpus(host: Host, new: list[GpuSeen], now: datetime) -> None:
    """Create new GPUs and their units in bulk, because many hosts may report at once after an outage."""
    if not new:
        return
    for other in Gpu.objects.filter(
        host=host, index__in=[seen.index for seen in new], retired_at__isnull=True
    ):
        # The missing GPU ``other`` is still held. Its row stays, but the new GPU has the same index. So the
        # row gets a spare index.
        Gpu.objects.filter(pk=other.pk).update(index=_spare_index(host))
    repairs = _earlier_repairs([seen.uuid for seen in new])
    gpus = Gpu.objects.bulk_create(
        Gpu(uuid=seen.uuid, created_at=now, **_facts(host, seen), **repairs.get(seen.uuid, {}))
        for seen in new
    )
    GpuStateChange.objects.bulk_create(
        GpuStateChange(gpu=gpu, repair_state=gpu.repair_state, reason=gpu.state_reason, at=now)
        for gpu in gpus
        if gpu.repair_state != RepairState.WELL
    )
    Unit.objects.bulk_create(
        _unit_of(gpu, unit, now) for gpu, seen in zip(gpus, new, strict=True) for unit in seen.units
    )


def _earlier_repairs(uuids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the repair state and reason of GPUs that were quarantined or out in an earlier row, by uuid.

    An earlier row belongs to a former host or pool of the GPU. ``missing_since`` of these rows is cleared,
    because the GPU was found again.
    """
    rows = Gpu.objects.filter(uuid__in=uuids)
    last = {gpu.uuid: gpu for gpu in rows.order_by("pk")}
    rows.filter(missing_since__isnull=False).update(missing_since=None)
    return {
        uuid: {"repair_state": gpu.repair_state, "state_reason": gpu.state_reason}
        for uuid, gpu in last.items()
        if gpu.repair_state in (RepairState.QUARANTINED, RepairState.OUT) and gpu.state_reason != NOT_REPORTED
    }


def _facts(host: Host, seen: GpuSeen) -> dict[str, Any]:
    return {
        "host": host,
        "pool_id": host.pool_id,
        "index": seen.index,
        "model": seen.model,
        "memory_mib": seen.memory_mib,
        "compute_capability": seen.compute_capability,
        "nvlink_group": seen.nvlink_group,
        "numa_node": seen.numa_node,
        "pci_bus_id": seen.pci_bus_id,
        "retired_at": None,
        "missing_since": None,
    }


def _gpu(host: Host, known: Gpu, seen: GpuSeen, now: datetime) -> Gpu:
    # If two GPUs have swapped their indices, an update of one row would violate the unique constraint. So the
    # other row gets a spare index first.
    Gpu.objects.filter(host=host, index=seen.index, retired_at__isnull=True).exclude(pk=known.pk).update(
        index=_spare_index(host)
    )
    was_missing = known.missing_since is not None
    Gpu.objects.filter(pk=known.pk).update(**_facts(host, seen))
    known.refresh_from_db()
    if known.repair_state == RepairState.QUARANTINED and known.state_reason == NOT_REPORTED:
        _return(known, REPORTED_AGAIN, now)
    elif was_missing:
        GpuStateChange.objects.create(
            gpu=known, repair_state=known.repair_state, reason=REPORTED_AGAIN, at=now
        )
    return known


def _spare_index(host: Host) -> int:
    used = set(Gpu.objects.filter(host=host, retired_at__isnull=True).values_list("index", flat=True))
    return next(number for number in range(10_000, 20_000) if number not in used)


def _units(gpu: Gpu, seen: GpuSeen, held: bool, now: datetime) -> bool:
    """Update the units of a GPU from the report.

    A GPU in MIG mode without instances reports no units, so no workload can get a part of it.

    Return False if the GPU's geometry changed while a workload holds a part of it. The GPU is then
    quarantined, and its units stay unchanged.
    """
    rows = list(Unit.objects.filter(gpu=gpu, retired_at__isnull=True))
    wanted = seen.units
    new: UnitLayout = {(u.profile, u.uuid, u.first_slot, u.slots) for u in wanted}
    old: UnitLayout = {_unit_layout(gpu, row) for row in rows}
    if new != old:
        if held:
            _quarantine(gpu, CHANGED_WHILE_HELD, now)
            return False
        Unit.objects.filter(pk__in=[row.pk for row in rows if _unit_layout(gpu, row) not in new]).update(
            retired_at=now
        )
        for unit in wanted:
            if (unit.profile, unit.uuid, unit.first_slot, unit.slots) not in old:
                _new_unit(gpu, unit, now)
    if gpu.repair_state == RepairState.QUARANTINED and gpu.state_reason == CHANGED_WHILE_HELD:
        _return(gpu, "its new geometry is applied", now)
    return True


def _unit_layout(gpu: Gpu, row: Unit) -> tuple[str, str, int, int]:
    return (row.profile, row.uuid, row.slots.lower - gpu.first_slot, row.slots.upper - row.slots.lower)


def _new_unit(gpu: Gpu, unit: UnitSeen, now: datetime) -> None:
    """Create a unit. If the GPU has an equal retired unit, reactivate it, so that its history continues."""
    made = _unit_of(gpu, unit, now)
    before = Unit.objects.filter(gpu=gpu, profile=unit.profile, uuid=unit.uuid, slots=made.slots).first()
    if before is not None:
        Unit.objects.filter(pk=before.pk).update(retired_at=None, memory_mib=unit.memory_mib)
        return
    made.save(force_insert=True)


def _unit_of(gpu: Gpu, unit: UnitSeen, now: datetime) -> Unit:
    first = gpu.first_slot + unit.first_slot
    slots = NumericRange(first, first + unit.slots)
    return Unit(
        gpu=gpu, profile=unit.profile, uuid=unit.uuid, slots=slots, memory_mib=unit.memory_mib, created_at=now
    )


def _quarantine(gpu: Gpu, reason: str, now: datetime) -> None:
    if gpu.repair_state == RepairState.WELL and change_state(
        gpu, "repair_state", old=RepairState.WELL, new=RepairState.QUARANTINED, state_reason=reason
    ):
        GpuStateChange.objects.create(gpu=gpu, repair_state=gpu.repair_state, reason=reason, at=now)


def _return(gpu: Gpu, reason: str, now: datetime) -> None:
    if change_state(gpu, "repair_state", old=RepairState.QUARANTINED, new=RepairState.WELL, state_reason=""):
        GpuStateChange.objects.create(gpu=gpu, repair_state=gpu.repair_state, reason=reason, at=now)


def _store_host_hardware(host: Host, inventory: Inventory, hardware: dict[str, Any], now: datetime) -> None:
    host.hardware = hardware
    host.cpu_milli, host.memory_mib = (
        max(0, min(inventory.cpu_milli, 2**31 - 1)),
        max(0, min(inventory.memory_mib, 2**31 - 1)),
    )
    host.isolation, host.simulated = inventory.isolation[:20], inventory.simulated
    host.isolation_level, host.disk_full = isolation_level(hardware["reported"]), inventory.disk_full
    host.person_users = inventory.person_users
    host.disk_full_since = (host.disk_full_since or now) if inventory.disk_full else None
    columns = ["hardware", "cpu_milli", "memory_mib", "isolation", "isolation_level", "simulated"]
    host.save(update_fields=[*columns, "person_users", "disk_full", "disk_full_since"])
    # A semicolon separates the reasons of a closed host.
    follow_disk_problem(host, inventory.disk_problem.replace(";", ","), now=now)
