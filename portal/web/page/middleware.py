"""Apply a time zone to each page and each answer of the API, and the viewer's theme to each page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from portal.models import User
from portal.time_zones import known_zone
from portal.web.page.time_zone import zone_of_page

GetResponse = Callable[[HttpRequest], HttpResponseBase]
THEMES = ("light", "dark")


def viewer_settings_middleware(get_response: GetResponse) -> GetResponse:
    """Return middleware that activates the page's time zone and the viewer's stored theme.

    The user's stored theme applies until the user chooses another theme in this browser. The API uses the
    zone that the header ``Time-Zone`` names, otherwise UTC.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith("/api/"):
            with timezone.override(known_zone(request.headers.get("Time-Zone", "")) or UTC):
                return get_response(request)
        if request.path.startswith((settings.STATIC_URL, "/healthz", "/readyz")):
            return get_response(request)
        user = request.user
        if isinstance(user, User) and user.theme in THEMES:
            request.COOKIES.setdefault("theme", user.theme)
        request.page_zone = zone_of_page(request)  # type: ignore[attr-defined]
        with timezone.override(request.page_zone.zone):  # type: ignore[attr-defined]
            return get_response(request)

    return respond
