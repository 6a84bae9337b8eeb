"""Keep the engine's snapshot between cycles, and read only the rows that the change feed lists.

The cached snapshot must always equal a fresh snapshot, and tests check this. A self-check every
``SELF_CHECK_SECONDS`` compares the cached snapshot with a fresh snapshot. If the two differ, the self-check
logs the difference and the cache continues with the fresh snapshot.

Everything is read again in these cases:

- The epoch changed. Another leader may have pruned changes that this process has not read.
- An error occurred.
- The clock was set back.
- There are more than ``MAX_INCREMENTAL_CHANGES`` changes, or a whole table was truncated.
- The caller has opened a transaction, now or at the last refresh. It may roll back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from scheduler.core.incremental_planner import IncrementalPlanner
from scheduler.core.model.plan import Refusal
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.model.snapshot_delta import SNAPSHOT_TABLES, SnapshotDelta, row_key, sort_rows
from scheduler.cycle import core_values, snapshot_rows
from scheduler.cycle import snapshot as reading
from scheduler.cycle.gc_pause import gc_paused
from scheduler.models import Workload
from scheduler.state import change_feed

log = logging.getLogger(__name__)

SELF_CHECK_SECONDS = 60
MAX_INCREMENTAL_CHANGES = 5_000  # rows; above this, one full read is faster
# Replan after this time even without a change, because estimates and fair shares depend on time.
MAX_PLAN_AGE_SECONDS = 10

TableRows = dict[Any, Any]


@dataclass
class SnapshotCache:
    """The snapshot that one process keeps. ``refresh`` updates it.

    ``standing`` is the planner that holds the snapshot and plans on it. Inside a caller's transaction every
    refresh reads everything, because the caller may roll back.
    """

    prunes_feed: bool = True  # only the leader's cache may prune the change feed
    standing: IncrementalPlanner = field(default_factory=lambda: IncrementalPlanner(Snapshot(epoch=0)))
    # the refusal that is stored in each workload's row, by workload id
    reported: dict[int, Refusal] = field(default_factory=dict)
    full_reads: int = 0
    _rows: snapshot_rows.SnapshotRows | None = None
    _seen: str = ""
    _tables: dict[str, TableRows] = field(default_factory=dict)
    _effects: reading.TimeEffects | None = None
    _slots: dict[tuple[int, int], int] | None = None
    _read_at: datetime | None = None
    _checked_at: datetime | None = None
    _plan_due: datetime | None = None

    def invalidate(self) -> None:
        """Discard the rows, so that the next refresh reads everything."""
        self._rows = None
        self._plan_due = None
        self.reported.clear()

    def refresh(self, epoch: int, now: datetime) -> None:
        """Update the snapshot with all committed changes, for the leader with this epoch."""
        may_keep = self._rows is not None and self._rows.epoch == epoch and not connection.in_atomic_block
        if not may_keep or self._read_at is None or now < self._read_at:
            self._read_all(epoch, now)
            return
        check = self._checked_at is None or now - self._checked_at >= timedelta(seconds=SELF_CHECK_SECONDS)
        fresh = None
        with snapshot_rows.repeatable_read(), gc_paused():
            changes = change_feed.read_changes(self._seen)
            if _needs_full_read(changes.changed):
                self._replace_all(epoch, now, snapshot_rows.SnapshotReader(None, now).read(), changes.seen)
            else:
                touched = self._read_again(changes.changed, now)
                fresh = snapshot_rows.SnapshotReader(None, now).read() if check else None
                self._seen, self._read_at = changes.seen, now
                self._update_standing(touched, changes.changed, now)
        if changes.changed and self.prunes_feed:
            change_feed.prune_changes(self._seen)
        if fresh is not None:
            self._compare(fresh, epoch, now)

    def plan_is_due(self, now: datetime) -> bool:
        """Return True if a change or the elapsed time may lead to a different plan."""
        return self._plan_due is None or now >= self._plan_due

    def note_applied_plan(self, now: datetime, reported: Mapping[int, Refusal], *, complete: bool) -> None:
        """Record that a plan for ``now`` was applied.

        ``reported`` maps a workload's id to the refusal that is stored in its row. ``complete`` is False if
        parts of the plan were rejected. The next cycle then plans again.
        """
        self.reported.update(reported)
        if complete:
            self._plan_due = min(now + timedelta(seconds=MAX_PLAN_AGE_SECONDS), self._next_time_change(now))

    # -- reading ------------------------------------------------------------------------------------

    def _read_all(self, epoch: int, now: datetime) -> None:
        with snapshot_rows.repeatable_read(), gc_paused():
            seen = change_feed.current_position()
            rows = snapshot_rows.SnapshotReader(None, now).read()
        self._replace_all(epoch, now, rows, seen)
        if connection.in_atomic_block:
            self._read_at = None  # the caller may roll these rows back
        elif self.prunes_feed:
            change_feed.prune_changes(seen)

    def _replace_all(self, epoch: int, now: datetime, rows: snapshot_rows.SnapshotRows, seen: str) -> None:
        self.full_reads += 1
        rows.epoch = epoch
        self._rows, self._seen, self._read_at, self._checked_at = rows, seen, now, now
        snapshot = reading.build_snapshot(rows, now)
        self._tables = {
            name: {row_key(row): row for row in getattr(snapshot, name)} for name in SNAPSHOT_TABLES
        }
        self._effects, self._slots = reading.time_effects(rows, now), None
        self.standing = IncrementalPlanner(snapshot)
        self.reported.clear()
        self._plan_due = None

    def _read_again(self, changed: Mapping[str, set[int]], now: datetime) -> dict[str, set[Any]]:
        """Read the changed rows. Return the ids of workloads, hosts and units that may have changed."""
        rows, reader = self._loaded_rows(), snapshot_rows.SnapshotReader(None, now)
        workloads = set(changed.get("workload", ()))
        if "reservation" in changed:
            inside = Workload.objects.filter(reservation__in=changed["reservation"]).values_list(
                "pk", flat=True
            )
            workloads |= {pk for pk in inside if pk in rows.queued or pk in rows.running}
        units = self._read_workloads(workloads, reader) if workloads else set()
        hosts = changed.get("host", set())
        if hosts:
            _replace(rows.hosts, hosts, reader.hosts(hosts))
        units |= changed.get("unit", set())
        units = self._read_units(units, changed.get("gpu", set()), reader)
        self._read_small_tables(changed, reader)
        return {"workloads": workloads, "hosts": hosts, "units": units}

    def _read_units(self, units: set[int], gpus: set[int], reader: snapshot_rows.SnapshotReader) -> set[int]:
        """Read the rows of ``units`` and of all units of ``gpus``. Return the ids of these units."""
        rows = self._loaded_rows()
        if gpus:
            units = units | {pk for pk, unit in rows.units.items() if unit.gpu in gpus}
        if units or gpus:
            fresh_units, retired = reader.units(units, gpus)
            units = units | fresh_units.keys()
            _replace(rows.units, units, fresh_units)
            rows.retired = rows.retired - units | retired
        return units

    def _read_small_tables(self, changed: Collection[str], reader: snapshot_rows.SnapshotReader) -> None:
        """Read all rows of each small table that has a change."""
        rows = self._loaded_rows()
        if "quota" in changed:
            rows.quotas = reader.quotas()
        if "gate" in changed:
            rows.gates = reader.gates()
        if "reservation" in changed:
            rows.promised = reader.promised()
        if "reservation" in changed or "bound" in changed:
            rows.bound = reader.bound()
        if "maintenance" in changed:
            rows.maintenance = reader.maintenance()
        if "use" in changed:
            rows.used = reader.used()

    def _read_workloads(self, ids: set[int], reader: snapshot_rows.SnapshotReader) -> set[int]:
        """Read the rows and open allocations of workloads. Return the ids of units that must be read too.

        Two kinds of units must be read. The first kind are retired units that the workloads held before: a
        retired unit stays in the snapshot only while it is held. The second kind are units that the workloads
        hold now and that the cache does not have.
        """
        rows = self._loaded_rows()
        before = {unit for pk in ids if pk in rows.held for unit in rows.held[pk].units}
        held = reader.held(ids)
        _replace(rows.held, ids, held)
        _replace(rows.running, ids, reader.running(held))
        _replace(rows.queued, ids, reader.queued(ids))
        self._slots = None
        for pk in ids:
            self.reported.pop(pk, None)
        after = {unit for holding in held.values() for unit in holding.units}
        return {unit for unit in before if unit in rows.retired} | {
            unit for unit in after if unit not in rows.units
        }

    def _loaded_rows(self) -> snapshot_rows.SnapshotRows:
        assert self._rows is not None, "no data was read yet"
        return self._rows

    # -- from rows to the standing snapshot ---------------------------------------------------------

    def _update_standing(
        self, touched: Mapping[str, set[Any]], changed: Collection[str], now: datetime
    ) -> None:
        """Update the snapshot of ``standing`` from the rows.

        ``touched`` has the ids of workloads, hosts and units that may have changed.
        """
        rows, before = self._loaded_rows(), self._effects
        effects = self._effects = reading.time_effects(rows, now)
        workloads: Iterable[int] = touched["workloads"]
        if before is None or not effects.affects_workloads_like(before):
            workloads = {*rows.queued, *rows.running, *workloads}
        if self._slots is None:
            self._slots = reading.held_slots(rows)
        delta: dict[str, tuple[Any, ...]] = {}
        self._collect_changes(delta, "hosts", touched["hosts"], rows.hosts)
        self._collect_changes(delta, "units", touched["units"], rows.units)
        queued = {pk: effects.queued(rows.queued[pk]) for pk in workloads if pk in rows.queued}
        self._collect_changes(delta, "queued", workloads, queued)
        running = {
            pk: effects.running(rows.running[pk], rows.held[pk]) for pk in workloads if pk in rows.running
        }
        self._collect_changes(delta, "running", workloads, running)
        self._collect_table_changes(delta, "quotas", rows.quotas)
        self._collect_table_changes(delta, "reservations", effects.reservations.values())
        self._collect_table_changes(delta, "maintenance", reading.open_maintenance(rows.maintenance, now))
        if delta:
            self._plan_due = None
        self._collect_table_changes(delta, "decayed_use", reading.decayed_use_at(rows, self._slots, now))
        if delta:
            self.standing.change(SnapshotDelta(**delta))  # type: ignore[arg-type]  # the epoch is not a table

    def _collect_changes(
        self, delta: dict[str, tuple[Any, ...]], name: str, keys: Iterable[Any], now: Mapping[Any, Any]
    ) -> None:
        """Add the new, changed and removed rows with these keys to ``delta``.

        ``now`` has the current rows by key.
        """
        table = self._tables[name]
        removed = tuple(key for key in keys if key in table and key not in now)
        new = tuple(now[key] for key in keys if key in now and table.get(key) != now[key])
        for key in removed:
            del table[key]
        table.update((row_key(row), row) for row in new)
        if new:
            delta[name] = new
        if removed:
            delta[f"{name}_gone"] = removed

    def _collect_table_changes(
        self, delta: dict[str, tuple[Any, ...]], name: str, rows: Iterable[Any]
    ) -> None:
        """Add the changes of a small table to ``delta``. ``rows`` are all current rows of the table."""
        table, now = self._tables[name], {row_key(row): row for row in rows}
        removed = [row for key, row in table.items() if key not in now]
        self._collect_changes(delta, name, [*now, *(row_key(row) for row in removed)], now)
        if removed and name == "maintenance":
            delta["maintenance_gone"] = tuple(removed)

    # -- self-check ---------------------------------------------------------------------------------

    def _compare(self, fresh: snapshot_rows.SnapshotRows, epoch: int, now: datetime) -> None:
        """Compare the cached snapshot with a fresh snapshot. If they differ, replace the cached snapshot."""
        fresh.epoch = epoch
        expected, actual = sort_rows(reading.build_snapshot(fresh, now)), sort_rows(self.standing.snapshot())
        differing = [name for name in SNAPSHOT_TABLES if getattr(expected, name) != getattr(actual, name)]
        self._checked_at = now
        if differing:
            log.error(
                "the cached snapshot differed from the database in %s: it was read again",
                ", ".join(differing),
            )
            self._replace_all(epoch, now, fresh, self._seen)

    def _next_time_change(self, now: datetime) -> datetime:
        """Return the next time at which elapsed time alone may change a decision.

        Ends of reservations and maintenance windows are not included: the next refresh finds them as
        changes.
        """
        at, tables = core_values.epoch_seconds(now), self._tables
        minimum = {pk: pool.policy.minimum_runtime_seconds for pk, pool in tables["pools"].items()}
        times = [queued.not_before for queued in tables["queued"].values()]
        times += [reservation.start for reservation in tables["reservations"].values()]
        times += [window.start for window in tables["maintenance"].values()]
        if tables["queued"]:
            times += [r.started + minimum.get(r.pool, 0) for r in tables["running"].values() if r.preemptible]
        next_time = min((time for time in times if time > at), default=None)
        return now + timedelta(seconds=MAX_PLAN_AGE_SECONDS if next_time is None else next_time - at)


def _needs_full_read(changed: Mapping[str, set[int]]) -> bool:
    return (
        change_feed.WHOLE_TABLE in changed
        or sum(len(ids) for ids in changed.values()) > MAX_INCREMENTAL_CHANGES
    )


def _replace(table: dict[int, Any], ids: Iterable[int], fresh: Mapping[int, Any]) -> None:
    """Replace the entries of ``ids`` by the entries in ``fresh``. Remove ids that are not in ``fresh``."""
    for pk in ids:
        table.pop(pk, None)
    table.update(fresh)
