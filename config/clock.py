"""Before a request that may write: where the server's clock was set, what is being counted goes along first."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from scheduler import moment, wall_clock

GetResponse = Callable[[HttpRequest], HttpResponseBase]
READS = ("GET", "HEAD", "OPTIONS")


def look_before_writing(get_response: GetResponse) -> GetResponse:
    """Who is given notice in this request has all of it, counted from a clock that the rows share (scheduler.wall_clock)."""

    def respond(request: HttpRequest) -> HttpResponseBase:
        if request.method not in READS and _is_somebody(request):
            wall_clock.look(moment.read())
        return get_response(request)

    return respond


def _is_somebody(request: HttpRequest) -> bool:
    """Whoever brings nothing to be known by changes nothing that is being counted, and costs no query."""
    return settings.SESSION_COOKIE_NAME in request.COOKIES or "Authorization" in request.headers
