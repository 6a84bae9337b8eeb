"""Define the kinds of alerts with their subjects, units, bounds and default thresholds.

docs/telemetry.md has the same table. The defaults apply in each pool whose operators have not changed them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

MAX_WINDOW_MINUTES = 2 * 24 * 60
MIN_NOTICE_MINUTES = 5
MAX_NOTICE_MINUTES = 24 * 60
DEFAULT_NOTICE_MINUTES = 30
MAX_POSTPONE_TIMES = 20
DEFAULT_POSTPONE_TIMES = 3
MIN_POSTPONE_MINUTES = 5
MAX_POSTPONE_MINUTES = 24 * 60
DEFAULT_POSTPONE_MINUTES = 120


class AlertKind(StrEnum):
    HELD_EMPTY = "held_empty"
    HELD_IDLE = "held_idle"
    OVER_ASKED = "over_asked"
    RESERVED_UNUSED = "reserved_unused"
    HOT = "hot"
    THROTTLED = "throttled"
    ECC_GROWTH = "ecc_growth"
    TELEMETRY_GAP = "telemetry_gap"
    CLOCK_SKEW = "clock_skew"
    LONG_WAIT = "long_wait"


class AlertSubject(StrEnum):
    WORKLOAD = "workload"
    RESERVATION = "reservation"
    GPU = "gpu"
    HOST = "host"
    POOL = "pool"


@dataclass(frozen=True)
class AlertThresholds:
    """The values at which an alert begins and ends, and the time for which the value must hold.

    An alert begins at ``begin`` or more over ``begin_minutes``. It ends at ``end`` or less over
    ``end_minutes``. ``stop_work`` stops unused work ``notice_minutes`` after its alert began. Its owner may
    postpone the stop ``postpone_times`` times, each time by at most ``postpone_minutes``.
    """

    begin: float
    end: float
    begin_minutes: int
    end_minutes: int
    enabled: bool = True
    stop_work: bool = False
    notice_minutes: int = DEFAULT_NOTICE_MINUTES
    postpone_times: int = DEFAULT_POSTPONE_TIMES
    postpone_minutes: int = DEFAULT_POSTPONE_MINUTES


THRESHOLD_FIELDS = tuple(entry.name for entry in fields(AlertThresholds))


@dataclass(frozen=True)
class AlertKindDefinition:
    """A kind of alert. ``unit`` is the unit of its value, which lies between ``lowest`` and ``highest``."""

    kind: AlertKind
    subject: AlertSubject
    unit: str
    lowest: float
    highest: float
    defaults: AlertThresholds
    may_stop: bool = False


PERCENT, MINUTES = "%", "minutes"
MAX_WAIT_MINUTES = 60 * 24 * 60
_DEFINITIONS = (
    AlertKindDefinition(
        AlertKind.HELD_EMPTY,
        AlertSubject.WORKLOAD,
        PERCENT,
        0,
        100,
        AlertThresholds(begin=98, end=90, begin_minutes=15, end_minutes=3),
        may_stop=True,
    ),
    AlertKindDefinition(
        AlertKind.HELD_IDLE,
        AlertSubject.WORKLOAD,
        PERCENT,
        0,
        100,
        AlertThresholds(begin=98, end=90, begin_minutes=30, end_minutes=3),
        may_stop=True,
    ),
    AlertKindDefinition(
        AlertKind.OVER_ASKED,
        AlertSubject.WORKLOAD,
        PERCENT,
        0,
        100,
        AlertThresholds(begin=50, end=25, begin_minutes=60, end_minutes=15),
    ),
    AlertKindDefinition(
        AlertKind.RESERVED_UNUSED,
        AlertSubject.RESERVATION,
        MINUTES,
        0,
        MAX_WAIT_MINUTES,
        AlertThresholds(begin=15, end=1, begin_minutes=1, end_minutes=1),
    ),
    AlertKindDefinition(
        AlertKind.HOT,
        AlertSubject.GPU,
        "°C",
        0,
        140,
        AlertThresholds(begin=88, end=82, begin_minutes=5, end_minutes=5),
    ),
    AlertKindDefinition(
        AlertKind.THROTTLED,
        AlertSubject.GPU,
        PERCENT,
        0,
        100,
        AlertThresholds(begin=50, end=10, begin_minutes=10, end_minutes=10),
    ),
    AlertKindDefinition(
        AlertKind.ECC_GROWTH,
        AlertSubject.GPU,
        "errors",
        0,
        1_000_000,
        AlertThresholds(begin=1, end=0, begin_minutes=1440, end_minutes=1440),
    ),
    AlertKindDefinition(
        AlertKind.TELEMETRY_GAP,
        AlertSubject.HOST,
        MINUTES,
        0,
        MAX_WAIT_MINUTES,
        AlertThresholds(begin=10, end=2, begin_minutes=1, end_minutes=1),
    ),
    AlertKindDefinition(
        AlertKind.CLOCK_SKEW,
        AlertSubject.HOST,
        "seconds",
        0,
        1_000_000,
        AlertThresholds(begin=10, end=2, begin_minutes=10, end_minutes=30),
    ),
    AlertKindDefinition(
        AlertKind.LONG_WAIT,
        AlertSubject.POOL,
        MINUTES,
        0,
        MAX_WAIT_MINUTES,
        AlertThresholds(begin=1440, end=1080, begin_minutes=1, end_minutes=1),
    ),
)
ALERT_KINDS = {definition.kind: definition for definition in _DEFINITIONS}
# Kinds that compare the present value only, so that they have no window.
MOMENTARY_KINDS = frozenset({AlertKind.RESERVED_UNUSED, AlertKind.TELEMETRY_GAP, AlertKind.LONG_WAIT})
USE_KINDS = (AlertKind.HELD_EMPTY, AlertKind.HELD_IDLE, AlertKind.OVER_ASKED)
