"""Write messages into the outbox, in the transaction that writes the notices that they contain."""

from __future__ import annotations

import zoneinfo
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from portal import locks
from portal.models import (
    NoticeChannel,
    NoticeMessage,
    NoticeMessageItem,
    Notification,
    Organisation,
    Submission,
)
from portal.notices.channels.schedule import due_time
from portal.notices.pending import PendingNotice
from portal.wording.notices.topics import topic_of
from scheduler.models import Reservation, Workload

DELETE_BATCH_SIZE = 5_000


def write_messages(rows: Sequence[Notification], events: Sequence[PendingNotice], now: datetime) -> int:
    """Write the messages for new notices. Return the number of new items.

    ``rows`` are the new notices of people. ``events`` are all events of this run: those of a team's work go
    to the team's channels, whoever else is told. Call it in the transaction that writes the notices.
    """
    # Without the address: a channel whose key is lost must not stop the notices of others.
    rows_of_channels = NoticeChannel.objects.filter(active=True).select_related("user", "team")
    channels = list(rows_of_channels.defer("target").order_by("pk"))
    if not channels:
        return 0
    items = [*_items_for_people(rows, channels, now), *_items_for_teams(events, channels, now)]
    known = set(
        NoticeMessageItem.objects.filter(source__in={item.source for item in items}).values_list(
            "channel_id", "source"
        )
    )
    return _add([item for item in items if (item.channel_id, item.source) not in known], now)


def zone_of_organisation() -> str:
    """Return the name of the time zone of channels whose person has none, and of channels of teams."""
    return Organisation.objects.values_list("time_zone", flat=True).first() or "UTC"


def zone_of_channel(channel: NoticeChannel, otherwise: str) -> zoneinfo.ZoneInfo:
    """Return the time zone of the person, or else the zone ``otherwise``."""
    return zoneinfo.ZoneInfo((channel.user.time_zone if channel.user else "") or otherwise)


def delete_old_messages(before: datetime) -> int:
    """Delete messages that were written before ``before``. Return their number.

    A message that still waits then is one of a channel that is switched off, or of a closed account. At most
    DELETE_BATCH_SIZE messages are deleted.
    """
    old = NoticeMessage.objects.filter(created_at__lt=before)
    ids = list(old.order_by("created_at").values_list("pk", flat=True)[:DELETE_BATCH_SIZE])
    NoticeMessage.objects.filter(pk__in=ids).delete()
    return len(ids)


def _wants(channel: NoticeChannel, kind: str) -> bool:
    return topic_of(kind) in channel.topics


def _items_for_people(
    rows: Iterable[Notification], channels: Iterable[NoticeChannel], now: datetime
) -> list[NoticeMessageItem]:
    by_user: dict[int, list[NoticeChannel]] = defaultdict(list)
    for channel in channels:
        if channel.user is not None and channel.user.is_active:
            by_user[channel.user.pk].append(channel)
    return [
        NoticeMessageItem(
            channel=channel,
            kind=row.kind,
            numbers=row.numbers,
            workload_id=row.workload_id,
            reservation_id=row.reservation_id,
            submission_id=row.submission_id,
            source=row.source,
            at=now,
        )
        for row in rows
        for channel in by_user[row.user_id]
        if _wants(channel, row.kind)
    ]


def _items_for_teams(
    events: Sequence[PendingNotice], channels: Iterable[NoticeChannel], now: datetime
) -> list[NoticeMessageItem]:
    by_team: dict[int, list[NoticeChannel]] = defaultdict(list)
    for channel in channels:
        if channel.team is not None and channel.team.removed_at is None:
            by_team[channel.team.pk].append(channel)
    if not by_team:
        return []
    teams = _teams_of(events)
    return [
        NoticeMessageItem(
            channel=channel,
            kind=event.kind,
            numbers=event.numbers,
            workload_id=event.workload,
            reservation_id=event.reservation,
            submission_id=event.submission,
            source=event.source,
            at=now,
        )
        for event, team in zip(events, teams, strict=True)
        for channel in by_team.get(team or 0, ())
        if _wants(channel, event.kind)
    ]


def _teams_of(events: Sequence[PendingNotice]) -> list[int | None]:
    """Return the team of the workload, reservation or submission of each event; None if it has none."""
    workloads = dict(
        Workload.objects.filter(pk__in={event.workload for event in events if event.workload}).values_list(
            "pk", "project__team_id"
        )
    )
    reservations = dict(
        Reservation.objects.filter(
            pk__in={event.reservation for event in events if event.reservation}
        ).values_list("pk", "project__team_id")
    )
    submissions = dict(
        Submission.objects.filter(
            pk__in={event.submission for event in events if event.submission}
        ).values_list("pk", "team_id")
    )
    return [
        workloads.get(event.workload or 0)
        or reservations.get(event.reservation or 0)
        or submissions.get(event.submission or 0)
        for event in events
    ]


def _add(items: list[NoticeMessageItem], now: datetime) -> int:
    """Write each item into a message of its own, or into the digest that its channel collects."""
    by_channel: dict[int, list[NoticeMessageItem]] = defaultdict(list)
    for item in {(item.channel_id, item.source): item for item in items}.values():
        by_channel[item.channel_id].append(item)
    zone = zone_of_organisation()
    due = {pk: _due_time(group[0].channel, zone, now) for pk, group in by_channel.items()}
    digests = locks.lock_digests([pk for pk, at in due.items() if at > now], now)
    written: list[NoticeMessageItem] = []
    for pk, group in by_channel.items():
        _assign_messages(group, digests.get(pk), due[pk], now)
        written += group
    new_messages = {id(item.message): item.message for item in written if item.message.pk is None}
    NoticeMessage.objects.bulk_create(new_messages.values())
    for item in written:
        item.message_id = item.message.pk
    NoticeMessageItem.objects.bulk_create(written)
    return len(written)


def _due_time(channel: NoticeChannel, zone: str, now: datetime) -> datetime:
    quiet = channel.quiet_from, channel.quiet_until
    return due_time(now, zone_of_channel(channel, zone), channel.digest, *quiet)


def _assign_messages(
    group: Sequence[NoticeMessageItem], digest: NoticeMessage | None, due: datetime, now: datetime
) -> None:
    """Set the message of each item of one channel. New messages are not saved here.

    Items that are not due now, for a digest or after quiet hours, share a message.
    """
    channel = group[0].channel
    shared = digest or NoticeMessage(channel=channel, created_at=now, due_at=due)
    for item in group:
        item.message = shared if due > now else NoticeMessage(channel=channel, created_at=now, due_at=due)
