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
from portal.notices.channels.outbox import zone_of_organisation
from portal.notices.channels.schedule import GIVE_UP_AFTER, retry_time
from portal.notices.channels.webhooks import send_webhook
from portal.wording.notices.message_texts import ADDRESS_UNREADABLE
from scheduler.models.encrypted_fields import DecryptionError

BATCH_SIZE = 40
THREADS = 8
CLAIM_SECONDS = 120
MAX_RUN_SECONDS = 20  # no new message is begun after this time

log = structlog.get_logger(__name__)

# The messages of one route are sent one after the other. If its receiver is not reached, the others wait.
Route = tuple[str, int]
Sender = Callable[[OutgoingMessage], Attempt]
Built = tuple[NoticeMessage, OutgoingMessage]
Result = tuple[NoticeMessage, Attempt | None]


def send_due_messages(clock: Callable[[], datetime]) -> int:
    """Send the messages that are due. Return how many were sent. ``clock`` gives the present time."""
    sent, began = 0, clock()
    while True:
        messages = _claim(clock())
        built, failures = _build(messages, clock())
        sent += _record([*failures, *_send_all(built)], clock())
        if len(messages) < BATCH_SIZE or clock() - began > timedelta(seconds=MAX_RUN_SECONDS):
            return sent


@transaction.atomic
def _claim(now: datetime) -> list[NoticeMessage]:
    """Claim messages that are due."""
    messages = locks.lock_due_messages(now, BATCH_SIZE)
    until = now + timedelta(seconds=CLAIM_SECONDS)
    NoticeMessage.objects.filter(pk__in=[message.pk for message in messages]).update(claimed_until=until)
    return messages


def _build(messages: Sequence[NoticeMessage], now: datetime) -> tuple[list[Built], list[Result]]:
    """Return the messages as text, and the failures of those that could not be built."""
    zone = zone_of_organisation()
    built: list[Built] = []
    failures: list[Result] = []
    for message in messages:
        try:
            built.append((message, outgoing_message(message, now, zone)))
        except DecryptionError:
            failures.append((message, Attempt(False, ADDRESS_UNREADABLE)))
    return built, failures


def _send_all(built: Sequence[Built]) -> list[Result]:
    routes: dict[Route, list[Built]] = defaultdict(list)
    for message, outgoing in built:
        kind = message.channel.kind
        routes[(kind, 0 if kind == NoticeChannel.Kind.MAIL else message.channel_id)].append(
            (message, outgoing)
        )
    if not routes:
        return []
    with ThreadPoolExecutor(max_workers=min(THREADS, len(routes))) as threads:
        return [result for found in threads.map(_send_route, routes.items()) for result in found]


def _send_route(given: tuple[Route, Sequence[Built]]) -> list[Result]:
    """Send the messages of a route. None as a result means that a message was not tried."""
    (kind, _), built = given
    results: list[Result] = []
    tries, ends_at = True, time.monotonic() + MAX_RUN_SECONDS
    with _sender(kind) as send:
        for message, outgoing in built:
            attempt = _attempt(send, outgoing) if tries else None
            tries = attempt is not None and attempt.reached and time.monotonic() < ends_at
            results.append((message, attempt))
    return results


def _attempt(send: Sender, outgoing: OutgoingMessage) -> Attempt:
    """Send a message. An error of the sender is its result, so that it does not hold up other messages."""
    try:
        return send(outgoing)
    except Exception as error:
        log.exception("a sender of notices failed", message=outgoing.message_id)
        return Attempt(False, f"the message could not be sent: {type(error).__name__}")


@contextlib.contextmanager
def _sender(kind: str) -> Iterator[Sender]:
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


def _put_off(message: NoticeMessage, now: datetime) -> None:
    NoticeMessage.objects.filter(pk=message.pk, state=NoticeMessageState.WAITING).update(
        claimed_until=None, due_at=retry_time(now, message.attempts + 1)
    )


def _record_sent(message: NoticeMessage, attempt: Attempt, now: datetime) -> None:
    NoticeMessage.objects.filter(pk=message.pk, state=NoticeMessageState.WAITING).update(
        state=NoticeMessageState.SENT,
        attempts=message.attempts + 1,
        claimed_until=None,
        sent_at=now,
        answer=attempt.text[:300],
    )
    NoticeChannel.objects.filter(pk=message.channel_id).update(
        failing_since=None, failure="", last_sent_at=now
    )


def _record_failure(message: NoticeMessage, attempt: Attempt, now: datetime) -> None:
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
    channel = locks.lock_notice_channel(message.channel_id)
    if channel is None:
        return
    channel.failing_since, channel.failure = channel.failing_since or now, attempt.text[:300]
    channel.active = channel.active and not attempt.gone
    channel.save(update_fields=["failing_since", "failure", "active"])
    log.warning("notice not sent", channel=str(channel.public_id), attempts=attempts, reason=attempt.text)
