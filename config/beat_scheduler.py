"""Schedule periodic tasks on a machine whose wall clock may be set.

Celery stores when each task ran last, in wall clock time. If the clock were set back by an hour, no task
would run for an hour. So each round compares the progress of the wall clock with CLOCK_BOOTTIME, which cannot
be set. If they differ, the interval of every task starts again now.
"""

from __future__ import annotations

import time
from typing import Any

from celery.beat import PersistentScheduler
from django.conf import settings

from portal.processes.probe_server import start_probe_server
from portal.processes.reports import ProcessReport

CLOCK_JUMP_SECONDS = 1.0  # smaller differences are normal clock adjustments


class ClockJumpSafeScheduler(PersistentScheduler):  # type: ignore[misc]
    """Celery's persistent scheduler, extended for jumps of the wall clock."""

    _wall_minus_boot_seconds: float | None = None  # wall clock minus CLOCK_BOOTTIME at the last round

    _report: ProcessReport | None = None

    def tick(self, *args: Any, **options: Any) -> Any:
        """Send the tasks that are due, and return the seconds until the next round."""
        self._report_process()
        self.reset_after_clock_jump(self.app.now().timestamp() - time.clock_gettime(time.CLOCK_BOOTTIME))
        return super().tick(*args, **options)

    def _report_process(self) -> None:
        if self._report is None:
            self._report = ProcessReport("beat")
            self._report.send()
            start_probe_server(self._report, settings.GPUPOOL_PROBE_PORT)
        self._report.send_if_due()

    def close(self) -> None:
        """Withdraw the report of the process, and close the schedule."""
        if self._report is not None:
            self._report.withdraw()
        super().close()

    def reset_after_clock_jump(self, wall_minus_boot: float) -> None:
        """Restart the interval of every task if the wall clock has jumped since the last round.

        ``wall_minus_boot`` is the present wall clock time minus CLOCK_BOOTTIME, in seconds.
        """
        previous, self._wall_minus_boot_seconds = self._wall_minus_boot_seconds, wall_minus_boot
        if previous is None or abs(wall_minus_boot - previous) < CLOCK_JUMP_SECONDS:
            return
        for entry in self.schedule.values():
            entry.last_run_at = self.app.now()
        self._heap = None  # Celery must build its heap again, because it is sorted by the old times
