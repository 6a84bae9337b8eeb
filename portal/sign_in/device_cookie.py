"""Remember the browsers in which a person has signed in before.

Wrong passwords from a remembered browser are counted apart from those of other browsers. So strangers who try
passwords cannot lock the person out of this browser. The cookie does not sign anybody in.
"""

from __future__ import annotations

import secrets

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponseBase

from portal.models import User

COOKIE_NAME = "gpupool_device"
COOKIE_SALT = "gpupool.device"
COOKIE_AGE_SECONDS = 180 * 24 * 3600
MAX_PEOPLE = 5  # people of one browser; the cookie forgets the one who signed in first


def remembered_device(request: HttpRequest, user_id: int) -> str:
    """Return the id of the browser if this person has signed in with it before, otherwise an empty text."""
    return _devices(request).get(str(user_id), "")


def remember_device(request: HttpRequest, response: HttpResponseBase, user: User) -> None:
    """Set the cookie that says that this person has signed in with this browser."""
    devices = _devices(request)
    device = devices.pop(str(user.pk), "") or secrets.token_urlsafe(16)
    kept = [*devices.items(), (str(user.pk), device)][-MAX_PEOPLE:]
    response.set_cookie(
        cookie_name(),
        signing.dumps(dict(kept), salt=COOKIE_SALT),
        max_age=COOKIE_AGE_SECONDS,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def cookie_name() -> str:
    """Return the name of the cookie. Over TLS, only this host name may set it."""
    return f"__Host-{COOKIE_NAME}" if settings.SESSION_COOKIE_SECURE else COOKIE_NAME


def _devices(request: HttpRequest) -> dict[str, str]:
    """Return the ids of the browser for the people who have signed in with it, by user id."""
    try:
        found = signing.loads(
            request.COOKIES.get(cookie_name(), ""), salt=COOKIE_SALT, max_age=COOKIE_AGE_SECONDS
        )
    except signing.BadSignature:
        return {}
    return dict(found)
