"""Correct stored times after a change of the server's clock, before a request that may write."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from scheduler.coordination import clock_check, clock_correction

GetResponse = Callable[[HttpRequest], HttpResponseBase]
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def check_clock_before_writes(get_response: GetResponse) -> GetResponse:
    """Correct a clock step before each authenticated request that may write.

    Deadlines that the request writes then use the same clock as the stored rows (see
    scheduler.coordination.clock_correction).
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        if request.method not in SAFE_METHODS and _has_credentials(request):
            clock_correction.correct_clock_step(clock_check.read_clocks())
        return get_response(request)

    return respond


def _has_credentials(request: HttpRequest) -> bool:
    """Return True if the request is authenticated. Other requests change no deadline and need no query."""
    return settings.SESSION_COOKIE_NAME in request.COOKIES or "Authorization" in request.headers
