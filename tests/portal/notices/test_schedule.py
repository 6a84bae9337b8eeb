"""Test when messages to notice channels are due."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, time, timedelta

import pytest

from portal.notices.channels.schedule import LONGEST_RETRY, due_time, retry_time

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NIGHT = (time(22), time(7))


def berlin(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 10, day, hour, minute, tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("now", "digest", "quiet", "due"),
    [
        (berlin(12, 10, 20), "none", (None, None), berlin(12, 10, 20)),
        (berlin(12, 10, 20), "hourly", (None, None), berlin(12, 11)),
        (berlin(12, 7, 59), "daily", (None, None), berlin(12, 8)),
        (berlin(12, 8), "daily", (None, None), berlin(13, 8)),
        (berlin(12, 23), "none", NIGHT, berlin(13, 7)),
        (berlin(13, 6, 59), "none", NIGHT, berlin(13, 7)),
        (berlin(13, 7), "none", NIGHT, berlin(13, 7)),
        (berlin(12, 21, 59), "none", NIGHT, berlin(12, 21, 59)),
        (berlin(12, 21, 30), "hourly", NIGHT, berlin(13, 7)),
        (berlin(12, 12, 30), "none", (time(12), time(13)), berlin(12, 13)),
        # The night on which clocks go back has 25 hours.
        (berlin(24, 23), "none", NIGHT, berlin(25, 7)),
    ],
)
def test_a_message_is_due_at_once_or_with_its_digest_or_after_quiet_hours(
    now: datetime, digest: str, quiet: tuple[time | None, time | None], due: datetime
) -> None:
    found = due_time(now.astimezone(UTC), BERLIN, digest, *quiet)
    assert found == due and found.tzinfo is UTC


def test_waits_between_attempts_double_up_to_an_hour() -> None:
    now = datetime(2026, 10, 12, tzinfo=UTC)
    waits = [(retry_time(now, attempts) - now).total_seconds() for attempts in (1, 2, 3, 9, 10)]
    assert waits == [10, 20, 40, 2560, 3600]
    assert retry_time(now, 10_000) - now == LONGEST_RETRY
    assert retry_time(now, 0) - now == timedelta(seconds=10)
