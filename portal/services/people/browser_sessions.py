"""Keep the list of the browser sessions of each person, and end one session or all others."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest

from portal import policy
from portal.errors import ObjectNotFound
from portal.models import BrowserSession, User
from portal.redis_state.access_revocation import publish_session_ended
from portal.services import audit
from portal.services.people.sessions import end_sessions_of, revoke_tokens_of
from portal.sign_in.client import ClientDetails

# The marker is in the session data. Sessions without it are not on the list.
MARKER = "gpupool_listed"
LAST_USE_UPDATE = timedelta(minutes=5)
MAX_RECENT_USES = 10_000

_recent_uses: dict[str, float] = {}  # until when the last use of a session needs no update


def list_session(
    *, request: HttpRequest, user: User, client: ClientDetails, method: str, now: datetime
) -> None:
    """Add the session of this request, which has just begun, to the person's list."""
    request.session[MARKER] = True
    if request.session.session_key is None:
        request.session.save()
    details = {"address": client.address, "agent": client.agent, "method": method[:200]}
    BrowserSession.objects.update_or_create(
        session_key=request.session.session_key,
        defaults={
            "user": user,
            "generation": user.session_generation,
            "signed_in_at": now,
            "last_used_at": now,
            **details,
        },
    )


def record_use(request: HttpRequest, client: ClientDetails, now: datetime) -> None:
    """Record the time and the address of the last use of the session, at most every 5 minutes."""
    key, clock = request.session.session_key or "", time.monotonic()
    if _recent_uses.get(key, 0.0) > clock or MARKER not in request.session:
        return
    BrowserSession.objects.filter(session_key=key).update(last_used_at=now, address=client.address)
    if len(_recent_uses) >= MAX_RECENT_USES:
        _recent_uses.clear()
    _recent_uses[key] = clock + LAST_USE_UPDATE.total_seconds()


def end_own_session(*, actor: User, session: BrowserSession, now: datetime, via: str = "web") -> None:
    """End one browser session of the actor, with its notebooks and live pages. Raises NotAllowed.

    Raises ObjectNotFound for the session of another person.
    """
    policy.require(actor, "own.change")
    if session.user_id != actor.pk:
        raise ObjectNotFound("id", str(session.pk), "the id of one of your sessions")
    with transaction.atomic():
        Session.objects.filter(session_key=session.session_key).delete()
        ended = {"address": session.address, "agent": session.agent, "signed_in_at": session.signed_in_at}
        session.delete()
        audit.record(actor=actor, via=via, now=now, verb="end_own_session", target=actor, before=ended)
        key = session.session_key
        transaction.on_commit(lambda: publish_session_ended(key), robust=True)


def end_own_sessions(
    *, actor: User, now: datetime, revoke_tokens: bool = False, via: str = "web"
) -> list[str]:
    """End all browser sessions of the actor, and return the names of the revoked API tokens.

    ``keep_own_session`` keeps the session of the browser that asks. With ``revoke_tokens``, all API tokens
    are revoked, too. Raises NotAllowed.
    """
    policy.require(actor, "own.change")
    with transaction.atomic():
        end_sessions_of(actor, now)
        revoked = revoke_tokens_of(actor, now) if revoke_tokens else []
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="end_own_sessions",
            target=actor,
            after={"revoked_tokens": revoked},
        )
    return revoked
