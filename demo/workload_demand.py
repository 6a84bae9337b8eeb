"""Generate the demand for the demo's past.

The demand is similar to public traces (Microsoft Philly and SenseTime Helios, see ``docs/benchmarks.md``):

- Most jobs request one GPU and end within an hour.
- A few large jobs use most of the GPU-hours.
- Submissions peak in working hours, and fall to about a third at weekends.

Equal seeds give equal demand.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.core.model.snapshot import Priority

HOUR_SECONDS = 3600

# Relative rate of submissions in each hour of the local day, from 0 to 23.
SUBMISSION_RATE_BY_HOUR = (3, 2, 2, 1, 1, 1, 2, 4, 8, 12, 14, 14, 11, 12, 14, 14, 13, 12, 9, 7, 6, 6, 5, 4)
WEEKEND_RATE = 0.35
LOW_PRIORITY_NAMES = ("dose-sweep", "nowcast-eval")  # work that can wait


@dataclass(frozen=True)
class DemandStream:
    """One kind of work of one team.

    Runtimes have a log-normal distribution, and are at most ``longest_hours``.
    """

    team: str
    projects: tuple[str, ...]
    users: tuple[str, ...]
    pool: str
    model: str
    names: tuple[str, ...]
    per_working_day: float
    sizes: tuple[tuple[int, int], ...]  # (GPUs, relative frequency)
    median_hours: float
    sigma: float
    longest_hours: float
    type: str = "training"
    kind: str = "job"
    profile: str = ""
    preemptible: bool = True
    utilisation: float = 75.0  # mean in per cent; each workload draws its own mean around this value


@dataclass(frozen=True)
class DemandedWork:
    """One workload, submitted at ``at``.

    ``runtime_seconds`` is its runtime if it is not preempted.
    """

    at: datetime
    stream: DemandStream
    project: str
    user: str
    name: str
    units: int
    runtime_seconds: int
    limit_seconds: int
    utilisation: float

    @property
    def priority(self) -> Priority:
        """Return the priority that its user chose."""
        return Priority.LOW if self.name in LOW_PRIORITY_NAMES else Priority.NORMAL


DEMAND_STREAMS = (
    DemandStream(
        "imaging",
        ("vessel-seg", "mri-foundation"),
        ("researcher", "imaging-lead"),
        "shared",
        "H100-80GB",
        ("vessel-unet", "atlas-register", "contrast-aug", "dose-sweep"),
        14,
        ((1, 78), (2, 14), (4, 8)),
        0.7,
        1.5,
        30,
    ),
    DemandStream(
        "imaging",
        ("mri-foundation",),
        ("imaging-lead", "researcher"),
        "shared",
        "H100-80GB",
        ("mri-pretrain", "nnunet-fold"),
        1.6,
        ((4, 60), (8, 40)),
        6.0,
        0.9,
        60,
        utilisation=86,
    ),
    DemandStream(
        "imaging",
        ("vessel-seg",),
        ("researcher",),
        "shared",
        "H100-80GB",
        ("notebook",),
        2.2,
        ((1, 90), (2, 10)),
        2.6,
        0.6,
        9,
        type="interactive",
        kind="notebook",
        preemptible=False,
        utilisation=18,
    ),
    DemandStream(
        "folding",
        ("binder", "fold-md"),
        ("lead", "folding-member"),
        "shared",
        "H100-80GB",
        ("binder-sweep", "af-tune", "relax", "low-res"),
        12,
        ((1, 70), (2, 20), (4, 10)),
        0.9,
        1.5,
        40,
        utilisation=82,
    ),
    DemandStream(
        "folding",
        ("fold-md",),
        ("folding-member", "lead"),
        "shared",
        "H100-80GB",
        ("fold-md", "af-tune-full"),
        1.6,
        ((4, 65), (8, 35)),
        7.0,
        0.8,
        48,
        utilisation=91,
    ),
    DemandStream(
        "folding",
        ("binder",),
        ("lead", "folding-member"),
        "shared",
        "A100-80GB",
        ("notebook",),
        1.5,
        ((1, 100),),
        2.2,
        0.7,
        9,
        type="interactive",
        kind="notebook",
        preemptible=False,
        utilisation=15,
    ),
    DemandStream(
        "climate",
        ("era5", "nowcast"),
        ("climate-lead", "climate-member"),
        "shared",
        "H100-80GB",
        ("era5-tune", "nowcast-eval", "storm-ablate"),
        7,
        ((1, 75), (2, 15), (4, 10)),
        0.8,
        1.4,
        24,
        utilisation=64,
    ),
    DemandStream(
        "climate",
        ("nowcast",),
        ("climate-member", "climate-lead"),
        "shared",
        "A100-80GB",
        ("nowcast-eval", "tile-infer"),
        16,
        ((1, 80), (2, 20)),
        1.1,
        1.2,
        20,
        type="inference",
        utilisation=41,
    ),
    DemandStream(
        "imaging",
        ("vessel-seg",),
        ("researcher", "imaging-lead"),
        "shared",
        "A100-80GB",
        ("contrast-aug", "quick-check"),
        15,
        ((1, 85), (2, 15)),
        0.8,
        1.3,
        16,
        utilisation=58,
    ),
    DemandStream(
        "imaging",
        ("vessel-seg",),
        ("researcher", "imaging-lead"),
        "shared",
        "A100-80GB",
        ("slice-notebook",),
        5,
        ((1, 100),),
        3.0,
        0.6,
        10,
        type="interactive",
        kind="notebook",
        profile="1g.10gb",
        preemptible=False,
    ),
    DemandStream(
        "folding",
        ("fold-md",),
        ("folding-member", "lead"),
        "shared",
        "A100-80GB",
        ("md-short",),
        16,
        ((1, 100),),
        0.9,
        1.0,
        8,
        profile="1g.10gb",
    ),
    DemandStream(
        "climate",
        ("era5", "nowcast"),
        ("climate-lead", "climate-member"),
        "climate-lab",
        "A100-80GB",
        ("era5-nowcast", "storm-1km", "era5-full"),
        3.2,
        ((2, 40), (4, 40), (8, 20)),
        6.0,
        1.0,
        60,
        utilisation=79,
    ),
    DemandStream(
        "climate",
        ("nowcast",),
        ("climate-member",),
        "climate-lab",
        "A100-80GB",
        ("nowcast-fit",),
        9,
        ((1, 100),),
        0.7,
        1.3,
        16,
        utilisation=52,
    ),
)


def generate_demand(*, start: datetime, end: datetime, seed: int) -> list[DemandedWork]:
    """Return the demand in ``[start, end)``, ordered by time.

    The time zone of ``start`` defines the hours of the day.
    """
    wanted = [
        piece
        for number, stream in enumerate(DEMAND_STREAMS)
        for piece in _generate_stream(stream, start, end, random.Random(f"{seed}/{number}"))
    ]
    return sorted(wanted, key=lambda piece: (piece.at, piece.stream.team, piece.name, piece.runtime_seconds))


def _generate_stream(
    stream: DemandStream, start: datetime, end: datetime, dice: random.Random
) -> Iterator[DemandedWork]:
    peak = max(SUBMISSION_RATE_BY_HOUR)
    per_second_at_peak = stream.per_working_day / (sum(SUBMISSION_RATE_BY_HOUR) / peak) / HOUR_SECONDS
    at = start
    while True:
        # Draw arrivals at the peak rate, then keep the share that fits the hour and the weekday.
        at += timedelta(seconds=dice.expovariate(per_second_at_peak))
        if at >= end:
            return
        rhythm = SUBMISSION_RATE_BY_HOUR[at.hour] / peak * (WEEKEND_RATE if at.weekday() >= 5 else 1.0)
        if dice.random() < rhythm:
            yield _draw_work(stream, at, dice)


def _draw_work(stream: DemandStream, at: datetime, dice: random.Random) -> DemandedWork:
    units = dice.choices([size for size, _ in stream.sizes], [weight for _, weight in stream.sizes])[0]
    hours = min(stream.median_hours * math.exp(dice.gauss(0, stream.sigma)), stream.longest_hours)
    runtime = max(60, round(hours * HOUR_SECONDS))
    # Users overestimate the runtime: the limit is 1 to 4 times the runtime, rounded up to a whole hour.
    limit = math.ceil(runtime * math.exp(dice.uniform(0, math.log(4))) / HOUR_SECONDS) * HOUR_SECONDS
    return DemandedWork(
        at=at.replace(microsecond=0),
        stream=stream,
        project=dice.choice(stream.projects),
        user=dice.choice(stream.users),
        name=f"{dice.choice(stream.names)}-{dice.randrange(100, 1000)}",
        units=units,
        runtime_seconds=runtime,
        limit_seconds=min(limit, 7 * 24 * HOUR_SECONDS),
        utilisation=min(99.0, max(3.0, dice.gauss(stream.utilisation, 12))),
    )
