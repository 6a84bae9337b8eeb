"""Check whether a workload could ever start.

For the check, the pool is planned without other workloads and reservations. Every host and GPU is in service,
and no GPU-hours or budget are used up. If the plan still refuses the workload, waiting does not help.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.model.plan import Placement, Refusal
from scheduler.core.model.snapshot import QueuedWorkload, Snapshot
from scheduler.core.reasons import ReasonCode
from scheduler.core.what_if.preview import preview

# If the refusal has one of these reasons, an operator can make the start possible, so waiting can help. For
# every other reason, the user has to change the request.
GRANTABLE_CODES = frozenset({ReasonCode.NO_QUOTA, ReasonCode.OVER_QUOTA})


def impossible_reason(snapshot: Snapshot, queued: QueuedWorkload, now: int) -> Refusal | None:
    """Return the refusal of a workload that could never start, or None if it could start.

    The caller gives a ``snapshot`` in which no GPU-hours are used up. A workload inside a reservation can use
    only the units of the reservation. If the reservation has no units yet, the result is None.
    """
    own = tuple(r for r in snapshot.reservations if r.id == queued.reservation)
    if queued.reservation is not None and not any(r.units for r in own):
        return None
    empty_pool = replace(
        snapshot,
        hosts=tuple(replace(host, schedulable=True, closed_code="") for host in snapshot.hosts),
        units=tuple(unit if unit.healthy else replace(unit, healthy=True) for unit in snapshot.units),
        queued=(),
        running=(),
        reservations=own,
        maintenance=(),
    )
    # A closed budget gate forbids borrowing only until the budget's period ends, so it is ignored here.
    ungated = replace(
        queued, gate="", gate_numbers=(), not_before=0, may_borrow=queued.preemptible, earmarked_units=()
    )
    answer = preview(empty_pool, ungated, now)
    return None if isinstance(answer, Placement) or answer.expected_start is not None else answer
