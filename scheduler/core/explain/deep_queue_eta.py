"""When work deep in a queue may expect to start: by counting units that become free, not on particular hosts.

The forecast (``forecast.Forecast``) gives the first that wait their hosts and times. Those behind go on where it stopped:
of each kind, how many units are expected free at each moment is known, and in pieces of how many to a host. Whoever is
next in the queue takes the first moment from which there are enough, for as long as it needs them, and is taken off what
is left for those behind. So a small ask slips in before the large ones ahead of it, as it does when the time comes, and
nobody starts before what is ahead has had its choice.

Pieces: an ask for 4 units on a host can't use 4 hosts with one each. Room for a size is what is free in whole pieces of
it. What smaller asks take comes out of the scraps first, as the placement rule will have it, then out of whole pieces.
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

MAX_COUNTED_SINGLY = 2_000  # of those behind the forecast; the rest by how fast these go
MAX_TIME_POINTS = (
    256  # at which room is counted; finer is slower. Beyond the last known one there are always more.
)


class DeepQueueEta:
    """Expected starts behind the last that the forecast places, in the order of the queue."""

    def __init__(self, board: PoolState, forecast: Forecast) -> None:
        self.board, self.forecast = board, forecast
        self.counted = 0
        self._capacity = int(board.slots[board.usable].sum())
        self._behind = 0  # slot-seconds behind the last that was counted singly
        self._room: dict[
            int, tuple[FreeUnitsOverTime, FreeUnitsOverTime]
        ] = {}  # by kind: for work that has to stay, and that may be told to go

    def expected_start(self, queued: QueuedWorkload, kinds: Sequence[int], seconds: int) -> int | None:
        """When a workload may start that may have units of these kinds and needs them for so long; it is then counted in.
        None when not enough of any would be free at one time."""
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
            start += self._behind // self._capacity
            self._behind += self.board.slots_needed(ask, kind) * queued.predicted_seconds
        return max(start, self.board.now + 1)

    def note_placed(self, units: Sequence[int], seconds: int) -> None:
        """Work that was started meanwhile."""
        hosts: dict[tuple[int, int], int] = {}
        for unit in units:
            place = int(self.board.kind[unit]), int(self.board.host_of[unit])
            hosts[place] = hosts.get(place, 0) + 1
        for (kind, _), count in hosts.items():
            if kind in self._room:
                self._take(kind, count, 1, self.board.now, self.board.now + seconds)
                for room in self._room[kind]:
                    room.reset_search()

    def note_expected(self, kind: int, queued: QueuedWorkload, start: int) -> None:
        """Work to which the forecast gave a start after counting had begun here."""
        self._take(kind, queued.ask.units, queued.ask.hosts, start, start + queued.predicted_seconds)

    def _take(self, kind: int, units: int, hosts: int, start: int, end: int) -> None:
        for_long, lent = self._free_units_of(kind)
        for_long.take(units, hosts, start, end)
        if lent is not for_long:
            lent.take(units, hosts, start, end)

    def _free_units_of(self, kind: int) -> tuple[FreeUnitsOverTime, FreeUnitsOverTime]:
        """Preemptible work uses what is reserved until it is told to go."""
        if kind not in self._room:
            moments, profile = self.forecast.moments, self.forecast.profile(kind)
            room = lent = FreeUnitsOverTime(moments, profile, self.board.now)
            if kind in self.forecast.reserved:
                lent = FreeUnitsOverTime(moments, self.forecast.unreserved(kind), self.board.now)
            self._room[kind] = room, lent
        return self._room[kind]


class FreeUnitsOverTime:
    """Units of one kind that are expected to be free, at each of some moments, in whole pieces of each size. That the
    pieces of a gang lie on different hosts is not looked at."""

    def __init__(self, moments: list[int], profile: Ints, now: int) -> None:
        """``profile`` is ``[moment, host]``: free units."""
        self.moments = list(moments)
        self.now = now
        free = np.maximum(profile, 0)
        self.largest = max(1, int(free.max(initial=0)))
        sizes = np.arange(self.largest + 1)
        levels = np.arange(len(moments))[:, None] * len(sizes) + free
        hosts = np.bincount(levels.ravel(), minlength=len(moments) * len(sizes)).reshape(len(moments), -1)
        pieces = (
            sizes[:, None] // sizes[1:] * sizes[1:]
        )  # of so many free, those in whole pieces of each size
        whole = (hosts @ pieces).T
        # Wider than the moments known so far: to put one in is then to move those after it, which is ten times sooner done
        # than to make the tables anew.
        self.whole: Ints = np.zeros(
            (self.largest, max(MAX_TIME_POINTS, 2 * len(moments))), dtype=np.int64
        )  # [size - 1, moment]
        self.whole[:, : len(moments)] = whole
        self.leftover_units: Ints = self.whole[0] - self.whole
        self._reached: dict[tuple[int, int, int], int] = {}  # where the search for one like it ended

    def earliest(self, units: int, hosts: int, seconds: int) -> int | None:
        """The first moment after now from which there is room for ``hosts`` pieces of ``units`` for so long."""
        if units > self.largest:
            return None
        need, room = units * hosts, self.whole[units - 1]
        # Room only ever shrinks, so who needs as much for as long as one before does not start before it, unless units of now
        # were taken since (``begin_anew``). Times are taken alike up to a factor of two, or hardly two asks would be.
        stretch = seconds.bit_length()
        key = units, hosts, stretch
        at = bisect_right(self.moments, max(self.now, self._reached.get(key, 0) - 1))
        while at < len(self.moments):
            end = max(at + 1, bisect_left(self.moments, self.moments[at] + (1 << stretch)))
            short = (room[at:end] < need).nonzero()[0]
            if not len(short):
                break
            at += int(short[-1]) + 1  # after the last moment without
        self._reached[key] = self.moments[at] if at < len(self.moments) else FAR_FUTURE
        return self.moments[at] if at < len(self.moments) else None

    def reset_search(self) -> None:
        """Units that were free at this moment were given to somebody: who searched for as many looked after now alone, and where
        these end there is a moment to start at that was none before."""
        self._reached.clear()

    def take(self, units: int, hosts: int, start: int, end: int) -> None:
        """Units that somebody has from ``start`` to ``end``, in ``hosts`` pieces."""
        units = min(units, self.largest)
        first, last = bisect_left(self.moments, start), self._at(end)
        self.whole[:units, first:last] -= units * hosts
        if units == self.largest:
            return
        scraps = self.leftover_units[units:, first:last]
        taken = np.minimum(scraps, units * hosts)
        scraps -= taken
        self.whole[units:, first:last] -= units * hosts - taken

    def _at(self, time: int) -> int:
        """The place of a moment, put in if there is room for it or it is the last; else the next one's."""
        place = bisect_left(self.moments, time)
        last = place == len(self.moments)
        if last or (self.moments[place] != time and len(self.moments) < MAX_TIME_POINTS):
            if len(self.moments) == self.whole.shape[1]:
                self.whole, self.leftover_units = np.tile(self.whole, 2), np.tile(self.leftover_units, 2)
            for table in (self.whole, self.leftover_units):
                table[:, place + 1 : len(self.moments) + 1] = table[:, place : len(self.moments)]
                table[:, place] = table[:, place - 1]
            self.moments.insert(place, time)
        return place
