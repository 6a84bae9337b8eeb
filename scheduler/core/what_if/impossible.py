"""Could a workload ever start? What ``plan()`` says to it when it is alone: nothing else runs, waits or is promised, every
host and GPU is in service, and no hours or budget are used up. What it is refused for then, no end of anything mends."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.model.plan import Placement, Refusal
from scheduler.core.model.snapshot import QueuedWorkload, Snapshot
from scheduler.core.reasons import ReasonCode
from scheduler.core.what_if.preview import preview

# What somebody may grant: it is worth waiting for. Of the rest it has to ask for something else.
GRANTABLE_CODES = frozenset({ReasonCode.NO_QUOTA, ReasonCode.OVER_QUOTA})


def impossible_reason(snapshot: Snapshot, queued: QueuedWorkload, now: int) -> Refusal | None:
    """Why a workload could not start whatever ended; None where it could. In ``snapshot`` guarantees hold as if none of their
    GPU-hours were used. Inside a reservation only the units bound to that count, and nothing is said while there are none."""
    own = tuple(r for r in snapshot.reservations if r.id == queued.reservation)
    if queued.reservation is not None and not any(r.units for r in own):
        return None
    alone = replace(
        snapshot,
        hosts=tuple(replace(host, accepts=True, closed_code="") for host in snapshot.hosts),
        units=tuple(unit if unit.well else replace(unit, well=True) for unit in snapshot.units),
        queued=(),
        running=(),
        reservations=own,
        maintenance=(),
    )
    # A budget that allows no borrowing is closed for a time only.
    free = replace(
        queued, gate="", gate_numbers=(), not_before=0, may_borrow=queued.preemptible, earmarked_units=()
    )
    said = preview(alone, free, now)
    return None if isinstance(said, Placement) or said.expected_start is not None else said
