"""Define the closed list of reason codes.

The module that makes a decision also sets its reason code and the numbers. ``portal/wording`` turns them into
a sentence, and ``docs/reasons.md`` explains each code. A test checks that both cover every code.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class ReasonCode(StrEnum):
    """The reason why a workload starts, waits or ended, or why a reservation has no units."""

    # Reasons why a workload starts.
    FREE_WITHIN_GUARANTEE = "free_within_guarantee"
    FREE_BORROWED = "free_borrowed"
    INSIDE_RESERVATION = "inside_reservation"
    RECLAIMED_GUARANTEE = "reclaimed_guarantee"
    OUTRANKED_WITHIN_TEAM = "outranked_within_team"
    OWN_STATIC_POOL = "own_static_pool"
    # Reasons why a workload is evicted.
    EVICTED_FOR_GUARANTEE = "evicted_for_guarantee"
    EVICTED_FOR_PRIORITY = "evicted_for_priority"
    EVICTED_FOR_RESERVATION = "evicted_for_reservation"
    # Reasons why a workload waits. They end when its request, the hardware or a quota changes.
    NO_SUCH_HARDWARE = "no_such_hardware"
    TOO_BIG_FOR_ANY_HOST = "too_big_for_any_host"
    NOT_YOUR_POOL = "not_your_pool"
    NO_QUOTA = "no_quota"
    OVER_WORKLOAD_CAP = "over_workload_cap"
    OVER_RUNTIME_CAP = "over_runtime_cap"
    # Reasons why a workload waits. They end when a limit, a gate (for example a budget) or a host changes.
    OVER_QUOTA = "over_quota"
    OVER_USER_CAP = "over_user_cap"
    GPU_HOURS_USED_UP = "gpu_hours_used_up"
    BUDGET_CLOSED = "budget_closed"
    DEPENDENCY = "dependency"
    ARRAY_LIMIT = "array_limit"
    BACKING_OFF = "backing_off"
    RESERVATION_NOT_STARTED = "reservation_not_started"
    RESERVATION_OVER = "reservation_over"
    RESERVATION_NOT_YOURS = "reservation_not_yours"
    HOST_CLOSED = "host_closed"
    ISOLATION_TOO_WEAK = "isolation_too_weak"
    PERSON_USERS_MISSING = "person_users_missing"
    # Reasons why a workload waits. They end when enough units are free for it.
    WAITS_FOR_UNITS = "waits_for_units"
    WAITS_FOR_EVICTION = "waits_for_eviction"
    HELD_FOR_RESERVATION = "held_for_reservation"
    HELD_FOR_MAINTENANCE = "held_for_maintenance"
    BEHIND_OTHERS = "behind_others"
    BEHIND_OWN_TEAM = "behind_own_team"
    SPARE_CAPACITY_KEPT = "spare_capacity_kept"
    # The reason why a new workload is not accepted.
    TOO_MANY_WAITING = "too_many_waiting"
    # Reasons why a requested reservation does not fit.
    WINDOW_FULL = "window_full"
    WINDOW_EATS_GUARANTEES = "window_eats_guarantees"
    EXTENSION_BLOCKED = "extension_blocked"
    # The reason why running work may not get more time.
    MORE_TIME_BLOCKED = "more_time_blocked"
    # Reasons why a reservation that has begun has no units.
    RESERVED_UNITS_MISSING = "reserved_units_missing"
    RESERVED_UNITS_IN_USE = "reserved_units_in_use"
    # The reason why a reservation will not have enough units at its start, or for the rest of its time.
    RESERVATION_AT_RISK = "reservation_at_risk"
    # How an attempt ended. The agent uses these codes too.
    FINISHED = "finished"
    FAILED = "failed"
    CHECKPOINTED = "checkpointed"
    KILLED_AT_GRACE = "killed_at_grace"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_DISK = "out_of_disk"
    DISK_RAN_LOW = "disk_ran_low"
    GPU_ERROR = "gpu_error"
    HOST_LOST = "host_lost"
    LEASE_LOST = "lease_lost"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    IDLE = "idle"
    START_FAILED = "start_failed"
    PROLOG_FAILED = "prolog_failed"
    HOST_FULL = "host_full"
    GPU_UNREADABLE = "gpu_unreadable"
    DRAINED = "drained"
    DEPENDENCY_NEVER_MET = "dependency_never_met"


ReasonNumbers = tuple[tuple[str, Any], ...]  # pairs (name, JSON value), sorted by name


Reason = tuple[str, ReasonNumbers]  # a ReasonCode value with its numbers


def reason_numbers(**values: object) -> ReasonNumbers:
    """Return the keyword arguments as the numbers of a reason, sorted by name."""
    return tuple(sorted(values.items()))
