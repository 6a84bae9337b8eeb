"""Build the text of messages from the items in them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from portal.models import NoticeChannel, NoticeMessage, NoticeMessageItem
from portal.notices.channels.outbox import zone_of_channel
from portal.notices.page_addresses import notice_path
from portal.wording import channel_texts
from portal.wording.notice_texts import notice_sentence
from portal.wording.notice_topics import TOPIC_OF_KIND


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

    pk: int
    message_id: str
    attempts: int
    created_at: datetime
    tried_at: datetime
    channel_pk: int
    kind: str
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


def outgoing_message(message: NoticeMessage, now: datetime) -> OutgoingMessage:
    """Return the message as text, in the time zone of its reader and with the names that it may show."""
    channel = message.channel
    items = message.items.select_related("workload__array", "reservation", "submission").order_by("pk")
    with timezone.override(zone_of_channel(channel)):
        lines = tuple(_line(item, channel) for item in items)
    return OutgoingMessage(
        pk=message.pk,
        message_id=str(message.public_id),
        attempts=message.attempts,
        created_at=message.created_at,
        tried_at=now,
        channel_pk=channel.pk,
        kind=channel.kind,
        address=channel.target.get("address") or (channel.user.email if channel.user else ""),
        secret=channel.target.get("secret", ""),
        subject=channel_texts.subject([line.sentence for line in lines]),
        lines=lines,
        settings_url=_url(reverse("notice-channel", args=[channel.public_id])),
    )


def _line(item: NoticeMessageItem, channel: NoticeChannel) -> MessageLine:
    path = notice_path(item)
    return MessageLine(
        kind=item.kind,
        topic=TOPIC_OF_KIND.get(item.kind, ""),
        sentence=notice_sentence(item.kind, item.numbers, channel.user),
        url=_url(path) if path else "",
        at=item.at,
    )


def _url(path: str) -> str:
    return f"{settings.GPUPOOL_PORTAL_URL}{path}"
