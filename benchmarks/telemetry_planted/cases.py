"""Generate jobs and reservations with known behaviour.

Among the clean cases are hard ones: bursts, pauses at checkpoints, GPUs that take turns, missing samples, and
a utilisation of 0 with changing power or traffic.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

PERIOD_MINUTES = 75
KINDS = {
    "idle": ("held_idle", "held_empty"),
    "over_ask": ("over_asked",),
    "no_show": ("reserved_unused",),
}


@dataclass(frozen=True)
class PlantedReading:
    """The readings of one GPU at one time."""

    utilisation: float
    power_w: float
    pcie_kib: int = 400
    processes: int = 1


# The readings of a GPU (number in its work) at a minute of the period; None: the sample is lost.
Behaviour = Callable[[random.Random, float, int], PlantedReading | None]


@dataclass
class PlantedCase:
    """A job or a reservation. ``label`` is a key of KINDS, or "clean". ``since`` is its first minute."""

    label: str
    gpus: int = 1
    since: float = 0.0
    behaviour: Behaviour | None = None
    reserved: bool = False
    used: str = ""  # how a reservation is used: "" (not), "held" or "waiting"
    subject: tuple[str, int] = ("", 0)
    units: list[Any] = field(default_factory=list)


def _busy(rng: random.Random, low: float = 40, high: float = 100) -> PlantedReading:
    use = rng.uniform(low, high)
    return PlantedReading(use, 150 + 4 * use + rng.gauss(0, 10), rng.randrange(50_000, 400_000))


def _quiet(rng: random.Random, processes: int = 1) -> PlantedReading:
    return PlantedReading(0.0, 72 + rng.gauss(0, 1.5), rng.randrange(100, 900), processes)


def _idle(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _quiet(rng)


def empty_reading(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _quiet(rng, processes=0)


def _nearly_idle(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    quiet = _quiet(rng)
    return PlantedReading(rng.uniform(0, 3), quiet.power_w, quiet.pcie_kib)


def _idle_with_lost_samples(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return None if rng.random() < 0.1 else _quiet(rng)


def _idle_after_work(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _busy(rng) if minute < 25 else _quiet(rng)


def _uses_half(used: int, idle_processes: int, bursts: bool) -> Behaviour:
    def reading(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
        if gpu >= used:
            return _quiet(rng, idle_processes)
        return _quiet(rng) if bursts and minute % 20 > 15 else _busy(rng)

    return reading


def planted_cases(rng: random.Random, each: int) -> Iterator[PlantedCase]:
    idle = (_idle, empty_reading, _nearly_idle, _idle_with_lost_samples, _idle_after_work)
    for number in range(each):
        yield PlantedCase("idle", rng.choice((1, 1, 2, 4)), behaviour=idle[number % len(idle)])
        gpus = rng.choice((4, 8))
        behaviour = _uses_half(rng.randint(1, gpus // 2), number % 2, bursts=number % 3 == 0)
        yield PlantedCase("over_ask", gpus, behaviour=behaviour)
        yield PlantedCase("no_show", rng.choice((1, 2)), since=rng.uniform(20, 55), reserved=True)


def _steady(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _busy(rng)


def _light(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _busy(rng, 6, 20)


def _bursts(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _busy(rng) if rng.random() < 0.3 else _quiet(rng)


def _checkpoints(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _quiet(rng) if minute % 18 < 7 else _busy(rng)


def _evaluates_rarely(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _busy(rng) if minute % 15 < 2 else _quiet(rng)


def _hidden_work(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return PlantedReading(0.0, rng.choice((90, 160, 240)) + rng.gauss(0, 10), 500)


def _copies(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return PlantedReading(0.0, 78 + rng.gauss(0, 1.5), rng.randrange(200_000, 4_000_000))


def _lost_while_busy(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    """Return a GPU whose samples are lost while it is busy, so that only its pauses are known."""
    return _quiet(rng) if minute % 30 < 12 else None


def _loads_first(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _quiet(rng) if minute < 22 else _busy(rng)


def _take_turns(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _busy(rng) if int(minute // 6) % 4 == gpu % 4 else _quiet(rng)


def _one_waits(rng: random.Random, minute: float, gpu: int) -> PlantedReading | None:
    return _busy(rng) if gpu else _quiet(rng)


def clean_cases(rng: random.Random, number: int) -> Iterator[PlantedCase]:
    jobs: Sequence[tuple[int, float, Behaviour]] = (
        (1, 0.0, _steady),
        (2, 0.0, _light),
        (1, 0.0, _bursts),
        (2, 0.0, _checkpoints),
        (1, 0.0, _evaluates_rarely),
        (1, 0.0, _hidden_work),
        (1, 0.0, _copies),
        (1, 0.0, _lost_while_busy),
        (1, 0.0, _loads_first),
        (4, 0.0, _take_turns),
        (4, 0.0, _one_waits),  # three of four GPUs are used
        (1, PERIOD_MINUTES - 12.0, _idle),  # it started twelve minutes ago
    )
    reservations = (("held", 5.0), ("waiting", 5.0), ("", PERIOD_MINUTES - 8.0))
    for index in range(number):
        at = index % (len(jobs) + len(reservations))
        if at < len(jobs):
            gpus, since, behaviour = jobs[at]
            yield PlantedCase("clean", gpus, since, behaviour)
        else:
            used, since = reservations[at - len(jobs)]
            behaviour_of_user = _steady if used == "held" else None
            yield PlantedCase("clean", 1, since, behaviour_of_user, reserved=True, used=used)
