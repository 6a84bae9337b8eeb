"""The engine's snapshot, kept between cycles: what the change feed names is read again, the rest stays as it was.

It equals a fresh one at every moment. That is tested, and checked while it works: every ``SELF_CHECK_SECONDS`` both are made of
one moment, a difference is logged, and the fresh one is taken. It is made afresh whenever there is doubt: under another
epoch (only the leader prunes the feed), after an error, when the clock went back, when very much has changed.
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
MAX_INCREMENTAL_CHANGES = 5_000  # rows; more are read sooner all together
MAX_PLAN_AGE_SECONDS = (
    10  # without any change, a plan is made anew after so long: estimates and shares move with time
)

TableRows = dict[Any, Any]


@dataclass
class SnapshotCache:
    """One process's snapshot. ``refresh`` brings it up to date; ``standing`` plans on it. Not for use inside a transaction of
    the caller's: what was read there may be rolled back, and is forgotten at once."""

    prunes_feed: bool = True  # the feed, of what it has read: only for the one that the leading process keeps
    standing: IncrementalPlanner = field(default_factory=lambda: IncrementalPlanner(Snapshot(epoch=0)))
    told: dict[int, Refusal] = field(default_factory=dict)  # what the rows of those who wait are known to say
    full_reads: int = 0
    _rows: snapshot_rows.SnapshotRows | None = None
    _seen: str = ""
    _tables: dict[str, TableRows] = field(default_factory=dict)
    _moment: reading.TimeEffects | None = None
    _slots: dict[tuple[int, int], int] | None = None
    _read_at: datetime | None = None
    _checked_at: datetime | None = None
    _plan_due: datetime | None = None

    def forget(self) -> None:
        """Read everything the next time."""
        self._rows = None
        self._plan_due = None
        self.told.clear()

    def refresh(self, epoch: int, now: datetime) -> None:
        """Bring it up to date with what is committed, for the leader with this epoch."""
        may_keep = self._rows is not None and self._rows.epoch == epoch and not connection.in_atomic_block
        if not may_keep or self._read_at is None or now < self._read_at:
            self._read_all(epoch, now)
            return
        check = self._checked_at is None or now - self._checked_at >= timedelta(seconds=SELF_CHECK_SECONDS)
        fresh = None
        with snapshot_rows.repeatable_read(), gc_paused():
            news = change_feed.read_changes(self._seen)
            if _needs_full_read(news.changed):
                self._take_over(epoch, now, snapshot_rows.SnapshotReader(None, now).read(), news.seen)
            else:
                touched = self._read_again(news.changed, now)
                fresh = snapshot_rows.SnapshotReader(None, now).read() if check else None
                self._seen, self._read_at = news.seen, now
                self._update_standing(touched, news.changed, now)
        if news.changed and self.prunes_feed:
            change_feed.prune_changes(self._seen)
        if fresh is not None:
            self._compare(fresh, epoch, now)

    def plan_is_due(self, now: datetime) -> bool:
        """Has anything changed, or so much time passed, that another plan may decide otherwise?"""
        return self._plan_due is None or now >= self._plan_due

    def planned(self, now: datetime, told: Mapping[int, Refusal], *, wholly: bool) -> None:
        """A plan as of ``now`` was applied, ``wholly`` or in part; ``told`` is what its workloads' rows say since."""
        self.told.update(told)
        if wholly:
            self._plan_due = min(now + timedelta(seconds=MAX_PLAN_AGE_SECONDS), self._next_time_change(now))

    # -- reading -----------------------------------------------------------------------------------------------------------

    def _read_all(self, epoch: int, now: datetime) -> None:
        with snapshot_rows.repeatable_read(), gc_paused():
            seen = change_feed.current_position()
            rows = snapshot_rows.SnapshotReader(None, now).read()
        self._take_over(epoch, now, rows, seen)
        if connection.in_atomic_block:
            self._read_at = None  # what is read here may never be committed
        elif self.prunes_feed:
            change_feed.prune_changes(seen)

    def _take_over(self, epoch: int, now: datetime, rows: snapshot_rows.SnapshotRows, seen: str) -> None:
        self.full_reads += 1
        rows.epoch = epoch
        self._rows, self._seen, self._read_at, self._checked_at = rows, seen, now, now
        taken = reading.build_snapshot(rows, now)
        self._tables = {name: {row_key(row): row for row in getattr(taken, name)} for name in SNAPSHOT_TABLES}
        self._moment, self._slots = reading.time_effects(rows, now), None
        self.standing = IncrementalPlanner(taken)
        self.told.clear()
        self._plan_due = None

    def _read_again(self, changed: Mapping[str, set[int]], now: datetime) -> dict[str, set[Any]]:
        """Read what changed into the rows; which workloads, hosts and units that may have touched."""
        rows, reader = self._kept(), snapshot_rows.SnapshotReader(None, now)
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
        gpus = changed.get("gpu", set())
        units |= changed.get("unit", set())
        if gpus:
            units |= {pk for pk, unit in rows.units.items() if unit.gpu in gpus}
        if units or gpus:
            found, retired = reader.units(units, gpus)
            units |= found.keys()
            _replace(rows.units, units, found)
            rows.retired = rows.retired - units | retired
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
        return {"workloads": workloads, "hosts": hosts, "units": units}

    def _read_workloads(self, ids: set[int], reader: snapshot_rows.SnapshotReader) -> set[int]:
        """Read these workloads' rows and open allocations; the units of theirs that are retired, or were not known."""
        rows = self._kept()
        before = {unit for pk in ids if pk in rows.held for unit in rows.held[pk].units}
        held = reader.held(ids)
        _replace(rows.held, ids, held)
        _replace(rows.running, ids, reader.running(held))
        _replace(rows.queued, ids, reader.queued(ids))
        self._slots = None
        for pk in ids:
            self.told.pop(pk, None)
        after = {unit for each in held.values() for unit in each.units}
        return {unit for unit in before if unit in rows.retired} | {
            unit for unit in after if unit not in rows.units
        }

    def _kept(self) -> snapshot_rows.SnapshotRows:
        assert self._rows is not None, "nothing was read yet"
        return self._rows

    # -- from rows to the standing snapshot --------------------------------------------------------------------------------

    def _update_standing(
        self, touched: Mapping[str, set[Any]], changed: Collection[str], now: datetime
    ) -> None:
        """What the rows now say, as of ``now``, into the standing snapshot."""
        rows, before = self._kept(), self._moment
        moment = self._moment = reading.time_effects(rows, now)
        workloads: Iterable[int] = touched["workloads"]
        if before is None or not moment.affects_workloads_like(before):
            workloads = {*rows.queued, *rows.running, *workloads}
        if self._slots is None:
            self._slots = reading.held_slots(rows)
        found: dict[str, tuple[Any, ...]] = {}
        self._collect_changes(found, "hosts", touched["hosts"], rows.hosts)
        self._collect_changes(found, "units", touched["units"], rows.units)
        waiting = {pk: moment.queued(rows.queued[pk]) for pk in workloads if pk in rows.queued}
        self._collect_changes(found, "queued", workloads, waiting)
        holding = {
            pk: moment.running(rows.running[pk], rows.held[pk]) for pk in workloads if pk in rows.running
        }
        self._collect_changes(found, "running", workloads, holding)
        self._collect_table_changes(found, "quotas", rows.quotas)
        self._collect_table_changes(found, "reservations", moment.reservations.values())
        self._collect_table_changes(found, "maintenance", reading.open_maintenance(rows.maintenance, now))
        if found:
            self._plan_due = None
        self._collect_table_changes(found, "decayed_use", reading.decayed_use_at(rows, self._slots, now))
        if found:
            self.standing.change(SnapshotDelta(**found))  # type: ignore[arg-type]  # its epoch is none of the tables

    def _collect_changes(
        self, found: dict[str, tuple[Any, ...]], name: str, keys: Iterable[Any], now: Mapping[Any, Any]
    ) -> None:
        """Note which of these rows are new, changed or gone."""
        table = self._tables[name]
        gone = tuple(key for key in keys if key in table and key not in now)
        new = tuple(now[key] for key in keys if key in now and table.get(key) != now[key])
        for key in gone:
            del table[key]
        table.update((row_key(row), row) for row in new)
        if new:
            found[name] = new
        if gone:
            found[f"{name}_gone"] = gone

    def _collect_table_changes(
        self, found: dict[str, tuple[Any, ...]], name: str, rows: Iterable[Any]
    ) -> None:
        """The same for a small table of which all rows are at hand."""
        table, now = self._tables[name], {row_key(row): row for row in rows}
        gone = [row for key, row in table.items() if key not in now]
        self._collect_changes(found, name, [*now, *(row_key(row) for row in gone)], now)
        if gone and name == "maintenance":
            found["maintenance_gone"] = tuple(gone)

    # -- the check ---------------------------------------------------------------------------------------------------------

    def _compare(self, fresh: snapshot_rows.SnapshotRows, epoch: int, now: datetime) -> None:
        """Is it what a fresh one of the same moment is? If not, say so and go on with the fresh one."""
        fresh.epoch = epoch
        expected, mine = sort_rows(reading.build_snapshot(fresh, now)), sort_rows(self.standing.snapshot())
        wrong = [name for name in SNAPSHOT_TABLES if getattr(expected, name) != getattr(mine, name)]
        self._checked_at = now
        if wrong:
            log.error(
                "the warm snapshot was not what the database says, in %s: read afresh", ", ".join(wrong)
            )
            self._take_over(epoch, now, fresh, self._seen)

    def _next_time_change(self, now: datetime) -> datetime:
        """When time alone may next change a decision. What is over by then shows as a change when it is refreshed."""
        at, taken = core_values.epoch_seconds(now), self._tables
        minimum = {pk: pool.policy.minimum_runtime_seconds for pk, pool in taken["pools"].items()}
        moments = [queued.not_before for queued in taken["queued"].values()]
        moments += [reservation.start for reservation in taken["reservations"].values()]
        moments += [window.start for window in taken["maintenance"].values()]
        if taken["queued"]:
            moments += [
                r.started + minimum.get(r.pool, 0) for r in taken["running"].values() if r.preemptible
            ]
        ahead = min((moment for moment in moments if moment > at), default=None)
        return now + timedelta(seconds=MAX_PLAN_AGE_SECONDS if ahead is None else ahead - at)


def _needs_full_read(changed: Mapping[str, set[int]]) -> bool:
    return (
        change_feed.WHOLE_TABLE in changed
        or sum(len(ids) for ids in changed.values()) > MAX_INCREMENTAL_CHANGES
    )


def _replace(table: dict[int, Any], ids: Iterable[int], found: Mapping[int, Any]) -> None:
    """Those that were found again as they are now, the others gone."""
    for pk in ids:
        table.pop(pk, None)
    table.update(found)
