"""Define the rows of a plan, which is the planner's output."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.reasons import ReasonNumbers


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision to start a queued workload now on these units."""

    workload: int
    units: tuple[int, ...]  # sorted ids, on all hosts of the workload
    borrowed_slots: int  # slots above the team's guarantee; 0 for guaranteed work
    code: str  # ReasonCode: why it can start now
    numbers: ReasonNumbers = ()
    until: int = 0  # deadline: now + its runtime limit, or its reservation's end if that is earlier


@dataclass(frozen=True, slots=True)
class Eviction:
    """The decision to evict a running workload as a whole.

    Exactly one of ``for_workload`` and ``for_reservation`` is set.
    """

    workload: int
    for_workload: int | None
    for_reservation: int | None
    code: str
    stop_at: int  # when the notice ends and the stop signal is sent
    numbers: ReasonNumbers = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a queued workload does not start now.

    ``expected_start`` is None if no end of known work would free enough units. Then ``code`` is the obstacle
    that has to be removed.
    """

    workload: int
    code: str
    numbers: ReasonNumbers = ()
    position: int | None = None  # 1 is next in its pool; None for a workload that was not admitted
    expected_start: int | None = None
    blockers: tuple[int, ...] = ()  # ids of workloads that have to end first
    # Units held for this workload. Other work may use these units only if that work is expected to end before
    # ``expected_start``.
    held_units: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservationBinding:
    """Units that are bound to a reservation that starts now."""

    reservation: int
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnboundReservation:
    """A reservation that has begun and has no units yet, with the reason. Each cycle tries again to
    bind it.
    """

    reservation: int
    code: str
    numbers: ReasonNumbers


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions of one cycle: placements, evictions, refusals and bindings. Each table is sorted by
    id.
    """

    epoch: int
    placements: tuple[Placement, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    bindings: tuple[ReservationBinding, ...] = ()
    unbound: tuple[UnboundReservation, ...] = ()
