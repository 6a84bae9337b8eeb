"""Estimate when work deep in a queue may start. Count the units that become free, without choosing hosts.

An ask is the hardware that a workload requests. A kind is a set of units that asks cannot tell apart.

``Forecast`` gives the first waiting workloads their hosts and start times. This module continues with the
later workloads. For each kind it has the number of units that are expected to be free at each time. Each
workload, in queue order, gets the earliest time from which enough units are free for its duration. Its units
are then subtracted, so that later workloads cannot use them. The estimate lets a small ask start before
larger asks ahead of it, as the planner does. No workload delays a workload ahead of it.

A piece of size 4 is 4 free units on one host. Units are counted in pieces, because an ask for 4 units on a
host cannot use 4 hosts with one free unit each. Example: hosts with 6 and 3 free units have 4 units in whole
pieces of size 4, and 6 + 3 = 9 in pieces of size 3. The other units are leftover for this size. Smaller asks
take leftover units first, as the placement rule does, and then break whole pieces.
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

# Up to this many workloads behind the forecast are counted one by one. The start of later workloads is
# estimated from the pool's throughput.
MAX_COUNTED_SINGLY = 2_000
# Units are counted at no more than this many times, because more times make the estimate slower. Only a time
# that is later than all others is added above this limit.
MAX_TIME_POINTS = 256


class DeepQueueEta:
    """The expected starts of the workloads that come after those of the forecast, in queue order."""

    def __init__(self, state: PoolState, forecast: Forecast) -> None:
        self.state, self.forecast = state, forecast
        self.counted = 0
        self._capacity = int(state.slots[state.usable].sum())
        # The slot-seconds (slots times predicted runtime) of the workloads that were not counted one by one.
        self._uncounted_slot_seconds = 0
        # By kind: (free units for non-preemptible work, free units for preemptible work).
        self._free_units_by_kind: dict[int, tuple[FreeUnitsOverTime, FreeUnitsOverTime]] = {}

    def expected_start(self, queued: QueuedWorkload, kinds: Sequence[int], seconds: int) -> int | None:
        """Return the expected start of a workload, and subtract its units for later workloads.

        The workload may use units of ``kinds`` and needs them for ``seconds``. Return None if no kind ever
        has enough free units.
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
        """Subtract the units of a workload that was placed after the units of their kinds were counted."""
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
        """Subtract the units of a workload to which the forecast gave an expected start.

        The forecast must already have subtracted them. If the units of the kind are counted later, the count
        begins with the forecast, so they are not subtracted here.
        """
        if kind in self._free_units_by_kind:
            self._take(kind, queued.ask.units, queued.ask.hosts, start, start + queued.predicted_seconds)

    def _take(self, kind: int, units: int, hosts: int, start: int, end: int) -> None:
        for_non_preemptible, for_preemptible = self._free_units_of(kind)
        for_non_preemptible.take(units, hosts, start, end)
        if for_preemptible is not for_non_preemptible:
            for_preemptible.take(units, hosts, start, end)

    def _free_units_of(self, kind: int) -> tuple[FreeUnitsOverTime, FreeUnitsOverTime]:
        """Return (free units for non-preemptible work, free units for preemptible work) of a kind.

        The second also includes units of future reservations, because preemptible work may use these until it
        is evicted.
        """
        if kind not in self._free_units_by_kind:
            times, profile = self.forecast.times, self.forecast.profile(kind)
            free_units = for_preemptible = FreeUnitsOverTime(times, profile, self.state.now)
            if kind in self.forecast.reserved:
                for_preemptible = FreeUnitsOverTime(times, self.forecast.unreserved(kind), self.state.now)
            self._free_units_by_kind[kind] = free_units, for_preemptible
        return self._free_units_by_kind[kind]


class FreeUnitsOverTime:
    """The expected free units of one kind at certain times, counted in whole pieces of each size.

    A workload on several hosts (a gang) needs one piece on each. The search does not check that its pieces
    are on different hosts.
    """

    def __init__(self, times: list[int], profile: Ints, now: int) -> None:
        """Count the whole pieces. ``profile[time, host]`` is the number of free units."""
        self.times = list(times)
        self.now = now
        free = np.maximum(profile, 0)
        self.largest = max(1, int(free.max(initial=0)))
        sizes = np.arange(self.largest + 1)
        levels = np.arange(len(times))[:, None] * len(sizes) + free
        hosts = np.bincount(levels.ravel(), minlength=len(times) * len(sizes)).reshape(len(times), -1)
        # pieces[n, size - 1]: the units in whole pieces of this size on a host with n free units.
        pieces = sizes[:, None] // sizes[1:] * sizes[1:]
        whole_pieces = (hosts @ pieces).T
        # The indices are [size - 1, time]. The table has empty columns at the end. To insert a time, the
        # later columns are shifted, which is ten times faster than creating a new table.
        self.whole_pieces: Ints = np.zeros(
            (self.largest, max(MAX_TIME_POINTS, 2 * len(times))), dtype=np.int64
        )
        self.whole_pieces[:, : len(times)] = whole_pieces
        self.leftover_units: Ints = self.whole_pieces[0] - self.whole_pieces
        # By (units, hosts, duration class): the time that the last search found.
        self._reached: dict[tuple[int, int, int], int] = {}

    def earliest(self, units: int, hosts: int, seconds: int) -> int | None:
        """Return the first time after now from which enough units are free for ``seconds``, or None.

        Enough are ``hosts`` whole pieces of ``units`` units each.
        """
        if units > self.largest:
            return None
        need, free_units = units * hosts, self.whole_pieces[units - 1]
        # Each start reduces the free units, so an equal ask never starts earlier than the previous one. The
        # search continues from there. (``reset_search`` handles the exception.) Durations within a factor of
        # two count as equal, because otherwise hardly any asks would be equal.
        duration_class = seconds.bit_length()
        key = units, hosts, duration_class
        index = bisect_right(self.times, max(self.now, self._reached.get(key, 0) - 1))
        while index < len(self.times):
            end = max(index + 1, bisect_left(self.times, self.times[index] + (1 << duration_class)))
            shortages = (free_units[index:end] < need).nonzero()[0]
            if not len(shortages):
                break
            index += int(shortages[-1]) + 1  # continue after the last time with too few units
        self._reached[key] = self.times[index] if index < len(self.times) else FAR_FUTURE
        return self.times[index] if index < len(self.times) else None

    def reset_search(self) -> None:
        """Let all searches begin at the present time again.

        Call it after units that are free now were taken. The time at which these units become free again is a
        new possible start.
        """
        self._reached.clear()

    def take(self, units: int, hosts: int, start: int, end: int) -> None:
        """Subtract ``hosts`` pieces of ``units`` units each, at all times from ``start`` until ``end``."""
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
        """Return the index of ``time`` in ``times``.

        A missing time is inserted if there are fewer than MAX_TIME_POINTS times, or if it is later than all
        others. Otherwise return the index of the next later time.
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
