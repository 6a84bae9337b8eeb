"""Hold the running work of one pool as arrays: which workload holds each unit, and the free CPU and memory.

Running workloads are sorted by id. Code refers to a workload by its index in this order. When workloads start
or end, ``RunningWork.change`` updates the arrays instead of building them again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from operator import attrgetter

import numpy as np

from scheduler.core.arrays import Ints, Mask
from scheduler.core.model.hardware import FAR_FUTURE, PoolHardware
from scheduler.core.model.quota_ledger import HeldSlots
from scheduler.core.model.snapshot import RunningWorkload

NO_HOLDER = -1
# Up to this many changed rows, inserting or deleting single list items is faster than building new lists.
MAX_SINGLE_UPDATES = 64

# Row numbers of ``RunningWork.table``. Each row of the table has one property of all running workloads.
ID, TEAM, PRIORITY, RESERVATION, STARTED, LAST_SAVED, UNTIL, PREDICTED, EVICTIONS, SLOTS = range(10)
PREEMPTIBLE, STOPPING, STOP_BY = 10, 11, 12
COLUMNS = 13


def _columns_of(running: RunningWorkload) -> tuple[int, ...]:
    saved = running.started if running.checkpoint_at is None else max(running.started, running.checkpoint_at)
    return (
        running.id,
        running.team,
        running.priority,
        running.reservation or 0,
        running.started,
        saved,
        running.until,
        running.predicted_end,
        running.evictions,
        0,  # slots: set by ``_insert_rows`` from the units
        running.preemptible,
        running.stopping,
        FAR_FUTURE if running.stop_by is None else running.stop_by,
    )


class RunningWork:
    """The running work of one pool on its hardware."""

    def __init__(self, hardware: PoolHardware, running: Iterable[RunningWorkload]) -> None:
        self.hardware = hardware
        self.running: list[RunningWorkload] = []
        self.units_of: list[list[int]] = []
        self.table: Ints = np.zeros((COLUMNS, 0), dtype=np.int64)
        self.holder: Ints = np.full(len(hardware.units), NO_HOLDER, dtype=np.int64)
        self.cpu_free, self.memory_free = hardware.cpu_capacity.copy(), hardware.memory_capacity.copy()
        self.gpu_used: Ints = np.zeros(len(hardware.gpus), dtype=np.int64)
        self.held = HeldSlots()
        # For each (kind, units, CPU, memory) that a running workload holds on one host: the number of times
        # that it occurs. Example: one gang with 8 units on each of 4 hosts counts 4. The placement rule uses
        # these numbers as the demand of running work.
        self.host_demand_counts: Counter[tuple[int, int, int, int]] = Counter()
        # True if two workloads hold the same unit. ``holder`` then knows only one of them, so the caller must
        # rebuild the arrays after a change.
        self.has_conflicts = False
        self.change((), running)

    def change(self, removed: Iterable[int], rows: Iterable[RunningWorkload]) -> None:
        """Remove workloads by id, and add or replace rows."""
        new_rows = sorted(rows, key=attrgetter("id"))
        ids = self.table[ID]
        changed_ids = np.array(sorted({*removed, *(row.id for row in new_rows)}), dtype=np.int64)
        positions = np.searchsorted(ids, changed_ids)
        known = positions < len(ids)
        known[known] = ids[positions[known]] == changed_ids[known]
        old_rows = positions[known]
        if len(old_rows) == 0 and not new_rows:
            return
        if len(old_rows):
            self._remove_rows(old_rows)
        if new_rows:
            self._insert_rows(new_rows)

    def _remove_rows(self, old_rows: Ints) -> None:
        self._count(old_rows.tolist(), -1)
        remaining: Mask = np.ones(len(self.running), dtype=np.bool_)
        remaining[old_rows] = False
        self._renumber(np.where(remaining, np.cumsum(remaining) - 1, NO_HOLDER))
        self.table = self.table[:, remaining]
        if len(old_rows) <= MAX_SINGLE_UPDATES:
            for i in reversed(old_rows.tolist()):
                del self.running[i], self.units_of[i]
        else:
            self.running = [
                row for row, remains in zip(self.running, remaining.tolist(), strict=True) if remains
            ]
            self.units_of = [
                units for units, remains in zip(self.units_of, remaining.tolist(), strict=True) if remains
            ]

    def _insert_rows(self, new_rows: list[RunningWorkload]) -> None:
        index = self.hardware.unit_index
        units = [[index[u] for u in row.units if u in index] for row in new_rows]
        columns = np.array([_columns_of(row) for row in new_rows], dtype=np.int64).T
        positions = np.searchsorted(self.table[ID], columns[ID])
        self._renumber(np.arange(len(self.running)) + np.searchsorted(columns[ID], self.table[ID]))
        self.table = np.insert(self.table, positions, columns, axis=1)
        self._insert_into_lists(new_rows, units)
        indices = positions + np.arange(len(new_rows))
        taken = [u for row_units in units for u in row_units]
        self.has_conflicts = (
            self.has_conflicts
            or len(set(taken)) < len(taken)
            or bool((self.holder[taken] != NO_HOLDER).any())
        )
        self.holder[taken] = np.repeat(indices, [len(row_units) for row_units in units])
        self.table[SLOTS, indices] = [
            sum(self.hardware.slots_list[u] for u in row_units) for row_units in units
        ]
        self._count(indices.tolist(), 1)

    def _insert_into_lists(self, new_rows: list[RunningWorkload], units: list[list[int]]) -> None:
        if len(new_rows) <= MAX_SINGLE_UPDATES:
            for row, row_units in zip(new_rows, units, strict=True):
                position = bisect_left(self.running, row.id, key=_workload_id)
                self.running.insert(position, row)
                self.units_of.insert(position, row_units)
            return
        merged = sorted(
            zip([*self.running, *new_rows], [*self.units_of, *units], strict=True),
            key=lambda pair: pair[0].id,
        )
        self.running, self.units_of = [row for row, _ in merged], [row_units for _, row_units in merged]

    def _renumber(self, index: Ints) -> None:
        """Replace each workload index ``i`` in ``holder`` by ``index[i]``.

        ``index[i]`` is NO_HOLDER if the workload was removed.
        """
        held = self.holder >= 0
        self.holder[held] = index[self.holder[held]]

    def _count(self, workloads: list[int], sign: int) -> None:
        """Add the units, CPU, memory and slots of workloads to the totals. ``sign`` -1 subtracts them."""
        hardware = self.hardware
        for running, units in ((self.running[i], self.units_of[i]) for i in workloads):
            on_host: dict[int, list[int]] = {}
            of_model: dict[str, int] = {}
            for unit in units:
                slots, model = hardware.slots_list[unit], hardware.units[unit].model
                self.gpu_used[hardware.gpu_list[unit]] += sign * slots
                on_host.setdefault(hardware.host_list[unit], []).append(unit)
                of_model[model] = of_model.get(model, 0) + slots
            for host, host_units in on_host.items():
                self.cpu_free[host] -= sign * running.cpu_milli
                self.memory_free[host] -= sign * running.memory_mib
                demand = (
                    int(hardware.kind[host_units[0]]),
                    len(host_units),
                    running.cpu_milli,
                    running.memory_mib,
                )
                self.host_demand_counts[demand] += sign
                if not self.host_demand_counts[demand]:
                    del self.host_demand_counts[demand]
            for model, slots in of_model.items():
                self.held.add(running, model, sign * slots)


def _workload_id(running: RunningWorkload) -> int:
    return running.id
