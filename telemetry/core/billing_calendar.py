"""Calculate billing months and billing days in the organisation's time zone.

A billing month has the name of a calendar month. The zone of a month is the newest zone that has begun: its
first month is this month or an earlier month. The month ends at the local midnight that begins the next
calendar month. It begins at the end of the month before. So months never overlap or leave a gap, even if the
zone changes.

A billing day is a local day of its month. It may have 23, 25 or another number of hours when clocks change.
If the zone changes, the first day of the month is longer or shorter, because it begins where the last month
ended.

All times are datetimes in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

ONE_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, order=True)
class ZoneStart:
    """The time zone ``name`` of all billing months from ``first_month`` on, until the next ZoneStart."""

    first_month: date
    name: str


def next_month(month: date) -> date:
    """Return the first day of the following calendar month."""
    return (month.replace(day=1) + timedelta(days=32)).replace(day=1)


def previous_month(month: date) -> date:
    """Return the first day of the calendar month before."""
    return (month.replace(day=1) - ONE_DAY).replace(day=1)


def corrected_month(month: date, day: date) -> date | None:
    """Return the closed month that a charge line corrects; None if the line is of its statement's own month.

    ``month`` is the month of the line's statement, and ``day`` is the billing day of the line's time.
    """
    own = day.replace(day=1)
    return None if own == month else own


class BillingCalendar:
    """The billing months and days of an organisation.

    ``zones`` has at most one zone for each first month. Before the first zone, months are in UTC. Raises
    ``zoneinfo.ZoneInfoNotFoundError`` for an unknown zone.
    """

    def __init__(self, zones: Iterable[ZoneStart] = ()) -> None:
        self.zones = tuple(sorted(zones))
        self._infos = {zone.name: ZoneInfo(zone.name) for zone in self.zones}
        self._infos["UTC"] = ZoneInfo("UTC")
        self._days: dict[date, tuple[datetime, datetime]] = {}

    def zone_name(self, month: date) -> str:
        """Return the name of the time zone of a month, such as ``Europe/Berlin``."""
        name = "UTC"
        for zone in self.zones:
            if zone.first_month <= month:
                name = zone.name
        return name

    def month_bounds(self, month: date) -> tuple[datetime, datetime]:
        """Return ``[start, end)`` of a billing month."""
        before, following = previous_month(month), next_month(month)
        start = self._midnight(month.replace(day=1), self.zone_name(before))
        return start, self._midnight(following, self.zone_name(month))

    def day_bounds(self, day: date) -> tuple[datetime, datetime]:
        """Return ``[start, end)`` of a billing day. Start and end are equal if the clocks skip the day."""
        if day not in self._days:
            start, end = self.month_bounds(day.replace(day=1))
            zone, following = self.zone_name(day.replace(day=1)), day + ONE_DAY
            low = start if day.day == 1 else min(max(self._midnight(day, zone), start), end)
            high = end if following.day == 1 else min(max(self._midnight(following, zone), start), end)
            self._days[day] = (low, high)
        return self._days[day]

    def day_of(self, moment: datetime) -> date:
        """Return the billing day that contains ``moment``. The month of this day is the billing month."""
        day = moment.astimezone(self._infos[self.zone_name(moment.astimezone(UTC).date())]).date()
        while moment < self.day_bounds(day)[0]:
            day -= ONE_DAY
        while moment >= self.day_bounds(day)[1]:
            day += ONE_DAY
        return day

    def month_of(self, moment: datetime) -> date:
        """Return the first day of the billing month that contains ``moment``."""
        return self.day_of(moment).replace(day=1)

    def start_of_day(self, moment: datetime) -> datetime:
        """Return the start of the billing day that contains ``moment``."""
        return self.day_bounds(self.day_of(moment))[0]

    def next_midnight(self, moment: datetime) -> datetime:
        """Return the end of the billing day that contains ``moment``: the first midnight after it."""
        return self.day_bounds(self.day_of(moment))[1]

    def _midnight(self, day: date, zone: str) -> datetime:
        """Return the first midnight that begins a local day.

        If the clocks skip midnight, use the UTC offset before the change of the clocks.
        """
        return datetime(day.year, day.month, day.day, tzinfo=self._infos[zone]).astimezone(UTC)


UTC_CALENDAR = BillingCalendar()
