"""Make and use the one-time links with which an operator signs in when no identity provider works."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.db import transaction
from django.urls import reverse

from portal import locks
from portal.models import BreakGlassLink, User
from portal.services import audit
from portal.services.people.sessions import end_sessions_of
from portal.sign_in.client import ClientDetails
from portal.wording.pages.identity_pages import BREAK_GLASS_MINUTES


def new_break_glass_link(user: User, now: datetime, *, remove_second_factor: bool = False) -> str:
    """Return a link with which this operator signs in once, and write the audit record.

    ``remove_second_factor`` is for an operator who lost the second factor and the recovery codes. It also
    ends the operator's sessions. The caller is a person with a shell on the server. A new link ends the
    earlier ones.
    """
    code = secrets.token_urlsafe(32)
    expires_at = now + timedelta(minutes=BREAK_GLASS_MINUTES)
    with transaction.atomic():
        if remove_second_factor:
            Authenticator.objects.filter(user=user).delete()
            end_sessions_of(user, now)
        BreakGlassLink.objects.filter(user=user, used_at=None).delete()
        BreakGlassLink.objects.create(user=user, code_hash=_hash(code), created_at=now, expires_at=expires_at)
        audit.record(
            actor=None,
            via="program",
            now=now,
            verb="create_break_glass_link",
            target=user,
            after={"expires_at": expires_at, "removed_second_factor": remove_second_factor},
        )
    return f"{settings.GPUPOOL_PORTAL_URL}{reverse('break-glass', args=[code])}"


def use_break_glass_link(code: str, client: ClientDetails, now: datetime) -> User | None:
    """Return the operator of a link, which then ends. Return None if the link is not valid."""
    with transaction.atomic():
        link = locks.lock_break_glass_link(_hash(code))
        if link is None or link.used_at is not None or link.expires_at <= now or not is_operator(link.user):
            return None
        BreakGlassLink.objects.filter(pk=link.pk).update(used_at=now)
        audit.record(
            actor=link.user,
            via="web",
            now=now,
            verb="use_break_glass_link",
            target=link.user,
            after={"address": client.address, "agent": client.agent},
        )
    return link.user


def is_operator(user: User) -> bool:
    """Return True if the person is an operator whose account is open."""
    return user.operator and user.is_active and not user.auditor


def operator_names() -> list[str]:
    """Return the user names of the operators whose accounts are open."""
    rows = User.objects.filter(operator=True, is_active=True, auditor=False)
    return list(rows.order_by("username").values_list("username", flat=True))


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "replace")).hexdigest()
