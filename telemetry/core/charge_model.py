"""Define the values of charging: buckets, holds and conditions of a GPU, rates, and charge pieces."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from telemetry.core.amounts import ZERO

PREEMPTION_END_CODES = frozenset(
    {
        "checkpointed",
        "killed_at_grace",
        "drained",
        "evicted_for_guarantee",
        "evicted_for_priority",
        "evicted_for_reservation",
    }
)
HARDWARE_FAULT_END_CODES = frozenset(
    {"gpu_error", "host_lost", "lease_lost", "prolog_failed", "host_full", "gpu_unreadable"}
)


class ChargeBucket(StrEnum):
    """The bucket that accounts for a second of a slot. The seven buckets partition the time of every GPU."""

    USED = "used"
    RESERVED_UNUSED = "reserved_unused"
    PREEMPTED = "preempted"
    HARDWARE_LOST = "hardware_lost"
    UNALLOCATED = "unallocated"
    UNHEALTHY = "unhealthy"
    MAINTENANCE = "maintenance"


CHARGED_BUCKETS = frozenset({ChargeBucket.USED, ChargeBucket.RESERVED_UNUSED})


class GpuCondition(StrEnum):
    """The condition of a GPU, independent of its holder."""

    WELL = "well"
    UNHEALTHY = "unhealthy"  # quarantined or in repair; work that still runs on the GPU is charged
    SILENT = "silent"  # the agent of the host does not answer; work on the GPU is lost
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class GpuHold:
    """The slots ``[low, high)`` of a GPU (of 0 to 840), held over ``[start, end)``.

    ``end`` is None while the slots are held. The time from ``lost_from`` to the end is not charged. It counts
    in ``lost_bucket``, which is ChargeBucket.PREEMPTED or HARDWARE_LOST.
    """

    allocation: int
    low: int
    high: int
    start: datetime
    end: datetime | None = None
    reservation: int | None = None
    lost_from: datetime | None = None
    lost_bucket: ChargeBucket | None = None


@dataclass(frozen=True, slots=True)
class ReservedSlots:
    """Slots bound to a reservation over ``[start, end)``. ``end`` is None while the slots are bound."""

    reservation: int
    low: int
    high: int
    start: datetime
    end: datetime | None = None


@dataclass(frozen=True, slots=True)
class GpuConditionChange:
    """A change of the GPU's condition to ``condition`` at the time ``at``."""

    at: datetime
    condition: GpuCondition


@dataclass(frozen=True, slots=True)
class Rate:
    """A line of the rate card, valid from ``since`` until the next line.

    Amounts are for one hour of a whole GPU.
    """

    since: datetime
    cost: Decimal
    price: Decimal
    id: int | None = None


@dataclass(frozen=True, slots=True)
class GpuTimeline:
    """All facts that determine the charges of one GPU. ``changes`` and ``rates`` are in order of time.

    ``owned`` is True for a GPU of a static pool. The pool's team pays for such a GPU even while nobody holds
    it.
    """

    holds: tuple[GpuHold, ...] = ()
    bounds: tuple[ReservedSlots, ...] = ()
    changes: tuple[GpuConditionChange, ...] = ()
    rates: tuple[Rate, ...] = ()
    owned: bool = False


@dataclass(frozen=True, slots=True, order=True)
class ChargeKey:
    """The subject of a charge line. Adjacent intervals with equal keys become one line."""

    bucket: str
    allocation: int = 0  # 0: none
    reservation: int = 0  # 0: none


@dataclass(frozen=True, slots=True)
class ChargePiece:
    """A number of ``slots`` of a GPU over ``[start, end)`` with one charge key.

    ``price_pieces`` sets ``cost`` and ``charged``.
    """

    start: datetime
    end: datetime
    slots: int
    owner: ChargeKey
    rate: Rate | None = None
    cost: Decimal = ZERO
    charged: Decimal = ZERO

    @property
    def seconds(self) -> int:
        return int((self.end - self.start).total_seconds())

    @property
    def slot_seconds(self) -> int:
        return self.slots * self.seconds


def floor_to_second(moment: datetime) -> datetime:
    """Return the beginning of the second that contains ``moment``, in UTC."""
    return moment.astimezone(UTC).replace(microsecond=0)


def next_midnight(moment: datetime) -> datetime:
    """Return the first midnight (UTC) after ``moment``."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
