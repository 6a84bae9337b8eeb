"""Keeps the hardware events of the last day in files.

After a restart, the agent reports these events again. After a reconnection, it reports the events that the
server has not confirmed. The number of kept events is bounded, because a broken GPU kernel of any workload
can cause events at any rate.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from agent.gpu.reader import HardwareEvent
from agent.host.durable_files import read_json, write_json
from agent.protocol import Health, ProtocolError, parse

log = logging.getLogger("agent.gpu.health_events")

RETENTION_SECONDS = 86_400.0
DUPLICATE_WINDOW_SECONDS = 1.0  # within this time, at most one event per code and GPU is reported
MAX_KEPT_PER_CODE = 20  # per code and GPU, only this many of the newest events are kept
SAME_EVENT_SECONDS = 5.0  # largest difference between the time of an event and of its kernel log record


class HealthEventStore:
    """The hardware events that this host has reported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True, mode=0o700)
        self._kept = sorted(self._read(), key=lambda event: event.ts)
        # By event id: the number of the last report that was sent before the event.
        self._sent_after: dict[str, int] = {}
        self._confirmed: set[str] = set()  # ids of events that the server has

    def note(self, event: HardwareEvent) -> Health | None:
        """Keep a new event and return it as a Health frame. The caller sends the frame and calls ``write``.

        Returns None if an event with the same GPU and code has just been reported.
        """
        alike = [known for known in self._kept if (known.gpu, known.code) == (event.gpu, event.code)]
        if alike and abs(event.ts - alike[-1].ts) < DUPLICATE_WINDOW_SECONDS:
            return None
        log.warning("hardware event %s on %s: %s", event.code, event.gpu, event.detail)
        health = Health(event.event_id, event.gpu, event.source, event.code, event.ts, event.detail)
        self._kept.append(health)
        for old in alike[: max(0, len(alike) + 1 - MAX_KEPT_PER_CODE)]:
            self._forget(old)
        return health

    def write(self, health: Health) -> None:
        """Write the event to the disk for a restarted agent. The call blocks: use a thread."""
        try:
            write_json(self._path(health), dataclasses.asdict(health))
        except OSError as problem:  # for example a full disk; this agent still reports the event
            log.error("a hardware event could not be written: %s", problem)
        if health not in self._kept:  # newer events replaced this event during the write
            self._path(health).unlink(missing_ok=True)

    def was_reported(self, event: HardwareEvent) -> bool:
        """Return True if ``event``, which was read from the kernel log, is one of the stored events.

        A stored event with the same id matches. If the agent reported the event without finding its record
        in the kernel log, the stored event has another id. Therefore a stored event also matches if it has
        the same GPU, the same code and a similar time.
        """
        return any(
            known.event_id == event.event_id
            or (
                (known.gpu, known.code) == (event.gpu, event.code)
                and abs(known.ts - event.ts) < SAME_EVENT_SECONDS
            )
            for known in self._kept
        )

    def due(self, now: float) -> list[Health]:
        """Return the events of the last day that the server has not confirmed, the oldest first.

        Call this method after a new connection to the server, and send all of these events.
        """
        self._sent_after.clear()
        return [health for health in self.recent(now) if health.event_id not in self._confirmed]

    def say(self, health: Health, report: int) -> None:
        """Record that the event is sent after report number ``report`` of this connection."""
        self._sent_after[health.event_id] = report

    def confirm(self, report: int) -> None:
        """Confirm the events that were sent before report number ``report``.

        The server has handled this report, and it handles the frames of a connection in their order.
        """
        for event in [event for event, after in self._sent_after.items() if after < report]:
            self._confirmed.add(event)
            del self._sent_after[event]

    def recent(self, now: float) -> list[Health]:
        """Return the events of the last day, the oldest first."""
        for old in [known for known in self._kept if known.ts < now - RETENTION_SECONDS]:
            self._forget(old)
        return list(self._kept)

    def codes_between(self, gpus: frozenset[str], since: float, until: float) -> list[str]:
        """Return the event codes of these GPUs from ``since`` to ``until``, the oldest first.

        A code that occurred several times is listed once.
        """
        return list(
            dict.fromkeys(
                event.code for event in self._kept if event.gpu in gpus and since <= event.ts <= until
            )
        )

    def _forget(self, event: Health) -> None:
        self._kept.remove(event)
        self._confirmed.discard(event.event_id)
        self._path(event).unlink(missing_ok=True)

    def _read(self) -> list[Health]:
        found: list[Health] = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(parse(Health, read_json(path)))
            except ProtocolError:  # damaged, or written by a newer agent before a downgrade
                log.warning("a kept hardware event can't be read: %s", path.name)
                path.unlink()
        return found

    def _path(self, event: Health) -> Path:
        return self._folder / f"{event.event_id}.json"
