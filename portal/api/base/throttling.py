"""Limit the requests of each user per minute."""

from __future__ import annotations

from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from portal.sign_in.client import client_of


class _UserThrottle(SimpleRateThrottle):
    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        """Return the cache key of the request counter.

        Requests are counted per user, or per network address before the user has signed in.
        """
        ident = str(request.user.pk) if request.user.is_authenticated else client_of(request).network
        return self.cache_format % {"scope": self.scope, "ident": ident}

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Count the request, and return True if it is within the limit.

        Without Redis every request is allowed, because the limit protects only performance.
        """
        try:
            return super().allow_request(request, view)
        except RedisError:
            return True


class ReadThrottle(_UserThrottle):
    """A limit on read requests. It is high, so that scripts may poll."""

    scope, rate = "api-read", "3000/min"

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Allow every write request. Count a read request, and allow it below the limit."""
        return request.method not in ("GET", "HEAD", "OPTIONS") or super().allow_request(request, view)


class WriteThrottle(_UserThrottle):
    """A limit on write requests."""

    scope, rate = "api-write", "600/min"

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Allow every read request. Count a write request, and allow it below the limit."""
        return request.method in ("GET", "HEAD", "OPTIONS") or super().allow_request(request, view)
