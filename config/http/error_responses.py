"""Answer failed requests with a page, or with JSON in the API.

The status is 503 if the database or Valkey is unavailable.
"""

from __future__ import annotations

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import loader
from django.views.defaults import page_not_found
from psycopg_pool import PoolTimeout
from redis.exceptions import RedisError

# Errors while PostgreSQL or Valkey is down. The supervisor restarts both in seconds, so a retry helps.
STORE_UNAVAILABLE_ERRORS = (OperationalError, InterfaceError, PoolTimeout, RedisError)
RETRY_AFTER_SECONDS = 5
SERVER_ERROR_MESSAGE = (
    "Something failed on our side; nothing is left half-written. "
    "Try again; if it fails again, tell an operator the time."
)
STORE_UNAVAILABLE_MESSAGE = (
    "The portal's database is not available; nothing is left half-written. Try again in some seconds."
)


NOT_FOUND_MESSAGE = "There is no such address, or its object does not exist."


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return the answer with status 404: JSON in the API, otherwise a page."""
    if request.path.startswith("/api/"):
        return JsonResponse(
            {"errors": [{"field": "", "value": None, "message": NOT_FOUND_MESSAGE}]}, status=404
        )
    return page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Return the answer to a request that raised an unexpected exception.

    The function uses neither the database nor Valkey, because one of them may have failed.
    """
    is_unavailable = isinstance(sys.exception(), STORE_UNAVAILABLE_ERRORS)
    status = 503 if is_unavailable else 500
    response: HttpResponse
    if request.path.startswith("/api/"):
        message = STORE_UNAVAILABLE_MESSAGE if is_unavailable else SERVER_ERROR_MESSAGE
        response = JsonResponse({"errors": [{"field": "", "value": None, "message": message}]}, status=status)
    else:
        response = HttpResponse(loader.get_template(f"{status}.html").render(), status=status)
    if is_unavailable:
        response["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response
