"""Before a request that may write: where the server's clock was set, what is being counted goes along first."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from scheduler.coordination import clock_check, clock_correction

GetResponse = Callable[[HttpRequest], HttpResponseBase]
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def check_clock_before_writes(get_response: GetResponse) -> GetResponse:
    """Who is given notice in this request has all of it, counted from a clock that the rows share (scheduler.coordination.clock_correction)."""

    def respond(request: HttpRequest) -> HttpResponseBase:
        if request.method not in SAFE_METHODS and _has_credentials(request):
            clock_correction.correct_clock_step(clock_check.read_clocks())
        return get_response(request)

    return respond


def _has_credentials(request: HttpRequest) -> bool:
    """Whoever brings nothing to be known by changes nothing that is being counted, and costs no query."""
    return settings.SESSION_COOKIE_NAME in request.COOKIES or "Authorization" in request.headers
