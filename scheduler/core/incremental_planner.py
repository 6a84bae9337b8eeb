"""Keep one snapshot up to date with deltas (sets of changed rows), and plan on it.

    planner = IncrementalPlanner(snapshot)
    planner.change(SnapshotDelta(queued=(new,), running_gone=(17,)))
    planner.plan(now) == plan(planner.snapshot(), now)  # byte for byte

A delta has the new and changed rows, and the keys of removed rows. Applying a delta a second time has no
effect. The key of a row is its id, with three exceptions. The key of a quota is (team, pool, model), and that
of decayed use is (team, pool). The key of a maintenance window, which has no id, is the whole window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from scheduler.core.model.plan import Plan
from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.snapshot import (
    MaintenanceInfo,
    QueuedWorkload,
    Snapshot,
)
from scheduler.core.model.snapshot_delta import REMOVED_KEYS_FIELD, SNAPSHOT_TABLES, SnapshotDelta, row_key
from scheduler.core.planner import plan_pools


class IncrementalPlanner:
    """A snapshot that changes, with its pools arranged for planning.

    A change of workloads updates only the changed rows. The arrays of a pool are rebuilt only if its hosts,
    units or policy change.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.epoch = snapshot.epoch
        self._rows: dict[str, dict[Any, Any]] = {
            name: {row_key(row): row for row in getattr(snapshot, name)} for name in SNAPSHOT_TABLES
        }
        self._pools: dict[int, PoolSnapshot] = {}
        self._unknown_pool: dict[int, QueuedWorkload] = {}
        self._rebuild_pools()

    def change(self, delta: SnapshotDelta) -> None:
        """Apply a delta."""
        if delta.epoch is not None:
            self.epoch = delta.epoch
        changed = {name: self._change_rows(name, delta) for name in SNAPSHOT_TABLES}
        if changed["pools"] and self._rows["pools"].keys() != self._pools.keys():
            self._rebuild_pools()
            return
        for pool in changed["pools"]:
            self._pools[pool].set_pool(self._rows["pools"][pool])
        if changed["hosts"] or changed["units"]:
            self._change_hardware(changed)
        self._change_pool_tables(changed)
        self._change_workloads("running", changed["running"], PoolSnapshot.change_running)
        self._change_workloads("queued", changed["queued"], PoolSnapshot.change_queued)

    def _change_pool_tables(self, changed: dict[str, dict[Any, Any]]) -> None:
        """Replace each changed small table, such as quotas or reservations, as a whole in every pool."""
        for name, set_rows in (
            ("quotas", PoolSnapshot.set_quotas),
            ("reservations", PoolSnapshot.set_reservations),
            ("maintenance", PoolSnapshot.set_maintenance),
        ):
            if changed[name]:
                for pool_snapshot in self._pools.values():
                    set_rows(pool_snapshot, self._rows[name].values())
        if changed["teams"] or changed["decayed_use"]:
            for pool_snapshot in self._pools.values():
                pool_snapshot.set_decayed_use(
                    self._rows["teams"].values(), self._rows["decayed_use"].values()
                )

    def _change_rows(self, name: str, delta: SnapshotDelta) -> dict[Any, Any]:
        """Apply the delta to one table. Return, for each changed key, its old row, or None for a new key."""
        rows, changed = self._rows[name], {}
        for removed in getattr(delta, REMOVED_KEYS_FIELD[name]):
            key = row_key(removed) if isinstance(removed, MaintenanceInfo) else removed
            if key in rows:
                changed[key] = rows.pop(key)
        for row in getattr(delta, name):
            key = row_key(row)
            old = rows.get(key)
            if old is not row and old != row:
                changed.setdefault(key, old)
                rows[key] = row
        return changed

    def _change_hardware(self, changed: dict[str, dict[Any, Any]]) -> None:
        """Rebuild the hardware of the pools whose hosts or units changed."""
        hosts = {*changed["hosts"]} | {unit.host for unit in changed["units"].values() if unit is not None}
        hosts |= {self._rows["units"][unit].host for unit in changed["units"] if unit in self._rows["units"]}
        rows = [*(row for row in changed["hosts"].values() if row is not None)]
        rows += [self._rows["hosts"][host] for host in hosts if host in self._rows["hosts"]]
        for pool in {row.pool for row in rows} & self._pools.keys():
            pool_snapshot = self._pools[pool]
            pool_snapshot.set_hardware(self._rows["hosts"].values(), self._rows["units"].values())
            pool_snapshot.set_maintenance(self._rows["maintenance"].values())

    def _change_workloads(
        self, name: str, changed: dict[Any, Any], change: Callable[[PoolSnapshot, list[int], list[Any]], None]
    ) -> None:
        """Apply the changed rows of running or waiting work to their pools."""
        removed: dict[int, list[int]] = defaultdict(list)
        new: dict[int, list[Any]] = defaultdict(list)
        for key, old in changed.items():
            row = self._rows[name].get(key)
            if old is not None and (row is None or row.pool != old.pool):
                removed[old.pool].append(key)
            if row is not None:
                new[row.pool].append(row)
        for pool in {*removed, *new}:
            if pool in self._pools:
                change(self._pools[pool], removed[pool], new[pool])
            elif name == "queued":
                for key in removed[pool]:
                    self._unknown_pool.pop(key, None)
                self._unknown_pool.update((row.id, row) for row in new[pool])

    def _rebuild_pools(self) -> None:
        """Rebuild every pool from the current rows."""
        snapshot = self.snapshot()
        self._pools = {pool.id: PoolSnapshot(snapshot, pool) for pool in snapshot.pools}
        self._unknown_pool = {
            queued.id: queued for queued in snapshot.queued if queued.pool not in self._pools
        }

    def snapshot(self) -> Snapshot:
        """Return the current snapshot, with each table sorted by key."""
        tables = {
            name: tuple(self._rows[name][key] for key in sorted(self._rows[name])) for name in SNAPSHOT_TABLES
        }
        return Snapshot(self.epoch, **tables)

    def plan(self, now: int, *, explain: bool = True) -> Plan:
        """Return the plan. It is equal to ``plan(self.snapshot(), now, explain=explain)``, byte for byte."""
        pools = [self._pools[pool] for pool in sorted(self._pools)]
        return plan_pools(self.epoch, pools, list(self._unknown_pool.values()), now, explain)
