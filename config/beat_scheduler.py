"""The clock that ticks, on a machine whose wall clock is set.

Celery tells from the wall clock when an entry ran last. Set back by an hour, an entry would seem to have run in an hour's time, and
nothing would tick until then: no sweep, no look at hosts. So each round compares how far the wall clock went with how far
CLOCK_BOOTTIME did, which nobody can set; where they differ, every entry counts from now.
"""

from __future__ import annotations

import time
from typing import Any

from celery.beat import PersistentScheduler

CLOCK_JUMP_SECONDS = 1.0  # seconds; less is how clocks are kept right


class ClockJumpSafeScheduler(PersistentScheduler):  # type: ignore[misc]
    """Celery's own, but for clocks that are set."""

    _wall_minus_boot_seconds: float | None = None  # the wall clock before CLOCK_BOOTTIME, at the last round

    def tick(self, *args: Any, **also: Any) -> Any:
        """One round: send what is due; seconds until the next."""
        self.reset_after_clock_jump(self.app.now().timestamp() - time.clock_gettime(time.CLOCK_BOOTTIME))
        return super().tick(*args, **also)

    def reset_after_clock_jump(self, ahead: float) -> None:
        """Let every entry count from now when the wall clock is ``ahead`` by another time than at the last round."""
        before, self._wall_minus_boot_seconds = self._wall_minus_boot_seconds, ahead
        if before is None or abs(ahead - before) < CLOCK_JUMP_SECONDS:
            return
        for entry in self.schedule.values():
            entry.last_run_at = self.app.now()
        self._heap = None  # sorted by the times that were
