"""Measures the server's clock against CLOCK_BOOTTIME, which nobody can set.

The server can then find the true time of a sample, even if the wall clock of this host is wrong or was set.
"""

from __future__ import annotations

from dataclasses import dataclass

# The error of a measurement grows by this part of the time since then, because clocks run at different rates.
DRIFT = 1e-4


@dataclass(frozen=True, slots=True)
class ClockMeasurement:
    """The server's wall clock minus CLOCK_BOOTTIME of this host, in seconds, with its largest error.

    ``at`` is the CLOCK_BOOTTIME of the measurement.
    """

    offset: float
    error: float
    at: float

    def error_at(self, now: float) -> float:
        """Return the largest error of the offset at CLOCK_BOOTTIME ``now``, in seconds."""
        return self.error + abs(now - self.at) * DRIFT


class ServerClock:
    """Keeps the best measurement of the server's clock."""

    def __init__(self) -> None:
        self.measurement: ClockMeasurement | None = None  # None: not measured since the start of the agent

    def note(self, sent: float, received: float, server_time: float) -> None:
        """Record one round trip: CLOCK_BOOTTIME of the report and of its answer, and the server's time.

        The server read its clock between the two, so the error is half of the round trip. The measurement
        replaces an earlier one that is less exact, or that it contradicts because a clock was set.
        """
        new = ClockMeasurement(server_time - (sent + received) / 2, (received - sent) / 2, received)
        old = self.measurement
        if old is not None:
            old_error = old.error_at(received)
            if old_error < new.error and abs(new.offset - old.offset) <= old_error + new.error:
                return
        self.measurement = new
