"""Find API tokens that end soon, for notices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from portal.models import ApiToken
from portal.notices.pending import PendingNotice

WARNING_DAYS = (14, 3)


def ending_tokens(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice 14 days and 3 days before a token ends. A token that lasts no longer gets none."""
    soon = ApiToken.objects.filter(
        revoked_at=None, expires_at__gt=now, expires_at__lte=now + timedelta(days=max(WARNING_DAYS))
    )
    for token in soon.select_related("user").order_by("pk"):
        due = [
            days for days in WARNING_DAYS if token.created_at < token.expires_at - timedelta(days=days) <= now
        ]
        if due:
            numbers = {
                "name": token.name,
                "account": token.user.username if token.user.is_service_account else "",
                "expires_at": int(token.expires_at.timestamp()),
            }
            yield PendingNotice("token_ends", f"token ends:{token.pk}:{min(due)}", (token.user_id,), numbers)
