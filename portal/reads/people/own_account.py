"""Read the own account: browser sessions, second factors and sign-ins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from allauth.mfa.models import Authenticator
from django.contrib.sessions.models import Session
from django.db.models import Exists, OuterRef, QuerySet

from portal.models import AuditEvent, BrowserSession, User
from portal.reads.people.accounts import RECENT_SIGN_INS, SIGN_IN_VERBS


@dataclass(frozen=True)
class SecondFactor:
    """A second factor. ``codes_left`` is the number of unused recovery codes; None for other kinds."""

    id: int
    kind: str
    name: str
    created_at: datetime
    last_used_at: datetime | None
    codes_left: int | None = None


def own_sessions(user: User, now: datetime) -> QuerySet[BrowserSession]:
    """Return the browser sessions of a person that are still valid, the latest used first."""
    valid = Session.objects.filter(session_key=OuterRef("session_key"), expire_date__gt=now)
    rows = BrowserSession.objects.filter(Exists(valid), user=user, generation=user.session_generation)
    return rows.order_by("-last_used_at", "-pk")


def own_second_factors(user: User) -> list[SecondFactor]:
    """Return the second factors of a person: the authenticator app, passkeys, then recovery codes."""
    order = [Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN, Authenticator.Type.RECOVERY_CODES]
    rows = Authenticator.objects.filter(user=user, type__in=order).order_by("pk")
    return [_second_factor(row) for row in sorted(rows, key=lambda row: order.index(row.type))]


def _second_factor(row: Authenticator) -> SecondFactor:
    wrapped = row.wrap()
    is_codes = row.type == Authenticator.Type.RECOVERY_CODES
    return SecondFactor(
        row.pk,
        row.type,
        wrapped.name if row.type == Authenticator.Type.WEBAUTHN else "",
        row.created_at,
        row.last_used_at,
        len(wrapped.get_unused_codes()) if is_codes else None,
    )


def own_sign_ins(user: User) -> list[AuditEvent]:
    """Return the latest events of signing in to the person's own account, newest first."""
    rows = AuditEvent.objects.filter(target=f"user:{user.pk}", verb__in=SIGN_IN_VERBS)
    return list(rows.order_by("-at", "-pk")[:RECENT_SIGN_INS])
