"""Describe the difference between two snapshots: the new or changed rows, and the keys of removed rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from scheduler.core.model.snapshot import (
    DecayedUseInfo,
    HostInfo,
    MaintenanceInfo,
    PoolInfo,
    QueuedWorkload,
    QuotaInfo,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)


@dataclass(frozen=True, slots=True)
class SnapshotDelta:
    """The changes between two snapshots.

    ``..._gone`` are the keys of removed rows. Removals are applied before additions. Keys that the snapshot
    does not have are ignored.
    """

    epoch: int | None = None  # the new epoch, or None if it is unchanged
    pools: tuple[PoolInfo, ...] = ()
    pools_gone: tuple[int, ...] = ()
    hosts: tuple[HostInfo, ...] = ()
    hosts_gone: tuple[int, ...] = ()
    units: tuple[UnitInfo, ...] = ()
    units_gone: tuple[int, ...] = ()
    teams: tuple[TeamInfo, ...] = ()
    teams_gone: tuple[int, ...] = ()
    quotas: tuple[QuotaInfo, ...] = ()
    quotas_gone: tuple[tuple[int, int, str], ...] = ()  # (team, pool, model)
    decayed_use: tuple[DecayedUseInfo, ...] = ()
    decayed_use_gone: tuple[tuple[int, int], ...] = ()  # (team, pool)
    queued: tuple[QueuedWorkload, ...] = ()
    queued_gone: tuple[int, ...] = ()
    running: tuple[RunningWorkload, ...] = ()
    running_gone: tuple[int, ...] = ()
    reservations: tuple[ReservationInfo, ...] = ()
    reservations_gone: tuple[int, ...] = ()
    maintenance: tuple[MaintenanceInfo, ...] = ()
    maintenance_gone: tuple[MaintenanceInfo, ...] = ()


def row_key(row: Any) -> Any:
    """Return the key that identifies a row in its table."""
    if isinstance(row, QuotaInfo):
        return row.team, row.pool, row.model
    if isinstance(row, DecayedUseInfo):
        return row.team, row.pool
    if isinstance(row, MaintenanceInfo):
        return row.host, row.start, row.end
    return int(row.id)


SNAPSHOT_TABLES = tuple(f.name for f in fields(Snapshot) if f.name != "epoch")


REMOVED_KEYS_FIELD = {name: f"{name}_gone" for name in SNAPSHOT_TABLES}


def sort_rows(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with each table sorted by key.

    If several rows of a table have the same key, only the last of these rows is kept.
    """
    rows = {name: {row_key(row): row for row in getattr(snapshot, name)} for name in SNAPSHOT_TABLES}
    return Snapshot(
        snapshot.epoch,
        **{name: tuple(rows[name][key] for key in sorted(rows[name])) for name in SNAPSHOT_TABLES},
    )


def snapshot_difference(old: Snapshot, new: Snapshot) -> SnapshotDelta:
    """Return the changes from ``old`` to ``new``. The result is empty if both snapshots have equal rows."""
    changes: dict[str, Any] = {} if old.epoch == new.epoch else {"epoch": new.epoch}
    for name in SNAPSHOT_TABLES:
        before = {row_key(row): row for row in getattr(old, name)}
        after = {row_key(row): row for row in getattr(new, name)}
        changes[name] = tuple(row for key, row in after.items() if before.get(key) != row)
        gone = tuple(key for key in before if key not in after)
        changes[f"{name}_gone"] = tuple(before[key] for key in gone) if name == "maintenance" else gone
    return SnapshotDelta(**changes)
