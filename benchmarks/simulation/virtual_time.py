"""Simulate time, and a network that loses, duplicates, delays, reorders and replays frames."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

Action = Callable[[], None]
KEPT_EVENTS = 2_000  # number of latest events that are kept for diagnosis


class VirtualTimeline:
    """A queue of events, ordered by time.

    Events at the same time run in the order in which they were scheduled.
    """

    def __init__(self) -> None:
        self.now = 0.0  # seconds since the start of the simulation
        self.steps = 0
        self.story: list[str] = []
        self._due: list[tuple[float, int, Action]] = []
        self._planned = 0
        self._digest = hashlib.sha256()

    def after(self, seconds: float, act: Action) -> None:
        """Schedule an event that happens ``seconds`` from now."""
        self._planned += 1
        heapq.heappush(self._due, (self.now + seconds, self._planned, act))

    def run(self, until: float, after_event: Action) -> None:
        """Run all events up to the time ``until``.

        ``after_event`` is called after every event.
        """
        while self._due and self._due[0][0] <= until:
            self.now, _, act = heapq.heappop(self._due)
            act()
            self.steps += 1
            after_event()
        self.now = until

    def record(self, text: str) -> None:
        """Record an event as text.

        Two runs of one seed must record the same texts. So the text may not depend on real time or on random
        ids.
        """
        line = f"{self.now:9.3f}  {text}"
        self._digest.update(line.encode())
        self.story = [*self.story[-KEPT_EVENTS:], line] if len(self.story) > 2 * KEPT_EVENTS else self.story
        self.story.append(line)

    @property
    def digest(self) -> str:
        """Return a hash of all recorded events. Two simulations with equal hashes had equal events."""
        return self._digest.hexdigest()


@dataclass(frozen=True, slots=True)
class NetworkConditions:
    """The probabilities that a frame is lost, doubled, late or replayed.

    A late frame takes up to ``latest`` seconds. A replayed frame arrives again up to ``replayed_after``
    seconds later.
    """

    lost: float = 0.06
    doubled: float = 0.06
    late: float = 0.1
    latest: float = 8.0
    replayed: float = 0.06
    replayed_after: float = 25.0


class SimulatedNetwork:
    """The network between the hosts and the edge.

    Each frame has its own random delay, so frames may be reordered.
    """

    def __init__(self, timeline: VirtualTimeline, rng: random.Random, conditions: NetworkConditions) -> None:
        self.timeline, self.rng, self.conditions = timeline, rng, conditions
        self.cut: set[str] = set()  # names of the hosts that are cut off
        self.calm = False

    def carry(self, host: str, deliver: Action) -> None:
        """Deliver a frame to or from ``host`` by calling ``deliver``: once, several times, or never."""
        if host in self.cut:
            return
        delays = [self._delay() for _ in range(self._copies())]
        if not self.calm and self.rng.random() < self.conditions.replayed:
            delays.append(self.rng.uniform(self.conditions.latest, self.conditions.replayed_after))
        for delay in delays:
            self.timeline.after(delay, lambda: None if host in self.cut else deliver())

    def _copies(self) -> int:
        draw = self.rng.random()
        if self.calm or draw >= self.conditions.lost + self.conditions.doubled:
            return 1
        return 0 if draw < self.conditions.lost else 2

    def _delay(self) -> float:
        quick = 0.005 + self.rng.expovariate(50)
        if self.calm or self.rng.random() >= self.conditions.late:
            return quick
        return quick + self.rng.uniform(0.2, self.conditions.latest)
