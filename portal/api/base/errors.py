"""Render every error response of the API in one JSON format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404
from rest_framework import serializers, status
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.base.fields import JsonObject, public_numbers
from portal.errors import FreshProofRequired, Invalid, ObjectNotFound, PlannerBudgetExceeded, ServiceError
from portal.input_checks import display_value
from portal.wording.pages import api_answers
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected

# If a field's message starts with this prefix, the handler puts "FIELD is VALUE; " in front of it.
ALLOWED_PREFIX = "allowed: "


class ErrorSerializer(serializers.Serializer[Any]):
    field = serializers.CharField(help_text="The field; empty: the whole request.")
    value = serializers.JSONField(allow_null=True, help_text="The given value, shortened.")
    message = serializers.CharField(help_text="The problem, and the allowed values.")


class WindowSerializer(serializers.Serializer[Any]):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()


class ErrorsSerializer(serializers.Serializer[Any]):
    """The body of every error response."""

    errors = ErrorSerializer(many=True)  # type: ignore[assignment]
    code = serializers.CharField(
        required=False, help_text="The reason, if the present state does not allow the request."
    )
    numbers = serializers.DictField(
        child=serializers.JSONField(), required=False, help_text="The numbers of ``code``."
    )
    windows = WindowSerializer(many=True, required=False, help_text="Windows that would fit instead.")


def error_entry(message: str, field: str = "", value: Any = None) -> JsonObject:
    """Return one entry of ``errors``. Characters that UTF-8 cannot encode are escaped."""
    value = _encodable(value) if isinstance(value, str) else value
    return {"field": _encodable(field), "value": value, "message": _encodable(message)}


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def api_exception_handler(problem: Exception, context: Mapping[str, Any]) -> Response | None:
    """Return the error response for an exception that refuses a request.

    Return None for any other exception; Django then answers with status 500.
    """
    if isinstance(problem, ServiceError):
        again = {"Retry-After": str(problem.wait)} if isinstance(problem, PlannerBudgetExceeded) else None
        return Response(_service_error_body(problem), status=problem.status, headers=again)
    if isinstance(problem, FreshProofRequired):
        body = {"errors": [error_entry(str(problem))], "code": problem.code}
        return Response(body | {"numbers": {"minutes": problem.minutes}}, status=status.HTTP_403_FORBIDDEN)
    if isinstance(problem, OperationRejected):
        return Response(_rejection_body(problem), status=status.HTTP_409_CONFLICT)
    if isinstance(problem, Http404):
        return Response({"errors": [error_entry(api_answers.NOT_FOUND)]}, status=404)
    if isinstance(problem, RequestDataTooBig):
        return api_exception_handler(BodyTooLargeError(), context)
    if isinstance(problem, PermissionDenied):
        return Response({"errors": [error_entry(api_answers.NOT_ALLOWED)]}, status=403)
    if isinstance(problem, ValidationError):
        request = context.get("request")
        given = _request_values(request) if isinstance(request, Request) else {}
        return Response({"errors": list(_flatten_errors(problem.detail, given))}, status=400)
    if isinstance(problem, APIException):
        headers = {}
        if getattr(problem, "auth_header", None):
            headers["WWW-Authenticate"] = problem.auth_header  # type: ignore[attr-defined]
        if getattr(problem, "wait", None):
            headers["Retry-After"] = f"{problem.wait:.0f}"  # type: ignore[attr-defined]
        return Response(
            {"errors": [error_entry(str(problem.detail))]}, status=problem.status_code, headers=headers
        )
    return None


def _service_error_body(problem: ServiceError) -> JsonObject:
    if isinstance(problem, Invalid):
        return {
            "errors": [
                error_entry(message, name, problem.values.get(name))
                for name, message in problem.fields.items()
            ]
        }
    if isinstance(problem, ObjectNotFound):
        return {"errors": [error_entry(problem.message, problem.field, problem.value)]}
    return {"errors": [error_entry(problem.message)]}


def _rejection_body(problem: OperationRejected) -> JsonObject:
    body: JsonObject = {
        "errors": [error_entry(refusal_sentence(problem), problem.field)],
        "code": problem.code,
        "numbers": public_numbers(problem.numbers),
    }
    if problem.windows:
        body["windows"] = [{"start": start, "end": end} for start, end in problem.windows]
    return body


def _request_values(request: Request) -> Mapping[str, Any]:
    given = request.query_params if request.method == "GET" else request.data
    return given if isinstance(given, Mapping) else {}


def _flatten_errors(detail: Any, given: Any, name: str = "") -> Iterable[JsonObject]:
    if isinstance(detail, Mapping):
        for key, inner in detail.items():
            field = "" if key == "non_field_errors" else str(key)
            value = given.get(key) if isinstance(given, Mapping) else None
            yield from _flatten_errors(
                inner, value if field else given, ".".join(filter(None, (name, field)))
            )
    elif isinstance(detail, list):
        for inner in detail:
            yield from _flatten_errors(inner, given, name)
    else:
        text = str(detail)
        rest = f"; {text}" if text.startswith(ALLOWED_PREFIX) else f": {text}"
        said = (
            f"{name} is {display_value(given)}{rest}"
            if name and given is not None
            else f"{name}{rest}"
            if name
            else text
        )
        yield error_entry(said, name, given if isinstance(given, bool | int | None) else display_value(given))


class BodyTooLargeError(APIException):
    """The request body is too long.

    The web process usually rejects such a body earlier (config/http/body_limit.py).
    """

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"

    def __init__(self) -> None:
        super().__init__(
            api_answers.BODY_TOO_LARGE.format(kibibytes=settings.DATA_UPLOAD_MAX_MEMORY_SIZE // 1024)
        )
