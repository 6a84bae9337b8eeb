"""Build the text of messages from the items in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from portal.models import NoticeChannel, NoticeMessage, NoticeMessageItem
from portal.notices.channels.outbox import zone_of_channel
from portal.notices.page_addresses import notice_path
from portal.wording.notices import message_texts
from portal.wording.notices.notice_texts import notice_sentence
from portal.wording.notices.reservation_events import calendar_of
from portal.wording.notices.topics import topic_of
from scheduler.models import Reservation
from scheduler.state.states import OPEN_RESERVATION_STATES

# Mails about these notices have the reservation as a file for calendar programs.
CALENDAR_KINDS = ("approved", "approved_changed", "reservation_soon", "reservation_confirmed")


@dataclass(frozen=True)
class MessageLine:
    """A notice as text: its sentence, and the URL of its page ("" if it has none)."""

    kind: str
    topic: str
    sentence: str
    url: str
    at: datetime


@dataclass(frozen=True)
class OutgoingMessage:
    """A message with all that its sender needs, so that sending reads nothing from the database."""

    message_id: str
    created_at: datetime
    tried_at: datetime
    address: str
    secret: str
    subject: str
    lines: tuple[MessageLine, ...]
    settings_url: str
    calendar: bytes | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the body of a webhook. docs/notices.md describes it."""
        return {
            "type": "notices",
            "id": self.message_id,
            "timestamp": self.created_at.isoformat(),
            "data": {
                "notices": [
                    {
                        "kind": line.kind,
                        "topic": line.topic,
                        "text": line.sentence,
                        "url": line.url or None,
                        "at": line.at.isoformat(),
                    }
                    for line in self.lines
                ]
            },
        }


def outgoing_message(message: NoticeMessage, now: datetime, zone: str) -> OutgoingMessage:
    """Return the message as text, in the time zone of its reader and with the names that it may show.

    ``zone`` is the name of the organisation's zone. Raises DecryptionError if no key fits the address.
    """
    channel = message.channel
    items = message.items.select_related(
        "workload__array",
        "reservation__project__team",
        "reservation__pool",
        "submission__reservation__project__team",
        "submission__reservation__pool",
    ).order_by("pk")
    with timezone.override(zone_of_channel(channel, zone)):
        lines = tuple(_line(item, channel) for item in items)
    return OutgoingMessage(
        message_id=str(message.public_id),
        created_at=message.created_at,
        tried_at=now,
        address=channel.target.get("address") or (channel.user.email if channel.user else ""),
        secret=channel.target.get("secret", ""),
        subject=message_texts.subject([line.sentence for line in lines]),
        lines=lines,
        settings_url=_url(reverse("notice-channel", args=[channel.public_id])),
        calendar=_calendar_file(list(items), now) if channel.kind == NoticeChannel.Kind.MAIL else None,
    )


def _calendar_file(items: Sequence[NoticeMessageItem], now: datetime) -> bytes | None:
    """Return a file with the confirmed reservations that the items are about; None if there is none."""
    found: dict[int, Reservation] = {}
    for item in items:
        reservation = item.submission.reservation if item.submission else item.reservation
        wanted = item.kind in CALENDAR_KINDS
        if reservation is not None and wanted and reservation.state in OPEN_RESERVATION_STATES:
            found[reservation.pk] = reservation
    return calendar_of(found.values(), now) if found else None


def _line(item: NoticeMessageItem, channel: NoticeChannel) -> MessageLine:
    path = notice_path(item)
    return MessageLine(
        kind=item.kind,
        topic=topic_of(item.kind),
        sentence=notice_sentence(item.kind, item.numbers, channel.user),
        url=_url(path) if path else "",
        at=item.at,
    )


def _url(path: str) -> str:
    return f"{settings.GPUPOOL_PORTAL_URL}{path}"
