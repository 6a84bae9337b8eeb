"""Correct stored times after a jump of the server's clock, before a request that may write."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from scheduler.coordination import clock_check, clock_correction

GetResponse = Callable[[HttpRequest], HttpResponseBase]
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def check_clock_before_writes(get_response: GetResponse) -> GetResponse:
    """Correct stored times before each authenticated request that may write.

    If the clock has jumped, stored deadlines are shifted first. New deadlines that the request writes then
    use the same clock as the stored ones (see scheduler.coordination.clock_correction).
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        if request.method not in SAFE_METHODS and _has_credentials(request):
            clock_correction.correct_clock_step(clock_check.read_clocks())
        return get_response(request)

    return respond


def _has_credentials(request: HttpRequest) -> bool:
    """Return True if the request has a session cookie or an Authorization header.

    Requests without them change no deadline, so the clock need not be checked for them.
    """
    return settings.SESSION_COOKIE_NAME in request.COOKIES or "Authorization" in request.headers
