"""Who runs where on a pool's hardware, as arrays that deltas change: what units, CPU and memory are held, and by whom.

Running work is ordered by id; its place in that order is its index. A change costs what it names, not the whole pool.
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
MAX_SINGLE_UPDATES = 64  # rows that are sooner put into lists one by one than by making the lists anew

# What the searches want to know of all running work at once: one row of the table each.
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
        running.predicted_until,
        running.evictions,
        0,  # its slots, which its units tell
        running.preemptible,
        running.stopping,
        FAR_FUTURE if running.stop_by is None else running.stop_by,
    )


class RunningWork:
    """The running work of one pool on its ground."""

    def __init__(self, ground: PoolHardware, running: Iterable[RunningWorkload]) -> None:
        self.ground = ground
        self.running: list[RunningWorkload] = []
        self.units_of: list[list[int]] = []
        self.table: Ints = np.zeros((COLUMNS, 0), dtype=np.int64)
        self.holder: Ints = np.full(len(ground.units), NO_HOLDER, dtype=np.int64)
        self.cpu_free, self.memory_free = ground.cpu_whole.copy(), ground.memory_whole.copy()
        self.gpu_used: Ints = np.zeros(len(ground.gpus), dtype=np.int64)
        self.held = HeldSlots()
        # How often each (kind, units, CPU, memory) on one host is held: the running part of the pool's mix of asks.
        self.shapes: Counter[tuple[int, int, int, int]] = Counter()
        self.contested = False  # a unit is held twice: changes can't tell whose it is then, so make it anew
        self.change((), running)

    def change(self, gone: Iterable[int], rows: Iterable[RunningWorkload]) -> None:
        """Work that is gone, by id, and work that is new or changed."""
        new = sorted(rows, key=attrgetter("id"))
        ids = self.table[ID]
        wanted = np.array(sorted({*gone, *(row.id for row in new)}), dtype=np.int64)
        places = np.searchsorted(ids, wanted)
        known = places < len(ids)
        known[known] = ids[places[known]] == wanted[known]
        old = places[known]
        if len(old) == 0 and not new:
            return
        if len(old):
            self._remove_rows(old)
        if new:
            self._insert_rows(new)

    def _remove_rows(self, old: Ints) -> None:
        self._count(old.tolist(), -1)
        stays: Mask = np.ones(len(self.running), dtype=np.bool_)
        stays[old] = False
        self._rename(np.where(stays, np.cumsum(stays) - 1, NO_HOLDER))
        self.table = self.table[:, stays]
        if len(old) <= MAX_SINGLE_UPDATES:
            for i in reversed(old.tolist()):
                del self.running[i], self.units_of[i]
        else:
            self.running = [row for row, stay in zip(self.running, stays.tolist(), strict=True) if stay]
            self.units_of = [units for units, stay in zip(self.units_of, stays.tolist(), strict=True) if stay]

    def _insert_rows(self, new: list[RunningWorkload]) -> None:
        index = self.ground.unit_index
        units = [[index[u] for u in row.units if u in index] for row in new]
        facts = np.array([_columns_of(row) for row in new], dtype=np.int64).T
        places = np.searchsorted(self.table[ID], facts[ID])
        self._rename(np.arange(len(self.running)) + np.searchsorted(facts[ID], self.table[ID]))
        self.table = np.insert(self.table, places, facts, axis=1)
        if len(new) <= MAX_SINGLE_UPDATES:
            for row, mine in zip(new, units, strict=True):
                at = bisect_left(self.running, row.id, key=_workload_id)
                self.running.insert(at, row)
                self.units_of.insert(at, mine)
        else:
            both = sorted(
                zip([*self.running, *new], [*self.units_of, *units], strict=True), key=lambda pair: pair[0].id
            )
            self.running, self.units_of = [row for row, _ in both], [mine for _, mine in both]
        at_now = places + np.arange(len(new))
        taken = [u for mine in units for u in mine]
        self.contested = (
            self.contested or len(set(taken)) < len(taken) or bool((self.holder[taken] != NO_HOLDER).any())
        )
        self.holder[taken] = np.repeat(at_now, [len(mine) for mine in units])
        self.table[SLOTS, at_now] = [sum(self.ground.slots_list[u] for u in mine) for mine in units]
        self._count(at_now.tolist(), 1)

    def _rename(self, index: Ints) -> None:
        """Indices of running work change; -1 is for what goes."""
        held = self.holder >= 0
        self.holder[held] = index[self.holder[held]]

    def _count(self, which: list[int], sign: int) -> None:
        """Count in (1) or out (-1) what some of the running work holds: GPUs, CPU, memory, and its team's slots."""
        ground = self.ground
        for running, units in ((self.running[i], self.units_of[i]) for i in which):
            on_host: dict[int, list[int]] = {}
            of_model: dict[str, int] = {}
            for unit in units:
                slots, model = ground.slots_list[unit], ground.units[unit].model
                self.gpu_used[ground.gpu_list[unit]] += sign * slots
                on_host.setdefault(ground.host_list[unit], []).append(unit)
                of_model[model] = of_model.get(model, 0) + slots
            for host, here in on_host.items():
                self.cpu_free[host] -= sign * running.cpu_milli
                self.memory_free[host] -= sign * running.memory_mib
                shape = int(ground.kind[here[0]]), len(here), running.cpu_milli, running.memory_mib
                self.shapes[shape] += sign
                if not self.shapes[shape]:
                    del self.shapes[shape]
            for model, slots in of_model.items():
                self.held.add(running, model, sign * slots)


def _workload_id(running: RunningWorkload) -> int:
    return running.id
