from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.reasons import ReasonNumbers


@dataclass(frozen=True, slots=True)
class Placement:
    workload: int
    units: tuple[int, ...]  # sorted ids, all hosts of the gang
    borrowed_slots: int  # above the team's guarantee; 0 for guaranteed work
    code: str  # reasons.Code: why it could start now
    numbers: ReasonNumbers = ()
    until: int = (
        0  # when it has to be over: now + its longest runtime, or its reservation's end if that is earlier
    )


@dataclass(frozen=True, slots=True)
class Eviction:
    """A whole workload told to go. Exactly one of ``for_workload`` and ``for_reservation`` is set."""

    workload: int
    for_workload: int | None
    for_reservation: int | None
    code: str
    stop_at: int  # when the notice is over and the stop signal is sent
    numbers: ReasonNumbers = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a queued workload does not start now. ``expected_start`` is None when nothing known would free its units;
    then ``code`` says what would have to change."""

    workload: int
    code: str
    numbers: ReasonNumbers = ()
    position: int | None = None  # 1 is next in its pool; None for a gated workload
    expected_start: int | None = None
    blockers: tuple[int, ...] = ()  # workloads whose end it waits for
    # Units set aside for it: others use them only if expected to be gone by its expected start.
    held_units: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservationBinding:
    """Units bound to a reservation that starts now."""

    reservation: int
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnboundReservation:
    """A reservation that has begun and has no units yet, and why. Tried again in every cycle."""

    reservation: int
    code: str
    numbers: ReasonNumbers


@dataclass(frozen=True, slots=True)
class Plan:
    epoch: int
    placements: tuple[Placement, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    bindings: tuple[ReservationBinding, ...] = ()
    unbound: tuple[UnboundReservation, ...] = ()
