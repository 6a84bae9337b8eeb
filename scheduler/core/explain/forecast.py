"""When waiting work may expect to start: the units of each host that are expected to be free, from now on.

The first that wait are put in here one after another, in their order; ``pace`` goes on where this stops.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from scheduler.core.arrays import Ints
from scheduler.core.model.hardware import FAR_FUTURE
from scheduler.core.model.pool_state import PoolState, eviction_lead_seconds
from scheduler.core.model.snapshot import Ask
from scheduler.core.promises.promise_timeline import PromiseTimeline

MAX_FORECAST_TIME_POINTS = 96  # a forecast's grid: finer is slower, and predictions are no better than that


class Forecast:
    """How many units of each kind every host is expected to have at each moment to come, as plans fill them up.

    Freeing times are rounded up to the grid and taking times down, so coarseness never promises too early a start.
    """

    def __init__(self, board: PoolState, promises: PromiseTimeline) -> None:
        self.board, self.promises = board, promises
        self.free_at = self._free_at()
        promised = [
            moment for s in promises.promised_intervals for moment in (s.start, s.end) if moment > board.now
        ]
        moments = np.unique(
            np.array([board.now, *promised, *self.free_at[self.free_at < FAR_FUTURE].tolist()])
        )
        if len(moments) > MAX_FORECAST_TIME_POINTS:
            moments = moments[
                np.arange(MAX_FORECAST_TIME_POINTS) * (len(moments) - 1) // (MAX_FORECAST_TIME_POINTS - 1)
            ]
        self.moments: list[int] = (
            moments.tolist()
        )  # a list: where a time belongs is asked for thousands of times
        self.profiles: dict[int, Ints] = {}
        self.reserved: dict[
            int, Ints
        ] = {}  # as ``profiles``: units that reservations to come take of them, if any do

    def _free_at(self) -> Ints:
        """When each unit is expected to be given back by who holds it now."""
        board = self.board
        free_at = np.where(board.usable, board.now, FAR_FUTURE).astype(np.int64)
        for host, start, end in board.maintenance:
            if start <= board.now < end and board.hosts[host].accepts:
                free_at[board.first_unit[host] : board.first_unit[host + 1]] = end
        ends = board.expected_end_times.copy()
        evicted = sorted(board.evicted)
        ends[evicted] = np.minimum(ends[evicted], board.now + eviction_lead_seconds(board))
        held = np.flatnonzero((board.holder >= 0) & (board.holder < len(board.running)))
        free_at[held] = np.maximum(free_at[held], ends[board.holder[held]])
        for i, placement in enumerate(board.placements):
            units = np.flatnonzero(board.holder == len(board.running) + i)
            free_at[units] = board.now + board.predicted[placement.workload]
        for reservation in board.reservations:
            free_at[board.bound == reservation.id] = reservation.end
        return free_at

    def _at_or_after(self, time: int) -> int:
        return bisect_left(self.moments, time)

    def _at_or_before(self, time: int) -> int:
        return max(0, bisect_right(self.moments, time) - 1)

    def profile(self, kind: int) -> Ints:
        """``[moment, host]``: units of a kind expected to be free."""
        known = self.profiles.get(kind)
        if known is None:
            known = self.profiles[kind] = self._profile(kind)
        return known

    def _profile(self, kind: int) -> Ints:
        board = self.board
        change = np.zeros((len(self.moments) + 1, len(board.hosts)), dtype=np.int64)
        mine = np.flatnonzero((board.kind == kind) & (self.free_at < FAR_FUTURE) & (board.kept == 0))
        np.add.at(change, (np.searchsorted(self.moments, self.free_at[mine]), board.host_of[mine]), 1)
        profile: Ints = np.cumsum(change, axis=0)[:-1]
        for stretch in self.promises.promised_intervals:  # a promise to come takes its unit while it lasts
            start = max(stretch.start, int(self.free_at[stretch.unit]))
            if board.kind[stretch.unit] == kind and board.kept[stretch.unit] == 0 and start < stretch.end:
                self._take(profile, int(board.host_of[stretch.unit]), 1, start, stretch.end)
                if stretch.reservation is not None:
                    reserved = self.reserved.setdefault(kind, np.zeros_like(profile))
                    self._take(reserved, int(board.host_of[stretch.unit]), -1, start, stretch.end)
        return profile

    def _take(self, profile: Ints, host: int, units: int, start: int, end: int) -> None:
        profile[self._at_or_before(start) : self._at_or_after(end), host] -= units

    def note_placed(self, units: list[int], seconds: int) -> None:
        """Work that was started after the forecast was made."""
        until = self.board.now + seconds
        self._extend_to(until)
        for unit in units:
            kind = int(self.board.kind[unit])
            if kind in self.profiles:
                self._take(self.profiles[kind], int(self.board.host_of[unit]), 1, self.board.now, until)
            self.free_at[unit] = until

    def _extend_to(self, time: int) -> None:
        """Have ``time`` in the grid if there is room, and in any case if it is later than all of the grid: units taken for
        good would be expected back by nobody."""
        place = self._at_or_after(time)
        if place < len(self.moments) and (
            self.moments[place] == time or len(self.moments) >= MAX_FORECAST_TIME_POINTS
        ):
            return
        self.moments.insert(place, time)
        for known in (self.profiles, self.reserved):
            for kind, profile in known.items():
                known[kind] = np.insert(profile, place, profile[place - 1], axis=0)

    def note_kept(self, units: list[int]) -> None:
        """Units earmarked for work that starts soon: gone from the forecast."""
        for unit in units:
            kind = int(self.board.kind[unit])
            if kind in self.profiles and self.free_at[unit] < FAR_FUTURE:
                self._take(
                    self.profiles[kind], int(self.board.host_of[unit]), 1, int(self.free_at[unit]), FAR_FUTURE
                )

    def unreserved(self, kind: int) -> Ints:
        """As ``profile``, without what reservations to come take: what there is for who may be told to go for them."""
        profile = self.profile(kind)
        return profile + self.reserved[kind] if kind in self.reserved else profile

    def earliest(
        self, ask: Ask, kind: int, seconds: int, not_before: int, gone_after: int | None = None
    ) -> tuple[int, list[int]] | None:
        """The first moment, at least ``not_before``, from which an ask fits for ``seconds``, and on which hosts. Who may be
        told to go for a reservation needs to be clear of these for ``gone_after`` seconds only."""
        profile = self.profile(kind)
        labels = self.board.ground.hosts_with_capacity(ask)
        begin = self._at_or_after(not_before)
        possible = np.add.reduce((profile[begin:] >= ask.units) & labels, axis=1) >= ask.hosts
        for i in (begin + possible.nonzero()[0]).tolist():
            moment = self.moments[i]
            last = max(i + 1, self._at_or_after(moment + seconds))
            if gone_after is None or kind not in self.reserved:
                lowest = np.minimum.reduce(profile[i:last])
            else:
                clear = max(i + 1, self._at_or_after(moment + gone_after))
                lent = profile[i:last] + self.reserved[kind][i:last]
                lowest = np.minimum(np.minimum.reduce(profile[i:clear]), np.minimum.reduce(lent))
            hosts = ((lowest >= ask.units) & labels).nonzero()[0]
            if len(hosts) >= ask.hosts:
                tightest = hosts[lowest[hosts].argsort(kind="stable")][: ask.hosts]
                return moment, tightest.tolist()
        return None

    def take(self, kind: int, hosts: list[int], units: int, start: int, seconds: int) -> None:
        """Count waiting work in, so that what comes after it is expected later."""
        self._extend_to(start + seconds)
        for host in hosts:
            self._take(self.profiles[kind], host, units, start, start + seconds)
