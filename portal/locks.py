"""Lock rows of the portal.

To avoid deadlocks, take these locks before any lock of ``scheduler.coordination.locks``. Hold them for one
short transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from datetime import datetime

from django.db import connection
from django.db.models import Q

from portal.models import (
    ApiToken,
    AuditProgress,
    BreakGlassLink,
    NoticeChannel,
    NoticeMessage,
    NoticeMessageState,
    Organisation,
    User,
)
from scheduler.models import Pool, Team
from telemetry.models import CostCentre, HealthRule, Retention, UnusualSpend


def lock_organisation() -> Organisation | None:
    """Lock and return the row of the organisation. Call it inside a transaction.

    The lock prevents concurrent changes of the operators.
    """
    return Organisation.objects.select_for_update(no_key=True).filter(pk=1).first()


def lock_audit_progress() -> AuditProgress:
    """Lock and return the row of the chain of audit seals. Call it inside a transaction.

    The lock keeps two processes from making the same seal.
    """
    return AuditProgress.objects.select_for_update(no_key=True).get_or_create(pk=1)[0]


def lock_break_glass_link(code_hash: str) -> BreakGlassLink | None:
    """Lock and return the link with this hash; None if there is none. Call it inside a transaction.

    The lock keeps a link from being used twice.
    """
    rows = BreakGlassLink.objects.select_for_update(of=("self",)).select_related("user")
    return rows.filter(code_hash=code_hash).first()


def lock_health_rule(code: str) -> HealthRule | None:
    """Lock and return the rule of an event code; None if it has no rule. Call it inside a transaction."""
    return HealthRule.objects.select_for_update(no_key=True).filter(code=code).first()


def lock_alert_rules(pool: Pool) -> None:
    """Wait for concurrent changes of the alert rules of a pool. Call it inside a transaction.

    The lock keeps two changes of different fields of a rule from undoing each other.
    """
    Pool.objects.select_for_update(no_key=True).filter(pk=pool.pk).first()


def lock_retention() -> Retention:
    """Lock and return the row of the retention of samples. Call it inside a transaction.

    The lock keeps two changes of different fields from undoing each other.
    """
    return Retention.objects.select_for_update(no_key=True).get_or_create(pk=1)[0]


def lock_cost_centres(codes: Collection[str]) -> dict[str, CostCentre]:
    """Lock and return the entries of these cost centres, by code. Call it inside a transaction.

    The lock keeps a cost centre from being retired while a new split names it.
    """
    rows = CostCentre.objects.select_for_update(no_key=True).filter(code__in=codes).order_by("code")
    return {row.code: row for row in rows}


def lock_statement_state(pk: int) -> str:
    """Return the state of a statement and keep it until the commit. Call it inside a transaction.

    The lock waits for a close in progress, and keeps out a later one. Charging, which also shares this lock,
    goes on.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM telemetry_statement WHERE id = %s FOR SHARE", [pk])
        return str(cursor.fetchone()[0])


def try_lock_request(user: int, key_hash: str) -> bool:
    """Lock an idempotency key of a user until the commit. Return False if another transaction has the lock.

    Call it inside a transaction. Keys share a lock only if 64 bits of their hashes are equal.
    """
    name = hashlib.sha256(f"request {user} {key_hash}".encode()).digest()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [int.from_bytes(name[:8], "big", signed=True)])
        return bool(cursor.fetchone()[0])


def lock_token(pk: int) -> ApiToken | None:
    """Lock and return a token. Call it inside a transaction.

    The lock keeps a token from being revoked while it creates another token.
    """
    return ApiToken.objects.select_for_update(no_key=True).filter(pk=pk).first()


def lock_unusual_spend(ids: Collection[int]) -> dict[int, UnusualSpend]:
    """Lock and return the unusual spend that still exists, by id. Call it inside a transaction.

    The lock keeps a search from deleting spend that a person explains.
    """
    rows = UnusualSpend.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk")
    return {row.pk: row for row in rows}


def lock_due_messages(now: datetime, most: int) -> list[NoticeMessage]:
    """Lock and return messages that are due and that no process sends. Call it inside a transaction.

    Rows that another process has locked are left out, and those of closed accounts and removed teams.
    """
    rows = NoticeMessage.objects.select_for_update(skip_locked=True, of=("self",)).filter(
        Q(claimed_until=None) | Q(claimed_until__lt=now),
        Q(channel__user__is_active=True) | Q(channel__team__isnull=False, channel__team__removed_at=None),
        state=NoticeMessageState.WAITING,
        due_at__lte=now,
        channel__active=True,
    )
    rows = rows.select_related("channel__user", "channel__team").defer("channel__target")
    return list(rows.order_by("due_at", "pk")[:most])


def lock_digests(channels: Collection[int], now: datetime) -> dict[int, NoticeMessage]:
    """Lock and return the digests that these channels collect, by channel. Call it inside a transaction.

    The lock keeps a digest from being sent while an item is added.
    """
    rows = NoticeMessage.objects.select_for_update(no_key=True).filter(
        channel__in=channels,
        state=NoticeMessageState.WAITING,
        attempts=0,
        claimed_until=None,
        due_at__gt=now,
    )
    return {row.channel_id: row for row in rows.order_by("due_at", "pk")}


def lock_notice_channel(pk: int) -> NoticeChannel | None:
    """Lock and return a channel; None if it was removed meanwhile. Call it inside a transaction.

    The lock keeps two changes of different fields from undoing each other.
    """
    rows = NoticeChannel.objects.select_for_update(no_key=True).defer("target")
    return rows.filter(pk=pk).first()


def lock_channel_owner(person: User | None, team: Team | None) -> None:
    """Wait for concurrent changes of the channels of a person or of a team. Call it inside a transaction."""
    if team is not None:
        Team.objects.select_for_update(no_key=True).filter(pk=team.pk).first()
    elif person is not None:
        User.objects.select_for_update(no_key=True).filter(pk=person.pk).first()
