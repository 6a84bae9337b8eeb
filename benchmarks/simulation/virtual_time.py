"""Virtual time, and a network that loses, doubles, delays, reorders and replays what it carries."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

Act = Callable[[], None]
KEPT_EVENTS = 2_000  # of the last events, for whoever has to find out what happened


class VirtualTimeline:
    """What happens, in order of its time; what happens at the same time, in the order in which it was planned."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds since the beginning
        self.steps = 0
        self.story: list[str] = []
        self._due: list[tuple[float, int, Act]] = []
        self._planned = 0
        self._digest = hashlib.sha256()

    def after(self, seconds: float, act: Act) -> None:
        """Plan something."""
        self._planned += 1
        heapq.heappush(self._due, (self.now + seconds, self._planned, act))

    def run(self, until: float, look: Act) -> None:
        """Let time pass; ``look`` is called after everything that happens."""
        while self._due and self._due[0][0] <= until:
            self.now, _, act = heapq.heappop(self._due)
            act()
            self.steps += 1
            look()
        self.now = until

    def tell(self, what: str) -> None:
        """Note what happened, in words without anything that differs between two runs of one seed."""
        line = f"{self.now:9.3f}  {what}"
        self._digest.update(line.encode())
        self.story = [*self.story[-KEPT_EVENTS:], line] if len(self.story) > 2 * KEPT_EVENTS else self.story
        self.story.append(line)

    @property
    def digest(self) -> str:
        """The same for the same course, and only for it."""
        return self._digest.hexdigest()


@dataclass(frozen=True, slots=True)
class NetworkConditions:
    """Shares of frames that never arrive, arrive twice, or late by up to ``latest`` seconds, or once more long after, up to
    ``replayed_after`` seconds."""

    lost: float = 0.06
    doubled: float = 0.06
    late: float = 0.1
    latest: float = 8.0
    replayed: float = 0.06
    replayed_after: float = 25.0


class SimulatedNetwork:
    """Between the hosts and the edge. Each frame takes its own way, so a later one may arrive first."""

    def __init__(self, timeline: VirtualTimeline, rng: random.Random, weather: NetworkConditions) -> None:
        self.timeline, self.rng, self.weather = timeline, rng, weather
        self.cut: set[str] = set()  # names of hosts that nobody reaches
        self.calm = False

    def carry(self, host: str, deliver: Act) -> None:
        """Bring a frame to or from ``host``: once, twice, or never."""
        if host in self.cut:
            return
        delays = [self._delay() for _ in range(self._copies())]
        if not self.calm and self.rng.random() < self.weather.replayed:
            delays.append(self.rng.uniform(self.weather.latest, self.weather.replayed_after))
        for delay in delays:
            self.timeline.after(delay, lambda: None if host in self.cut else deliver())

    def _copies(self) -> int:
        chance = self.rng.random()
        if self.calm or chance >= self.weather.lost + self.weather.doubled:
            return 1
        return 0 if chance < self.weather.lost else 2

    def _delay(self) -> float:
        quick = 0.005 + self.rng.expovariate(50)
        if self.calm or self.rng.random() >= self.weather.late:
            return quick
        return quick + self.rng.uniform(0.2, self.weather.latest)
