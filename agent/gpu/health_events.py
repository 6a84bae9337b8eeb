"""Hardware events of the last day, in files, so that the next agent, and a new connection those that the server may not have, says
them again.

Bounded: some of them come from any workload's broken kernel, as fast as it likes.
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
DUPLICATE_WINDOW_SECONDS = 1.0  # of the same code on the same GPU one is told in so long
MAX_KEPT_PER_CODE = 20  # so many of the same code on the same GPU are kept: the newest
SAME_EVENT_SECONDS = 5.0  # the driver's event and the kernel's log do not have the same time to the second


class HealthEventStore:
    """What this host has told of its hardware."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True, mode=0o700)
        self._kept = sorted(self._read(), key=lambda event: event.ts)
        self._said: dict[str, int] = {}  # by event: after which report of this connection it went out
        self._confirmed: set[str] = set()  # the server has them

    def note(self, event: HardwareEvent) -> Health | None:
        """What is to be told of it, and then to be written; None where the same was told a moment ago."""
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
        """Keep it for the next agent. Waits for the disk: not for the event loop."""
        try:
            write_json(self._path(health), dataclasses.asdict(health))
        except OSError as problem:  # a full disk: this agent tells it all the same
            log.error("a hardware event could not be written: %s", problem)
        if health not in self._kept:  # pushed out by newer ones meanwhile
            self._path(health).unlink(missing_ok=True)

    def was_reported(self, event: HardwareEvent) -> bool:
        """Whether an earlier agent heard of what the kernel's log says: by the record's id, or by its time where that agent did not
        find the record."""
        return any(
            known.event_id == event.event_id
            or (
                (known.gpu, known.code) == (event.gpu, event.code)
                and abs(known.ts - event.ts) < SAME_EVENT_SECONDS
            )
            for known in self._kept
        )

    def due(self, now: float) -> list[Health]:
        """What a new connection has to say, the oldest first: those of the last day that the server may not have."""
        self._said.clear()
        return [health for health in self.recent(now) if health.event_id not in self._confirmed]

    def say(self, health: Health, report: int) -> None:
        """It goes out now, after report number ``report`` of this connection."""
        self._said[health.event_id] = report

    def confirm(self, report: int) -> None:
        """The server has handled report number ``report``, and so all that was said before that one."""
        for event in [event for event, after in self._said.items() if after < report]:
            self._confirmed.add(event)
            del self._said[event]

    def recent(self, now: float) -> list[Health]:
        """Those of the last day, the oldest first."""
        for old in [known for known in self._kept if known.ts < now - RETENTION_SECONDS]:
            self._forget(old)
        return list(self._kept)

    def codes_between(self, gpus: frozenset[str], since: float, until: float) -> list[str]:
        """What these GPUs told from ``since`` to ``until``, each code once, the first one first."""
        return list(
            dict.fromkeys(each.code for each in self._kept if each.gpu in gpus and since <= each.ts <= until)
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
            except (
                ProtocolError
            ):  # damaged, or of a newer agent that was taken back: it would be told wrongly or not at all
                log.warning("a kept hardware event can't be read: %s", path.name)
                path.unlink()
        return found

    def _path(self, event: Health) -> Path:
        return self._folder / f"{event.event_id}.json"
