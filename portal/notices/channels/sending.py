"""Send the messages that are due, at least once each.

A run claims messages, sends them without a transaction, and records the results. If the process ends in
between, the claim ends after CLAIM_SECONDS, and another run sends the messages again with the same id.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import structlog
from django.db import transaction

from portal import locks
from portal.models import NoticeChannel, NoticeMessage, NoticeMessageState
from portal.notices.channels.attempts import Attempt
from portal.notices.channels.chat_services import send_to_service
from portal.notices.channels.mail import MailSender
from portal.notices.channels.messages import OutgoingMessage, outgoing_message
from portal.notices.channels.schedule import GIVE_UP_AFTER, retry_time
from portal.notices.channels.webhooks import send_webhook

BATCH_SIZE = 40
THREADS = 8
CLAIM_SECONDS = 120
MAX_RUN_SECONDS = 20  # no new message is begun after this time

log = structlog.get_logger(__name__)

# The messages of one route are sent one after the other. If its receiver is not reached, the others wait.
Route = tuple[str, int]
Result = tuple[OutgoingMessage, Attempt | None]


def send_due_messages(clock: Callable[[], datetime]) -> int:
    """Send the messages that are due. Return how many were sent. ``clock`` gives the present time."""
    sent, began = 0, clock()
    while True:
        outgoing = _claim(clock())
        results = _send_all(outgoing)
        sent += _record(results, clock())
        if len(outgoing) < BATCH_SIZE or clock() - began > timedelta(seconds=MAX_RUN_SECONDS):
            return sent


@transaction.atomic
def _claim(now: datetime) -> list[OutgoingMessage]:
    """Claim messages that are due, and return them as text."""
    messages = locks.lock_due_messages(now, BATCH_SIZE)
    until = now + timedelta(seconds=CLAIM_SECONDS)
    NoticeMessage.objects.filter(pk__in=[message.pk for message in messages]).update(claimed_until=until)
    return [outgoing_message(message, now) for message in messages]


def _send_all(outgoing: Sequence[OutgoingMessage]) -> list[Result]:
    routes: dict[Route, list[OutgoingMessage]] = defaultdict(list)
    for message in outgoing:
        is_mail = message.kind == NoticeChannel.Kind.MAIL
        routes[(message.kind, 0 if is_mail else message.channel_pk)].append(message)
    if not routes:
        return []
    with ThreadPoolExecutor(max_workers=min(THREADS, len(routes))) as threads:
        return [result for found in threads.map(_send_route, routes.values()) for result in found]


def _send_route(messages: Sequence[OutgoingMessage]) -> list[Result]:
    """Send the messages of a route. None as a result means that a message was not tried."""
    results: list[Result] = []
    tries, ends_at = True, time.monotonic() + MAX_RUN_SECONDS
    with _sender(messages[0].kind) as send:
        for message in messages:
            attempt = send(message) if tries else None
            tries = attempt is not None and attempt.reached and time.monotonic() < ends_at
            results.append((message, attempt))
    return results


@contextlib.contextmanager
def _sender(kind: str) -> Iterator[Callable[[OutgoingMessage], Attempt]]:
    if kind == NoticeChannel.Kind.WEBHOOK:
        yield send_webhook
    elif kind == NoticeChannel.Kind.SERVICE:
        yield send_to_service
    else:
        sender = MailSender()
        try:
            yield sender.send
        finally:
            sender.close()


def _record(results: Sequence[Result], now: datetime) -> int:
    """Record the results. Return how many messages were sent."""
    for message, attempt in results:
        with transaction.atomic():
            if attempt is None:
                _put_off(message, now)
            elif attempt.sent:
                _record_sent(message, attempt, now)
            else:
                _record_failure(message, attempt, now)
    return sum(attempt is not None and attempt.sent for _, attempt in results)


def _put_off(message: OutgoingMessage, now: datetime) -> None:
    NoticeMessage.objects.filter(pk=message.pk, state=NoticeMessageState.WAITING).update(
        claimed_until=None, due_at=retry_time(now, message.attempts + 1)
    )


def _record_sent(message: OutgoingMessage, attempt: Attempt, now: datetime) -> None:
    NoticeMessage.objects.filter(pk=message.pk, state=NoticeMessageState.WAITING).update(
        state=NoticeMessageState.SENT,
        attempts=message.attempts + 1,
        claimed_until=None,
        sent_at=now,
        answer=attempt.text[:300],
    )
    NoticeChannel.objects.filter(pk=message.channel_pk).update(
        failing_since=None, failure="", last_sent_at=now
    )


def _record_failure(message: OutgoingMessage, attempt: Attempt, now: datetime) -> None:
    """Plan the next attempt, or give up after GIVE_UP_AFTER. A receiver that is gone gets nothing more."""
    attempts = message.attempts + 1
    gives_up = attempt.gone or now - message.created_at >= GIVE_UP_AFTER
    NoticeMessage.objects.filter(pk=message.pk, state=NoticeMessageState.WAITING).update(
        state=NoticeMessageState.FAILED if gives_up else NoticeMessageState.WAITING,
        attempts=attempts,
        claimed_until=None,
        due_at=retry_time(now, attempts),
        answer=attempt.text[:300],
    )
    channel = locks.lock_notice_channel(message.channel_pk)
    if channel is None:
        return
    channel.failing_since, channel.failure = channel.failing_since or now, attempt.text[:300]
    channel.active = channel.active and not attempt.gone
    channel.save(update_fields=["failing_since", "failure", "active"])
    log.warning("notice not sent", channel=str(channel.public_id), attempts=attempts, reason=attempt.text)
