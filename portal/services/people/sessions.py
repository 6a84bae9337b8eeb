"""End the sessions and the API tokens of a person."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db.models import F

from portal.models import ApiToken, User, WorkspaceSession
from portal.redis_state.access_revocation import publish_rights_changed, publish_sessions_ended
from portal.services.people.api_tokens import revoke_all


def end_sessions_of(user: User, now: datetime) -> int:
    """End all sessions of a user, and return the number of workspace sessions that ended.

    Call this function inside the transaction of the change. Portal sessions, entry codes and workspace
    sessions of older generations are refused from then on, also after a closed account is opened again. The
    edge closes open connections after the commit. ``keep_own_session`` keeps the session of the person who
    acts.
    """
    User.objects.filter(pk=user.pk).update(session_generation=F("session_generation") + 1)
    user.refresh_from_db(fields=["session_generation"])
    ended = WorkspaceSession.objects.filter(user=user, ended_at=None).update(ended_at=now)
    publish_sessions_ended(user.pk)
    return ended


def revoke_tokens_of(user: User, now: datetime, ids: Collection[int] | None = None) -> list[str]:
    """Revoke the API tokens of a user, and return their names. Call it inside the transaction of the change.

    ``ids`` limits the tokens; None means all. Tokens that were revoked before are left out.
    """
    rows = ApiToken.objects.filter(user=user, revoked_at=None)
    if ids is not None:
        rows = rows.filter(pk__in=ids)
    names = list(rows.order_by("created_at", "pk").values_list("name", flat=True))
    if revoke_all(rows, now):
        publish_rights_changed()
    return names
