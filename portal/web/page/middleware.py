"""Apply the viewer's time zone and theme to each page."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from urllib.parse import unquote

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from portal.models import User
from portal.time_zones import time_zone_names
from portal.web.page.organisation import current_organisation

GetResponse = Callable[[HttpRequest], HttpResponseBase]
THEMES = ("light", "dark")


def viewer_settings_middleware(get_response: GetResponse) -> GetResponse:
    """Return middleware that activates the viewer's time zone and stored theme.

    The time zone is the first that is known: the user's setting, the browser's (cookie ``tz``), or the
    organisation's. The user's stored theme applies until the user chooses another theme in this browser.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        # The API uses UTC.
        if request.path.startswith(("/api/", settings.STATIC_URL, "/healthz", "/readyz")):
            return get_response(request)
        user = request.user
        if isinstance(user, User) and user.theme in THEMES:
            request.COOKIES.setdefault("theme", user.theme)
        with timezone.override(_viewer_time_zone(request)):
            return get_response(request)

    return respond


def _viewer_time_zone(request: HttpRequest) -> zoneinfo.ZoneInfo:
    organisation = current_organisation(request)
    chosen = (
        getattr(request.user, "time_zone", ""),
        unquote(request.COOKIES.get("tz", "")),  # scripts write cookies percent-encoded
        organisation.time_zone if organisation else "",
    )
    for name in chosen:
        # A cookie may hold any text: accept only known names, so that no value is opened as a file path.
        if name and name in time_zone_names():
            return zoneinfo.ZoneInfo(name)
    return zoneinfo.ZoneInfo(settings.TIME_ZONE)
