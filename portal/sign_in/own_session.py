"""Keep the session of the person who ends their own other sessions."""

from __future__ import annotations

from django.contrib.auth import SESSION_KEY, update_session_auth_hash
from django.http import HttpRequest

from portal.models import BrowserSession, User


def keep_own_session(request: HttpRequest, user: User) -> None:
    """Keep the session of this request, if it is a session of ``user``, whose sessions have just ended.

    The session gets a new key and the new generation. A request with an API token has no session.
    """
    if str(request.session.get(SESSION_KEY, "")) == str(user.pk) and request.user.pk == user.pk:
        old_key = request.session.session_key
        update_session_auth_hash(request, user)
        BrowserSession.objects.filter(session_key=old_key).update(
            session_key=request.session.session_key, generation=user.session_generation
        )
