"""Choose the period of the utilisation page, and the time zone of its header and charts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils import timezone

from portal.errors import Invalid
from portal.input_checks import FIRST_YEAR, MAX_YEAR, display_value
from portal.wording.formatting import window
from portal.wording.pages.money import money_pages, utilisation_texts
from telemetry.money.billing_months import month_bounds, month_of, next_month
from telemetry.reads.usage_filters import LONGEST_BY_GPU

PERIODS = utilisation_texts.PERIODS
DEFAULT_PERIOD = "7d"
DAYS_OF_PERIOD = {"24h": 1, "7d": 7, "30d": 30, "365d": 365}
LONG_PERIODS = tuple(name for name, days in DAYS_OF_PERIOD.items() if days > LONGEST_BY_GPU.days)
MAX_PERIOD_DAYS = 400
# People compare long periods with each other, so these have one zone for the whole organisation.
LONGEST_IN_VIEWERS_ZONE = LONGEST_BY_GPU


@dataclass(frozen=True)
class UtilisationPeriod:
    """The period ``[start, end)``, and the zone in which the page shows its times."""

    start: datetime
    end: datetime
    zone: ZoneInfo

    @property
    def length(self) -> timedelta:
        return self.end - self.start

    def text(self, now: datetime) -> str:
        """Return the period in its zone. It ends now at the latest: this hour is incomplete."""
        end = max(min(self.end, now), self.start)
        with timezone.override(self.zone):
            return window(self.start, end)

    def moved(self, lengths: int) -> dict[str, str]:
        """Return the parameters of the period that is ``lengths`` times its length later."""
        shift = self.length * lengths
        return {"start": address_time(self.start + shift), "end": address_time(self.end + shift)}


def read_period(parameters: Mapping[str, str], now: datetime, zone: str) -> UtilisationPeriod:
    """Return the period that the parameters choose.

    Raises Invalid for an invalid period; the message names the allowed values.
    """
    start, end = _bounds(parameters, now)
    return UtilisationPeriod(start, end, _display_zone(end - start, zone))


def address_time(at: datetime) -> str:
    """Return a time as the parameters ``start`` and ``end`` have it: in UTC, without a zone."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M}"


def zone_of_organisation(given: str) -> ZoneInfo:
    """Return the zone of the organisation; without one, that of the site."""
    return ZoneInfo(given or settings.TIME_ZONE)


def _display_zone(length: timedelta, given: str) -> ZoneInfo:
    if length > LONGEST_IN_VIEWERS_ZONE:
        return zone_of_organisation(given)
    return ZoneInfo(timezone.get_current_timezone_name())


def _bounds(parameters: Mapping[str, str], now: datetime) -> tuple[datetime, datetime]:
    """Return (start, end). A named period until now ends with the current hour."""
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    if parameters.get("start") or parameters.get("end"):
        if given := parameters.get("period"):
            text = money_pages.PERIOD_WITH_TIMES.format(given=display_value(given))
            raise Invalid({"period": text}, {"period": given})
        return _custom_bounds(parameters.get("start", ""), parameters.get("end", ""))
    name = parameters.get("period", DEFAULT_PERIOD)
    if name == "month":
        return month_bounds(month_of(now))[0], hour
    if name == "last":
        last = (month_of(now) - timedelta(days=1)).replace(day=1)
        return month_bounds(last)[0], month_bounds(next_month(last))[0]
    if name not in DAYS_OF_PERIOD:
        text = money_pages.PERIOD_UNKNOWN.format(given=name[:20], allowed=", ".join(dict(PERIODS)))
        raise Invalid({"period": text}, {"period": name})
    return hour - timedelta(days=DAYS_OF_PERIOD[name]), hour


def _custom_bounds(first: str, last: str) -> tuple[datetime, datetime]:
    start, end = _utc_time("start", first), _utc_time("end", last)
    if not start < end <= start + timedelta(days=MAX_PERIOD_DAYS):
        text = money_pages.PERIOD_LENGTH.format(end=last[:30], days=MAX_PERIOD_DAYS)
        raise Invalid({"end": text}, {"end": last})
    return start, end


def _utc_time(field: str, text: str) -> datetime:
    """Return the time in a parameter. A time with a zone is refused, because addresses have times in UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is not None or not FIRST_YEAR <= time.year <= MAX_YEAR:
        refusal = money_pages.NOT_A_UTC_TIME.format(
            field=field, given=display_value(text), first=FIRST_YEAR, last=MAX_YEAR
        )
        raise Invalid({field: refusal}, {field: text})
    return time.replace(tzinfo=UTC)
