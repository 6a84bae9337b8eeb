"""Replay recorded requests through the planner in simulated time, with the present GPUs or with others.

The planner, the order of its queue and its evictions are those of the product (``scheduler.core.what_if``).
The recorded requests keep their submission, size, team, priority and run length. They start when the planner
places them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from scheduler.core.model.serialization import read_snapshot, table_text
from scheduler.core.model.snapshot import Ask, Snapshot
from scheduler.core.what_if.simulation import (
    ReservationArrival,
    Simulation,
    SimulationEvent,
    SimulationEventKind,
    WorkloadArrival,
)

INPUTS_FORMAT = 1
STEP_SECONDS = 86_400  # between two calls of ``on_progress``


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """The recorded course of one queued workload of the snapshot.

    ``at`` is the time from which it could start. ``waited`` are the seconds from then until its first GPU, or
    until the end of the record. If ``counts`` is False, the request takes part in the replay, but its wait is
    not compared: it had other causes than the number of GPUs, or it began before the record.
    """

    id: int
    at: int
    runtime_seconds: int
    checkpoint_seconds: int | None
    waited: int
    counts: bool = True


@dataclass(frozen=True)
class RecordedDemand:
    """The recorded demand of a pool in ``[start, end)``, in seconds since the epoch.

    ``snapshot`` has the hardware and the quotas, all requests as queued, and all reservations. ``booked``
    has the time at which each reservation was confirmed, by its id.
    """

    snapshot: Snapshot
    start: int
    end: int
    requests: tuple[RecordedRequest, ...]
    booked: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ReplayResult:
    """The wait of each compared request in seconds, by id, and the held slot-seconds by model.

    A request that did not start has waited until the end; ``not_started`` has its id.
    """

    waits: dict[int, int]
    not_started: frozenset[int]
    held: dict[str, float]


def replay(
    demand: RecordedDemand,
    snapshot: Snapshot | None = None,
    on_progress: Callable[[float], None] = lambda share: None,
) -> ReplayResult:
    """Replay the demand on the hardware of ``snapshot``; None means the recorded one.

    ``on_progress`` is called with the replayed share of the time. It may raise an exception, which ends the
    replay.
    """
    run = _Replay(demand, snapshot or demand.snapshot)
    now = demand.start
    while now < demand.end:
        now = min(demand.end, now + STEP_SECONDS)
        run.simulation.run(now)
        on_progress((now - demand.start) / max(1, demand.end - demand.start))
    return run.result()


class _Replay:
    def __init__(self, demand: RecordedDemand, hardware: Snapshot) -> None:
        self.demand = demand
        self.model_of = {unit.id: unit.model for unit in hardware.units}
        self.slots_of = {unit.id: unit.slots for unit in hardware.units}
        self.placed: dict[int, int] = {}
        self.holds: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.held: dict[str, float] = defaultdict(float)
        empty = replace(hardware, queued=(), running=(), reservations=(), decayed_use=(), maintenance=())
        self.simulation = Simulation(empty, demand.start, self._on_event)
        queued = {row.id: row for row in demand.snapshot.queued}
        reservations = {row.id: row for row in demand.snapshot.reservations}
        for reservation, at in sorted(demand.booked, key=lambda each: (each[1], each[0])):
            self._book(ReservationArrival(at, replace(reservations[reservation], units=())))
        for request in sorted(demand.requests, key=lambda request: (request.at, request.id)):
            self.simulation.submit(
                WorkloadArrival(
                    request.at, queued[request.id], request.runtime_seconds, request.checkpoint_seconds
                )
            )

    def _book(self, booking: ReservationArrival) -> None:
        self.simulation.at(booking.at, lambda: self.simulation.book(booking.reservation))

    def _on_event(self, event: SimulationEvent) -> None:
        if event.workload is None:
            return
        if event.kind is SimulationEventKind.PLACED:
            self.placed.setdefault(event.workload, event.at)
            self.holds[event.workload] = event.at, event.units
        elif event.kind in (SimulationEventKind.STOPPED, SimulationEventKind.ENDED):
            self._count_held(event.workload, event.at)

    def _count_held(self, workload: int, until: int) -> None:
        since, units = self.holds.pop(workload)
        for unit in units:
            self.held[self.model_of[unit]] += self.slots_of[unit] * (until - since)

    def result(self) -> ReplayResult:
        for workload in list(self.holds):
            self._count_held(workload, self.demand.end)
        compared = [request for request in self.demand.requests if request.counts]
        return ReplayResult(
            {each.id: self.placed.get(each.id, self.demand.end) - each.at for each in compared},
            frozenset(each.id for each in compared if each.id not in self.placed),
            dict(self.held),
        )


def accepts(ask: Ask, model: str) -> bool:
    """Return True if a request may run on a model of GPUs."""
    return not ask.models or model in ask.models


def demand_text(demand: RecordedDemand) -> str:
    """Return recorded demand as JSON text. Equal demand gives equal text."""
    tables = {
        field.name: json.loads(table_text(getattr(demand.snapshot, field.name)))
        for field in fields(demand.snapshot)
        if field.name != "epoch"
    }
    rows = [[getattr(row, name) for name in REQUEST_FIELDS] for row in demand.requests]
    content = {
        "format": INPUTS_FORMAT,
        "start": demand.start,
        "end": demand.end,
        "snapshot": {"epoch": demand.snapshot.epoch, **tables},
        "requests": rows,
        "booked": demand.booked,
    }
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


def read_demand(text: str) -> RecordedDemand:
    """Read the text that ``demand_text`` returns. Raises ValueError if its format is unknown."""
    content: dict[str, Any] = json.loads(text)
    if content["format"] != INPUTS_FORMAT:
        raise ValueError(f"format: {content['format']!r} is not {INPUTS_FORMAT}")
    return RecordedDemand(
        read_snapshot(content["snapshot"]),
        content["start"],
        content["end"],
        tuple(RecordedRequest(*row) for row in content["requests"]),
        tuple((reservation, at) for reservation, at in content["booked"]),
    )


REQUEST_FIELDS = tuple(field.name for field in fields(RecordedRequest))
