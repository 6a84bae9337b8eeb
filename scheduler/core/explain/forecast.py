"""Forecast the number of free units on each host over time.

The first waiting workloads take units from the forecast one after another, in queue order. The time at which
a workload can take its units is its expected start. ``DeepQueueEta`` gives the later workloads a coarser
estimate. A kind is a set of units that requests cannot tell apart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from scheduler.core.arrays import Ints
from scheduler.core.model.hardware import FAR_FUTURE
from scheduler.core.model.pool_state import PoolState, eviction_lead_seconds
from scheduler.core.model.snapshot import Ask
from scheduler.core.promises.promise_timeline import PromiseTimeline

# The maximum number of points of the forecast's time grid. More points would make the forecast slower. They
# would not make it better, because predicted runtimes are not precise.
MAX_FORECAST_TIME_POINTS = 96


class Forecast:
    """The expected number of free units of each kind on each host, at each time of a grid.

    The time at which a unit becomes free is rounded up to the grid. The time at which a unit is taken is
    rounded down. So the rounding never makes an expected start too early.
    """

    def __init__(self, state: PoolState, promises: PromiseTimeline) -> None:
        self.state, self.promises = state, promises
        self.free_at = self._free_at()
        promised = [
            time for s in promises.promised_intervals for time in (s.start, s.end) if time > state.now
        ]
        times = np.unique(np.array([state.now, *promised, *self.free_at[self.free_at < FAR_FUTURE].tolist()]))
        if len(times) > MAX_FORECAST_TIME_POINTS:
            times = times[
                np.arange(MAX_FORECAST_TIME_POINTS) * (len(times) - 1) // (MAX_FORECAST_TIME_POINTS - 1)
            ]
        # This is a list, because reading single elements is faster from a list than from an array.
        self.times: list[int] = times.tolist()
        self.profiles: dict[int, Ints] = {}
        # By kind: the number of units that future reservations take, indexed like ``profiles``. A kind
        # without such units has no entry.
        self.reserved: dict[int, Ints] = {}

    def _free_at(self) -> Ints:
        """Return, for each unit, the time at which it is expected to be free; FAR_FUTURE if never."""
        state = self.state
        free_at = np.where(state.usable, state.now, FAR_FUTURE).astype(np.int64)
        for host, start, end in state.maintenance:
            if start <= state.now < end and state.hosts[host].schedulable:
                free_at[state.first_unit[host] : state.first_unit[host + 1]] = end
        ends = state.expected_end_times.copy()
        evicted = sorted(state.evicted)
        ends[evicted] = np.minimum(ends[evicted], state.now + eviction_lead_seconds(state))
        held = np.flatnonzero((state.holder >= 0) & (state.holder < len(state.running)))
        free_at[held] = np.maximum(free_at[held], ends[state.holder[held]])
        for i, placement in enumerate(state.placements):
            units = np.flatnonzero(state.holder == len(state.running) + i)
            free_at[units] = state.now + state.predicted[placement.workload]
        for reservation in state.reservations:
            free_at[state.bound_to == reservation.id] = reservation.end
        return free_at

    def _at_or_after(self, time: int) -> int:
        return bisect_left(self.times, time)

    def _at_or_before(self, time: int) -> int:
        return max(0, bisect_right(self.times, time) - 1)

    def profile(self, kind: int) -> Ints:
        """Return the expected number of free units of a kind as an array ``[time, host]``."""
        cached = self.profiles.get(kind)
        if cached is None:
            cached = self.profiles[kind] = self._profile(kind)
        return cached

    def _profile(self, kind: int) -> Ints:
        state = self.state
        change = np.zeros((len(self.times) + 1, len(state.hosts)), dtype=np.int64)
        units = np.flatnonzero(
            (state.kind == kind) & (self.free_at < FAR_FUTURE) & (state.earmarked_for == 0)
        )
        np.add.at(change, (np.searchsorted(self.times, self.free_at[units]), state.host_of[units]), 1)
        profile: Ints = np.cumsum(change, axis=0)[:-1]
        for interval in self.promises.promised_intervals:
            start = max(interval.start, int(self.free_at[interval.unit]))
            if (
                state.kind[interval.unit] == kind
                and state.earmarked_for[interval.unit] == 0
                and start < interval.end
            ):
                self._take(profile, int(state.host_of[interval.unit]), 1, start, interval.end)
                if interval.reservation is not None:
                    reserved = self.reserved.setdefault(kind, np.zeros_like(profile))
                    self._take(reserved, int(state.host_of[interval.unit]), -1, start, interval.end)
        return profile

    def _take(self, profile: Ints, host: int, units: int, start: int, end: int) -> None:
        profile[self._at_or_before(start) : self._at_or_after(end), host] -= units

    def note_placed(self, units: list[int], seconds: int) -> None:
        """Subtract the units of work that was placed after the forecast was made."""
        until = self.state.now + seconds
        self._extend_to(until)
        for unit in units:
            kind = int(self.state.kind[unit])
            if kind in self.profiles:
                self._take(self.profiles[kind], int(self.state.host_of[unit]), 1, self.state.now, until)
            self.free_at[unit] = until

    def _extend_to(self, time: int) -> None:
        """Add ``time`` to the grid if the grid is not full, or if ``time`` is later than the whole grid.

        Units that are taken until ``time`` become free again at the next grid point. If there were no later
        point, they would never become free.
        """
        index = self._at_or_after(time)
        if index < len(self.times) and (
            self.times[index] == time or len(self.times) >= MAX_FORECAST_TIME_POINTS
        ):
            return
        self.times.insert(index, time)
        for cached in (self.profiles, self.reserved):
            for kind, profile in cached.items():
                cached[kind] = np.insert(profile, index, profile[index - 1], axis=0)

    def note_earmarked(self, units: list[int]) -> None:
        """Subtract units that evictions free for a particular workload, which will start on them soon."""
        for unit in units:
            kind = int(self.state.kind[unit])
            if kind in self.profiles and self.free_at[unit] < FAR_FUTURE:
                self._take(
                    self.profiles[kind], int(self.state.host_of[unit]), 1, int(self.free_at[unit]), FAR_FUTURE
                )

    def unreserved(self, kind: int) -> Ints:
        """Return the profile of a kind, with the units of future reservations counted as free.

        Preemptible work may use these units until it is evicted.
        """
        profile = self.profile(kind)
        return profile + self.reserved[kind] if kind in self.reserved else profile

    def earliest(
        self, ask: Ask, kind: int, seconds: int, not_before: int, evictable_after: int | None = None
    ) -> tuple[int, list[int]] | None:
        """Return (time, hosts): the first time from which the ask fits on these hosts for ``seconds``.

        The time is ``not_before`` or later. Return None if there is no such time. If ``evictable_after`` is
        given, the work can be evicted once it has run for this many seconds. A reservation that begins after
        these seconds then does not prevent the start.
        """
        profile = self.profile(kind)
        labels = self.state.hardware.hosts_with_capacity(ask)
        begin = self._at_or_after(not_before)
        possible = np.add.reduce((profile[begin:] >= ask.units) & labels, axis=1) >= ask.hosts
        for i in (begin + possible.nonzero()[0]).tolist():
            time = self.times[i]
            last = max(i + 1, self._at_or_after(time + seconds))
            if evictable_after is None or kind not in self.reserved:
                lowest = np.minimum.reduce(profile[i:last])
            else:
                clear_index = max(i + 1, self._at_or_after(time + evictable_after))
                without_reservations = profile[i:last] + self.reserved[kind][i:last]
                lowest = np.minimum(
                    np.minimum.reduce(profile[i:clear_index]), np.minimum.reduce(without_reservations)
                )
            hosts = ((lowest >= ask.units) & labels).nonzero()[0]
            if len(hosts) >= ask.hosts:
                tightest = hosts[lowest[hosts].argsort(kind="stable")][: ask.hosts]
                return time, tightest.tolist()
        return None

    def take(self, kind: int, hosts: list[int], units: int, start: int, seconds: int) -> None:
        """Subtract the units of a waiting workload, so that later workloads cannot use them."""
        self._extend_to(start + seconds)
        for host in hosts:
            self._take(self.profiles[kind], host, units, start, start + seconds)
