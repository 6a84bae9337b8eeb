"""Create, change, test and remove notice channels, and send messages of theirs again."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime, time
from typing import Any

from django.db import transaction

from portal import locks, policy
from portal.input_checks import InputChecks
from portal.models import NoticeChannel, NoticeMessage, NoticeMessageItem, NoticeMessageState, User
from portal.services import audit
from portal.services.people.notice_channels.addresses import checked_address, shown_address
from portal.wording.notices.topics import TOPIC_LABELS
from portal.wording.problems import channel_problems
from scheduler.core.rejection import OperationRejected
from scheduler.models import Team
from scheduler.models.encrypted_fields import DecryptionError

MAX_CHANNELS = 20  # of one person or one team
SECRET_PREFIX = "whsec_"  # of https://www.standardwebhooks.com
SECRET_BYTES = 32
AUDITED = (
    "name",
    "kind",
    "shown_address",
    "topics",
    "digest",
    "quiet_from",
    "quiet_until",
    "active",
)


def create_channel(
    *,
    actor: User,
    now: datetime,
    name: str,
    kind: str,
    topics: Sequence[str],
    team: Team | None = None,
    address: str = "",
    digest: str = NoticeChannel.Digest.NONE,
    quiet_from: time | None = None,
    quiet_until: time | None = None,
    via: str = "web",
) -> tuple[NoticeChannel, str]:
    """Create a channel of the actor, or of a team. Return it with the secret of a webhook, otherwise "".

    Raises Invalid, NotAllowed. Raises OperationRejected if the owner has MAX_CHANNELS channels.
    """
    _require(actor, team)
    checks = InputChecks()
    values: dict[str, Any] = {
        "name": checks.text("name", name),
        "kind": checks.choice("kind", kind, NoticeChannel.Kind.values),
        "topics": _checked_topics(checks, topics),
        "digest": checks.choice("digest", digest, NoticeChannel.Digest.values),
        **_checked_quiet_hours(checks, quiet_from, quiet_until),
    }
    address = _checked_address(checks, values["kind"], address, actor, team)
    checks.done()
    secret = ""
    if kind == NoticeChannel.Kind.WEBHOOK:
        secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    with transaction.atomic():
        # The lock of the owner keeps two requests from exceeding the limit together.
        locks.lock_channel_owner(None if team else actor, team)
        owned = NoticeChannel.objects.filter(user=None if team else actor, team=team)
        if owned.count() >= MAX_CHANNELS:
            raise OperationRejected("too_many_channels", {"limit": MAX_CHANNELS})
        channel = NoticeChannel.objects.create(
            user=None if team else actor,
            team=team,
            created_by=actor,
            target={"address": address, "secret": secret},
            shown_address=shown_address(kind, address or actor.email),
            created_at=now,
            **values,
        )
        _record(actor, via, now, "create_notice_channel", channel, after=_audited(channel))
    return channel, secret


def change_channel(
    *, actor: User, channel: NoticeChannel, now: datetime, via: str = "web", **given: Any
) -> NoticeChannel:
    """Change the given fields of a channel: name, address, topics, digest, quiet_from, quiet_until, active.

    Raises Invalid, NotAllowed.
    """
    _require(actor, channel.team, channel)
    changes = _checked_changes(channel, given)
    with transaction.atomic():
        kept = locks.lock_notice_channel(channel.pk)
        if kept is None:
            raise OperationRejected("channel_is_gone", {"name": channel.name})
        before = _audited(kept)
        for field, value in changes.items():
            setattr(kept, field, value)
        if changes.get("active"):
            kept.failing_since, kept.failure = None, ""
        kept.save()
        if before != _audited(kept) or "target" in changes:
            _record(actor, via, now, "change_notice_channel", kept, before=before, after=_audited(kept))
    return kept


def _checked_changes(channel: NoticeChannel, given: dict[str, Any]) -> dict[str, Any]:
    """Return the new values of the fields that are given. Raises Invalid."""
    checks = InputChecks()
    check: dict[str, Callable[[str, Any], Any]] = {
        "name": checks.text,
        "topics": lambda field, value: _checked_topics(checks, value),
        "digest": lambda field, value: checks.choice(field, value, NoticeChannel.Digest.values),
        "active": checks.flag,
    }
    changes = {field: check[field](field, given[field]) for field in check if field in given}
    if "quiet_from" in given or "quiet_until" in given:
        begin = given.get("quiet_from", channel.quiet_from)
        end = given.get("quiet_until", channel.quiet_until)
        changes |= _checked_quiet_hours(checks, begin, end)
    if given.get("address"):
        address = _checked_address(checks, channel.kind, given["address"], channel.user, channel.team)
        if address:
            changes["target"] = {**_target(channel), "address": address}
            changes["shown_address"] = shown_address(channel.kind, address)
    checks.done()
    return changes


def _target(channel: NoticeChannel) -> dict[str, str]:
    """Return the address and the secret of a channel. Raises OperationRejected if no key fits."""
    try:
        return dict(channel.target)
    except DecryptionError:
        raise OperationRejected("channel_is_unreadable", {"name": channel.name}) from None


def remove_channel(*, actor: User, channel: NoticeChannel, now: datetime, via: str = "web") -> None:
    """Remove a channel, the messages in its outbox and its delivery log. Raises NotAllowed."""
    _require(actor, channel.team, channel)
    with transaction.atomic():
        before = _audited(channel)
        _record(actor, via, now, "remove_notice_channel", channel, before=before)
        NoticeChannel.objects.defer("target").filter(pk=channel.pk).delete()


def test_channel(*, actor: User, channel: NoticeChannel, now: datetime, via: str = "web") -> NoticeMessage:
    """Put a test message into the outbox of a channel. It is due at once. Raises NotAllowed."""
    _require(actor, channel.team, channel)
    with transaction.atomic():
        message = NoticeMessage.objects.create(channel=channel, created_at=now, due_at=now)
        NoticeMessageItem.objects.create(
            message=message,
            channel=channel,
            kind="channel_test",
            numbers={"by": actor.get_username(), "name": channel.name},
            source=f"test:{message.public_id}",
            at=now,
        )
        _record(actor, via, now, "test_notice_channel", channel)
    return message


def send_again(*, actor: User, message: NoticeMessage, now: datetime, via: str = "web") -> NoticeMessage:
    """Make a message due again that was sent or has failed. It keeps its id, so receivers know it.

    Raises NotAllowed. Raises OperationRejected if the message still waits.
    """
    channel = message.channel
    _require(actor, channel.team, channel)
    with transaction.atomic():
        changed = (
            NoticeMessage.objects.filter(pk=message.pk)
            .exclude(state=NoticeMessageState.WAITING)
            .update(
                state=NoticeMessageState.WAITING,
                due_at=now,
                claimed_until=None,
                attempts=0,
                sent_at=None,
            )
        )
        if not changed:
            raise OperationRejected("message_waits", {"due_at": int(message.due_at.timestamp())})
        _record(
            actor,
            via,
            now,
            "send_notice_again",
            channel,
            after={"message": str(message.public_id)},
        )
    message.refresh_from_db()
    return message


def encrypt_targets_again() -> int:
    """Encrypt the addresses of all channels with the first key, and return their number.

    Raises DecryptionError.
    """
    count = 0
    for pk in NoticeChannel.objects.order_by("pk").values_list("pk", flat=True):
        with transaction.atomic():
            channel = locks.lock_notice_channel(pk)
            if channel is not None:
                channel.save(update_fields=["target"])
                count += 1
    return count


def _require(actor: User, team: Team | None, channel: NoticeChannel | None = None) -> None:
    if channel is not None:
        policy.require(actor, "notice_channel.change", channel)
    elif team is not None:
        policy.require(actor, "notice_channel.create", team)
    else:
        policy.require(actor, "own.change")


def _checked_address(
    checks: InputChecks, kind: str, address: str, person: User | None, team: Team | None
) -> str:
    account_address = None if team is not None or person is None else person.email
    return checked_address(checks, kind, address, account_address)


def _checked_topics(checks: InputChecks, topics: Sequence[str]) -> list[str]:
    chosen = checks.choices("topics", topics, TOPIC_LABELS)
    if not chosen and "topics" not in checks.problems:
        allowed = ", ".join(TOPIC_LABELS)
        checks.note("topics", None, channel_problems.TOPICS_EMPTY.format(allowed=allowed))
    return [topic for topic in TOPIC_LABELS if topic in chosen]


def _checked_quiet_hours(checks: InputChecks, begin: time | None, end: time | None) -> dict[str, time | None]:
    if (begin is None) != (end is None) or (begin is not None and begin == end):
        checks.note("quiet_until", None, channel_problems.QUIET_HOURS_INCOMPLETE)
    return {"quiet_from": begin, "quiet_until": end}


def _audited(channel: NoticeChannel) -> dict[str, Any]:
    return {
        **audit.audited_fields(channel, *AUDITED),
        "team": channel.team.slug if channel.team else None,
        "user": channel.user.username if channel.user else None,
    }


def _record(actor: User, via: str, now: datetime, verb: str, channel: NoticeChannel, **values: Any) -> None:
    audit.record(actor=actor, via=via, now=now, verb=verb, target=channel, team_id=channel.team_id, **values)
