"""Find channels that have failed for some time, for notices in the portal to the people who own them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from portal.models import NoticeChannel
from portal.notices.pending import PendingNotice
from portal.notices.recipients import lead_ids

REPORT_AFTER = timedelta(minutes=15)


def failing_channels(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each active channel whose messages have failed for REPORT_AFTER.

    Its person, or the leads of its team, receive it in the portal.
    """
    failing = NoticeChannel.objects.filter(active=True, failing_since__lte=now - REPORT_AFTER)
    for channel in failing.order_by("pk"):
        failing_since = channel.failing_since
        assert failing_since is not None  # the filter demands it
        users = (channel.user_id,) if channel.user_id else tuple(sorted(lead_ids(channel.team_id or 0)))
        numbers = {
            "name": channel.name,
            "since": int(failing_since.timestamp()),
            "failure": channel.failure,
            "channel": str(channel.public_id),
        }
        source = f"channel fails:{channel.pk}:{failing_since:%Y%m%d%H%M%S}"
        yield PendingNotice("channel_fails", source, users, numbers)
