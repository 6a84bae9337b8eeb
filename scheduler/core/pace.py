"""When work deep in a queue may expect to start: by the pool's pace, not on particular units.

The forecast (``timeline.Forecast``) gives the first that wait their hosts and times. Those behind are told the time that
the pool needs for the work in between.
"""

from __future__ import annotations

from scheduler.core.board import Board
from scheduler.core.model import Queued
from scheduler.core.timeline import Forecast


class Pace:
    """Expected starts behind the last forecast start, in the order of the queue."""

    def __init__(self, board: Board, forecast: Forecast, latest_start: int) -> None:
        """``latest_start`` is the latest that the forecast gave (s)."""
        self.board, self.forecast, self.latest_start = board, forecast, latest_start
        self._capacity = int(board.slots[board.usable].sum())
        self._behind = 0  # slot-seconds waiting behind the last forecast

    def expected_start(self, queued: Queued, kinds: list[int]) -> int | None:
        """When a workload may start that may have units of these kinds; it is then counted in."""
        if self._capacity == 0 or not kinds:
            return None
        start = self.latest_start + self._behind // self._capacity
        self._behind += self.board.need_slots(queued.ask, kinds[0]) * queued.predicted_seconds
        return max(start, self.board.now + 1)

    def note_placed(self, units: list[int], seconds: int) -> None:
        """Work that was started meanwhile."""
