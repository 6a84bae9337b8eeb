"""Estimate when work deep in a queue may start. Count the units that become free, without choosing hosts.

``Forecast`` gives the first waiting workloads their hosts and times. This module continues with the later
workloads. For each kind it has the number of units that are expected to be free at each time. Each workload,
in queue order, takes the earliest time from which enough units are free for its duration. These units are
then subtracted for later workloads. A small ask may therefore start before larger asks ahead of it, as it
will in reality. No workload delays a workload ahead of it.

Units are counted in pieces: an ask for 4 units on a host cannot use 4 hosts with one free unit each. The
capacity for a size is the number of free units in whole pieces of this size. Smaller asks take leftover units
first, as the placement rule does, then whole pieces.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from scheduler.core.arrays import Ints
from scheduler.core.explain.forecast import Forecast
from scheduler.core.model.hardware import FAR_FUTURE
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import QueuedWorkload

# Up to this many workloads behind the forecast are counted one by one, and the rest by the pool's throughput.
MAX_COUNTED_SINGLY = 2_000
# The most times at which units are counted: more times make the estimate slower. A time later than all others
# is always added.
MAX_TIME_POINTS = 256


class DeepQueueEta:
    """Expected starts of the workloads behind the forecast's depth, in queue order."""

    def __init__(self, state: PoolState, forecast: Forecast) -> None:
        self.state, self.forecast = state, forecast
        self.counted = 0
        self._capacity = int(state.slots[state.usable].sum())
        self._uncounted_slot_seconds = 0  # slot-seconds of the workloads that were not counted one by one
        # By kind: the free units for non-preemptible work, and for preemptible work.
        self._free_units_by_kind: dict[int, tuple[FreeUnitsOverTime, FreeUnitsOverTime]] = {}

    def expected_start(self, queued: QueuedWorkload, kinds: Sequence[int], seconds: int) -> int | None:
        """Return the expected start of a workload that may use these kinds for ``seconds``, and subtract its
        units.

        Return None if there are never enough units of any kind.
        """
        ask = queued.ask
        starts: list[tuple[int, int, int]] = []
        for kind in kinds:
            start = self._free_units_of(kind)[queued.preemptible].earliest(ask.units, ask.hosts, seconds)
            if start is not None:
                starts.append((start, len(starts), kind))
        if not starts or self._capacity == 0:
            return None
        start, _, kind = min(starts)
        if self.counted < MAX_COUNTED_SINGLY:
            self.counted += 1
            self._take(kind, ask.units, ask.hosts, start, start + queued.predicted_seconds)
        else:
            start += self._uncounted_slot_seconds // self._capacity
            self._uncounted_slot_seconds += self.state.slots_needed(ask, kind) * queued.predicted_seconds
        return max(start, self.state.now + 1)

    def note_placed(self, units: Sequence[int], seconds: int) -> None:
        """Subtract the units of work that this cycle started after counting began."""
        hosts: dict[tuple[int, int], int] = {}
        for unit in units:
            position = int(self.state.kind[unit]), int(self.state.host_of[unit])
            hosts[position] = hosts.get(position, 0) + 1
        for (kind, _), count in hosts.items():
            if kind in self._free_units_by_kind:
                self._take(kind, count, 1, self.state.now, self.state.now + seconds)
                for free_units in self._free_units_by_kind[kind]:
                    free_units.reset_search()

    def note_expected(self, kind: int, queued: QueuedWorkload, start: int) -> None:
        """Subtract the units of a workload that got its start from the forecast after counting began."""
        self._take(kind, queued.ask.units, queued.ask.hosts, start, start + queued.predicted_seconds)

    def _take(self, kind: int, units: int, hosts: int, start: int, end: int) -> None:
        for_non_preemptible, for_preemptible = self._free_units_of(kind)
        for_non_preemptible.take(units, hosts, start, end)
        if for_preemptible is not for_non_preemptible:
            for_preemptible.take(units, hosts, start, end)

    def _free_units_of(self, kind: int) -> tuple[FreeUnitsOverTime, FreeUnitsOverTime]:
        """Return the free units of a kind: for non-preemptible work, and for preemptible work.

        Preemptible work may use reserved units until it is evicted.
        """
        if kind not in self._free_units_by_kind:
            times, profile = self.forecast.times, self.forecast.profile(kind)
            free_units = for_preemptible = FreeUnitsOverTime(times, profile, self.state.now)
            if kind in self.forecast.reserved:
                for_preemptible = FreeUnitsOverTime(times, self.forecast.unreserved(kind), self.state.now)
            self._free_units_by_kind[kind] = free_units, for_preemptible
        return self._free_units_by_kind[kind]


