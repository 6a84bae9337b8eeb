"""Delete expired sessions, one-time codes of workspaces, and old addresses of API tokens."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.sessions.models import Session

from portal.models import BrowserSession, EntryCode, TokenAddress, WorkspaceSession
from portal.services.people.sign_ins import TOKEN_ADDRESS_KEPT


def delete_expired_sessions(now: datetime) -> int:
    """Delete the rows of expired sessions, one-time codes and old addresses, and return their number.

    A repeated call does no harm.
    """
    oldest = now - timedelta(seconds=settings.SESSION_COOKIE_AGE)
    expired = (
        EntryCode.objects.filter(expires_at__lt=now),
        WorkspaceSession.objects.filter(created_at__lt=oldest),
        Session.objects.filter(expire_date__lt=now),
        BrowserSession.objects.filter(signed_in_at__lt=oldest, last_used_at__lt=oldest),
        TokenAddress.objects.filter(last_used_at__lt=now - TOKEN_ADDRESS_KEPT),
    )
    return sum(rows.delete()[0] for rows in expired)
