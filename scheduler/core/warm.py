"""One snapshot kept warm: changed by deltas instead of read afresh, and planned on.

    standing = Standing(snapshot)
    standing.change(Delta(queued=(new,), running_gone=(17,)))
    standing.plan(now) == plan(standing.snapshot(), now)  # byte for byte

A delta names whole rows that are new or changed, and the keys of rows that are gone; giving the same one twice changes
nothing more. Rows are keyed by id, quotas by (team, pool, model), decayed use by (team, pool), and maintenance, which
has no id, by the whole window.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from scheduler.core.model import (
    DecayedUse,
    Host,
    Maintenance,
    Plan,
    Pool,
    Queued,
    Quota,
    Reservation,
    Running,
    Snapshot,
    Team,
    Unit,
)
from scheduler.core.planner import plan


@dataclass(frozen=True, slots=True)
class Delta:
    """Rows that are new or changed, and the keys of those that are gone; the gone go first. Unknown keys are let be."""

    epoch: int | None = None  # None: as it was
    pools: tuple[Pool, ...] = ()
    pools_gone: tuple[int, ...] = ()
    hosts: tuple[Host, ...] = ()
    hosts_gone: tuple[int, ...] = ()
    units: tuple[Unit, ...] = ()
    units_gone: tuple[int, ...] = ()
    teams: tuple[Team, ...] = ()
    teams_gone: tuple[int, ...] = ()
    quotas: tuple[Quota, ...] = ()
    quotas_gone: tuple[tuple[int, int, str], ...] = ()  # (team, pool, model)
    decayed_use: tuple[DecayedUse, ...] = ()
    decayed_use_gone: tuple[tuple[int, int], ...] = ()  # (team, pool)
    queued: tuple[Queued, ...] = ()
    queued_gone: tuple[int, ...] = ()
    running: tuple[Running, ...] = ()
    running_gone: tuple[int, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    reservations_gone: tuple[int, ...] = ()
    maintenance: tuple[Maintenance, ...] = ()
    maintenance_gone: tuple[Maintenance, ...] = ()


def key_of(row: Any) -> Any:
    """What a row is known by."""
    if isinstance(row, Quota):
        return row.team, row.pool, row.model
    if isinstance(row, DecayedUse):
        return row.team, row.pool
    if isinstance(row, Maintenance):
        return row.host, row.start, row.end
    return int(row.id)


TABLES = tuple(f.name for f in fields(Snapshot) if f.name != "epoch")


def in_order(snapshot: Snapshot) -> Snapshot:
    """The same snapshot with every table's rows in the order of their keys, each key once (the last row counts)."""
    rows = {name: {key_of(row): row for row in getattr(snapshot, name)} for name in TABLES}
    return Snapshot(snapshot.epoch, **{name: tuple(rows[name][key] for key in sorted(rows[name])) for name in TABLES})


def difference(old: Snapshot, new: Snapshot) -> Delta:
    """The delta that makes ``new`` of ``old``; empty when they say the same."""
    changes: dict[str, Any] = {} if old.epoch == new.epoch else {"epoch": new.epoch}
    for name in TABLES:
        before = {key_of(row): row for row in getattr(old, name)}
        after = {key_of(row): row for row in getattr(new, name)}
        changes[name] = tuple(row for key, row in after.items() if before.get(key) != row)
        gone = tuple(key for key in before if key not in after)
        changes[f"{name}_gone"] = tuple(before[key] for key in gone) if name == "maintenance" else gone
    return Delta(**changes)


class Standing:
    """A snapshot that changes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.epoch = snapshot.epoch
        self._rows: dict[str, dict[Any, Any]] = {
            name: {key_of(row): row for row in getattr(snapshot, name)} for name in TABLES
        }

    def change(self, delta: Delta) -> None:
        """Take over what is new, changed and gone."""
        if delta.epoch is not None:
            self.epoch = delta.epoch
        for name in TABLES:
            rows = self._rows[name]
            for gone in getattr(delta, f"{name}_gone"):
                rows.pop(key_of(gone) if isinstance(gone, Maintenance) else gone, None)
            for row in getattr(delta, name):
                rows[key_of(row)] = row

    def snapshot(self) -> Snapshot:
        """What a fresh reading would give, rows in the order of their keys."""
        tables = {name: tuple(self._rows[name][key] for key in sorted(self._rows[name])) for name in TABLES}
        return Snapshot(self.epoch, **tables)

    def plan(self, now: int, *, explain: bool = True) -> Plan:
        """The same as ``plan(self.snapshot(), now, explain=explain)``, byte for byte."""
        return plan(self.snapshot(), now, explain=explain)
