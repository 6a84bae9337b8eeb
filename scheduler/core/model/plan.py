"""Define the rows of a plan, which is the planner's output."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.reasons import ReasonNumbers


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision to start a queued workload on ``units`` now."""

    workload: int
    units: tuple[int, ...]  # the sorted ids of the units on all hosts of the workload
    borrowed_slots: int  # slots above the team's guarantee; 0 if the work is within the guarantee
    code: str  # a ReasonCode value: the reason why the workload can start now
    numbers: ReasonNumbers = ()
    until: int = 0  # deadline: now + the runtime limit, or the end of the workload's reservation if earlier


@dataclass(frozen=True, slots=True)
class Eviction:
    """The decision to stop a running workload, on all of its units, to make room.

    The room is for a waiting workload (``for_workload``) or for a reservation (``for_reservation``). Exactly
    one of these two fields is set.
    """

    workload: int
    for_workload: int | None
    for_reservation: int | None
    code: str
    stop_at: int  # the time at which the notice ends and the stop signal is sent
    numbers: ReasonNumbers = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a queued workload does not start now.

    ``expected_start`` is None if the workload could not start even after all known work has ended. Then
    ``code`` names the obstacle that must be removed first.
    """

    workload: int
    code: str
    numbers: ReasonNumbers = ()
    # The place in the pool's queue; 1 is first. None if the workload was not admitted to the queue.
    position: int | None = None
    expected_start: int | None = None
    blockers: tuple[int, ...] = ()  # ids of the workloads that must end before this workload can start
    # Units held for this workload. Other work may use a held unit only if that work is expected to end before
    # ``expected_start``.
    held_units: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservationBinding:
    """The decision to give ``units`` to a reservation that starts now."""

    reservation: int
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnboundReservation:
    """The reason why a reservation that has begun has no units yet. Each cycle tries again."""

    reservation: int
    code: str
    numbers: ReasonNumbers


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions of one cycle (one run of the planner). Each table is sorted by id."""

    epoch: int
    placements: tuple[Placement, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    bindings: tuple[ReservationBinding, ...] = ()
    unbound: tuple[UnboundReservation, ...] = ()
