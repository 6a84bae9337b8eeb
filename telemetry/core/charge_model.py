"""Define the value types of charging: buckets, holds and conditions of a GPU, rates, and charge pieces."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from telemetry.core.amounts import MICRO, ZERO, round_amount
from telemetry.core.billing_calendar import UTC_CALENDAR, BillingCalendar

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
    """The category in which the time of a slot is counted. A slot is 1/840 of a GPU.

    Every second of every slot is in exactly one of the seven buckets.
    """

    USED = "used"
    RESERVED_UNUSED = "reserved_unused"
    PREEMPTED = "preempted"
    HARDWARE_LOST = "hardware_lost"
    UNALLOCATED = "unallocated"
    UNHEALTHY = "unhealthy"
    MAINTENANCE = "maintenance"


CHARGED_BUCKETS = frozenset({ChargeBucket.USED, ChargeBucket.RESERVED_UNUSED})
# Buckets of statement lines that are made from adjustments. They have no time, and no charge lines.
CREDIT_BUCKET, ADJUSTMENT_BUCKET = "credit", "adjustment"
ADJUSTMENT_BUCKETS = frozenset({CREDIT_BUCKET, ADJUSTMENT_BUCKET})
# Buckets of time that a workload held.
HELD_BUCKETS = frozenset({ChargeBucket.USED, ChargeBucket.PREEMPTED, ChargeBucket.HARDWARE_LOST})


class GpuCondition(StrEnum):
    """The condition of a GPU, whether or not work holds the GPU."""

    WELL = "well"
    UNHEALTHY = "unhealthy"  # quarantined or in repair; work that still runs on the GPU is charged
    SILENT = "silent"  # the agent of the host does not answer; work on the GPU is lost
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class WorkFactor:
    """The factor on the price of an allocation from ``since`` until the next WorkFactor.

    ``factor`` is the product of the priority's factor and the workload type's factor. An id is None if no row
    sets this factor; the factor is then 1.
    """

    since: datetime
    factor: Decimal
    priority_factor: int | None = None
    type_factor: int | None = None


@dataclass(frozen=True, slots=True)
class GpuHold:
    """The slots ``[low, high)`` of a GPU that one allocation holds during ``[start, end)``.

    Slots are numbered from 0 to 839. ``end`` is None while the allocation still holds the slots. If work was
    lost, the time from ``lost_from`` to ``end`` is not charged. This time is counted in ``lost_bucket``,
    which is ChargeBucket.PREEMPTED or HARDWARE_LOST. ``factors`` are in order of time.
    """

    allocation: int
    low: int
    high: int
    start: datetime
    end: datetime | None = None
    reservation: int | None = None
    lost_from: datetime | None = None
    lost_bucket: ChargeBucket | None = None
    factors: tuple[WorkFactor, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservedSlots:
    """The slots ``[low, high)`` of a GPU that are assigned to a reservation during ``[start, end)``.

    ``end`` is None while the slots are still assigned.
    """

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

    ``cost`` is the owner's cost and ``price`` is the charge to teams. Both are for one hour of a whole GPU.
    """

    since: datetime
    cost: Decimal
    price: Decimal
    id: int | None = None

    def price_with(self, factor: Decimal) -> Decimal:
        """Return the price multiplied by a factor, rounded to six decimals like every price."""
        return round_amount(self.price * factor, MICRO)


@dataclass(frozen=True, slots=True)
class GpuTimeline:
    """All facts that determine the charges of one GPU. ``changes`` and ``rates`` are in order of time.

    ``bounds`` are the slots assigned to reservations. ``owned`` is True for a GPU of a static pool, which
    belongs to one team. The team pays for such a GPU even while nobody holds it. ``calendar`` has the billing
    days.
    """

    holds: tuple[GpuHold, ...] = ()
    bounds: tuple[ReservedSlots, ...] = ()
    changes: tuple[GpuConditionChange, ...] = ()
    rates: tuple[Rate, ...] = ()
    owned: bool = False
    calendar: BillingCalendar = UTC_CALENDAR


class ChargeKey(NamedTuple):
    """The bucket, the allocation and the reservation of a charge line.

    Adjacent intervals with equal keys become one line. Keys and pieces are named tuples, because a run makes
    millions of them.
    """

    bucket: str
    allocation: int = 0  # 0: none
    reservation: int = 0  # 0: none


class ChargePiece(NamedTuple):
    """A number of ``slots`` of a GPU during ``[start, end)``, all with the charge key ``owner``.

    ``day`` is the billing day that contains the interval. ``cost`` and ``charged`` are zero until
    ``price_pieces`` sets them. ``factor`` is None for a factor of 1.
    """

    day: date
    start: datetime
    end: datetime
    slots: int
    owner: ChargeKey
    rate: Rate | None = None
    cost: Decimal = ZERO
    charged: Decimal = ZERO
    factor: WorkFactor | None = None

    @property
    def seconds(self) -> int:
        return int((self.end - self.start).total_seconds())

    @property
    def slot_seconds(self) -> int:
        return self.slots * self.seconds


def floor_to_second(moment: datetime) -> datetime:
    """Return the beginning of the second that contains ``moment``, in UTC."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.replace(microsecond=0) if moment.microsecond else moment