class FreeUnitsOverTime:
    """Expected free units of one kind at certain times, in whole pieces of each size.

    The search does not check that the pieces of a gang are on different hosts.
    """

    def __init__(self, times: list[int], profile: Ints, now: int) -> None:
        """Count the whole pieces in ``profile[time, host]``, the number of free units."""
        self.times = list(times)
        self.now = now
        free = np.maximum(profile, 0)
        self.largest = max(1, int(free.max(initial=0)))
        sizes = np.arange(self.largest + 1)
        levels = np.arange(len(times))[:, None] * len(sizes) + free
        hosts = np.bincount(levels.ravel(), minlength=len(times) * len(sizes)).reshape(len(times), -1)
        # for each number of free units: the units in whole pieces of each size
        pieces = sizes[:, None] // sizes[1:] * sizes[1:]
        whole_pieces = (hosts @ pieces).T
        # Indices: [size - 1, time]. The table is wider than the known times, because shifting the later times
        # for an insertion is ten times faster than creating new tables.
        self.whole_pieces: Ints = np.zeros(
            (self.largest, max(MAX_TIME_POINTS, 2 * len(times))), dtype=np.int64
        )
        self.whole_pieces[:, : len(times)] = whole_pieces
        self.leftover_units: Ints = self.whole_pieces[0] - self.whole_pieces
        # by (units, hosts, duration class): the time at which the last search ended
        self._reached: dict[tuple[int, int, int], int] = {}

    def earliest(self, units: int, hosts: int, seconds: int) -> int | None:
        """Return the first time after now from which ``hosts`` pieces of ``units`` are free for
        ``seconds``, or None.
        """
        if units > self.largest:
            return None
        need, free_units = units * hosts, self.whole_pieces[units - 1]
        # Free units only decrease, so an equal ask never starts earlier than the previous ask, unless units
        # were taken now (``reset_search``). Durations within a factor of two count as equal, because
        # otherwise hardly any asks would be equal.
        duration_class = seconds.bit_length()
        key = units, hosts, duration_class
        index = bisect_right(self.times, max(self.now, self._reached.get(key, 0) - 1))
        while index < len(self.times):
            end = max(index + 1, bisect_left(self.times, self.times[index] + (1 << duration_class)))
            shortages = (free_units[index:end] < need).nonzero()[0]
            if not len(shortages):
                break
            index += int(shortages[-1]) + 1  # after the last time with a shortage
        self._reached[key] = self.times[index] if index < len(self.times) else FAR_FUTURE
        return self.times[index] if index < len(self.times) else None

    def reset_search(self) -> None:
        """Restart the searches from now, after units were taken that were free now.

        The time at which these units become free again is a new possible start.
        """
        self._reached.clear()

    def take(self, units: int, hosts: int, start: int, end: int) -> None:
        """Subtract ``hosts`` pieces of ``units`` from ``start`` to ``end``."""
        units = min(units, self.largest)
        first, last = bisect_left(self.times, start), self._index_of(end)
        self.whole_pieces[:units, first:last] -= units * hosts
        if units == self.largest:
            return
        leftover = self.leftover_units[units:, first:last]
        taken = np.minimum(leftover, units * hosts)
        leftover -= taken
        self.whole_pieces[units:, first:last] -= units * hosts - taken

    def _index_of(self, time: int) -> int:
        """Return the index of ``time``. Insert it if there is capacity or if it is later than all other
        times; otherwise return the index of the next time.
        """
        position = bisect_left(self.times, time)
        last = position == len(self.times)
        if last or (self.times[position] != time and len(self.times) < MAX_TIME_POINTS):
            if len(self.times) == self.whole_pieces.shape[1]:
                self.whole_pieces, self.leftover_units = (
                    np.tile(self.whole_pieces, 2),
                    np.tile(self.leftover_units, 2),
                )
            for table in (self.whole_pieces, self.leftover_units):
                table[:, position + 1 : len(self.times) + 1] = table[:, position : len(self.times)]
                table[:, position] = table[:, position - 1]
            self.times.insert(position, time)
        return position
