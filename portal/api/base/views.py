"""What every endpoint shares: who asks, how often, how errors look, how lists are cut into pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from io import BytesIO
from typing import Any, TypeVar, cast

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db.models import Model, QuerySet
from django.http import Http404
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from redis.exceptions import RedisError
from rest_framework import serializers, status
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.exceptions import APIException, AuthenticationFailed, ParseError, ValidationError
from rest_framework.parsers import JSONParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from portal.errors import Conflict, Invalid, ObjectNotFound, PlannerBudgetExceeded, ServiceError
from portal.input_checks import display_value
from portal.models import ApiToken, User
from portal.services.people import api_tokens

Row = TypeVar("Row", bound=Model)
JsonObject = dict[str, Any]

MAX_PAGE_SIZE = 200
MAX_PAGE_NUMBER = 100_000
ALLOWED_PREFIX = "allowed: "  # so begins what says nothing else


# -- who asks ----------------------------------------------------------------------------------------------------------


class TokenAuthentication(BaseAuthentication):
    """``Authorization: Bearer gpp_…``: a token made in the browser."""

    keyword = "Bearer"

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """The token and its user; None when the request carries no bearer token. Raises AuthenticationFailed for a wrong one."""
        parts = get_authorization_header(request).split()
        if not parts or parts[0].lower() != b"bearer":
            return None
        text = parts[1].decode("ascii", "replace") if len(parts) == 2 else ""
        token = (
            api_tokens.token_in_force(text, timezone.now())
            if text.startswith(api_tokens.TOKEN_PREFIX)
            else None
        )
        if token is None:
            raise AuthenticationFailed(
                "The token is unknown, revoked or out of date; make a new one under API tokens."
            )
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """What a 401 names."""
        return f'{self.keyword} realm="gpupool"'


class TokenAuthenticationScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the schema describes tokens."""

    target_class = "portal.api.base.views.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """An HTTP bearer scheme."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token made in the browser; it begins with gpp_.",
        }


class _UserThrottle(SimpleRateThrottle):
    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        """One bucket per user, or per address before sign-in."""
        ident = str(request.user.pk) if request.user.is_authenticated else self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": ident}

    def allow_request(self, request: Request, view: APIView) -> bool:
        """As DRF. While Redis is away nobody is counted: it makes things faster, and nothing rests on it."""
        try:
            return super().allow_request(request, view)
        except RedisError:
            return True


class ReadThrottle(_UserThrottle):
    """Reads: generous, so that scripts may poll."""

    scope, rate = "api-read", "3000/min"

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Counts reads only."""
        return request.method not in ("GET", "HEAD", "OPTIONS") or super().allow_request(request, view)


class WriteThrottle(_UserThrottle):
    """Writes: a person or a script, not a flood."""

    scope, rate = "api-write", "600/min"

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Counts writes only."""
        return request.method in ("GET", "HEAD", "OPTIONS") or super().allow_request(request, view)


# -- errors ------------------------------------------------------------------------------------------------------------


class ErrorSerializer(serializers.Serializer[Any]):
    field = serializers.CharField(help_text="Which field it is about; empty: the request as a whole.")
    value = serializers.JSONField(allow_null=True, help_text="What was given, shortened.")
    message = serializers.CharField(help_text="What is wrong and what is allowed.")


class WindowSerializer(serializers.Serializer[Any]):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()


# What stands for a row wherever the engine, a verb or a record says it by a number.
ROW_REFERENCES = frozenset(
    {
        "team",
        "for_team",
        "owner",
        "user",
        "author",
        "project",
        "pool",
        "workload",
        "for_workload",
        "evicted_by",
        "blockers",
        "reservation",
        "for_reservation",
        "series",
        "submission",
        "array",
        "host",
        "run",
        "template",
    }
)


def public_numbers(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """A reason's numbers without those that stand for rows: they name nothing to anybody outside, and may be others' work. What
    the reader may know of them is in the sentence, by name."""
    return {
        name: value
        for name, value in numbers.items()
        if name not in ROW_REFERENCES or not _is_row_reference(value)
    }


def _is_row_reference(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_row_reference, value))
    return isinstance(value, int) and not isinstance(value, bool)


class NumbersField(serializers.DictField):
    """A reason's numbers: names and JSON values."""

    def to_representation(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """As they go out."""
        shown: dict[str, Any] = super().to_representation(public_numbers(value))
        return shown


class RecordField(NumbersField):
    """What was submitted or changed: names and JSON values, rows by their names where they have one here."""


class ErrorsSerializer(serializers.Serializer[Any]):
    """The one shape of every refusal."""

    errors = ErrorSerializer(many=True)  # type: ignore[assignment]
    code = serializers.CharField(required=False, help_text="The engine's reason code, where it gave one.")
    numbers = serializers.DictField(
        child=serializers.JSONField(), required=False, help_text="The reason's numbers."
    )
    windows = WindowSerializer(many=True, required=False, help_text="Windows that would fit instead.")


def error_entry(message: str, field: str = "", value: Any = None) -> JsonObject:
    """One entry of ``errors``, in characters that can be sent."""
    value = _encodable(value) if isinstance(value, str) else value
    return {"field": _encodable(field), "value": value, "message": _encodable(message)}


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def api_exception_handler(problem: Exception, context: Mapping[str, Any]) -> Response | None:
    """Every refusal in one shape; None (a 500) for what is nobody's refusal."""
    if isinstance(problem, ServiceError):
        again = {"Retry-After": str(problem.wait)} if isinstance(problem, PlannerBudgetExceeded) else None
        return Response(_service_error_body(problem), status=problem.status, headers=again)
    if isinstance(problem, Http404):
        return Response(
            {"errors": [error_entry("There is no such thing, or it is not yours to see.")]}, status=404
        )
    if isinstance(problem, RequestDataTooBig):
        return api_exception_handler(BodyTooLargeError(), context)
    if isinstance(problem, PermissionDenied):
        return Response({"errors": [error_entry("You may not do this.")]}, status=403)
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
    body: JsonObject = {"errors": [error_entry(problem.message)]}
    if isinstance(problem, Conflict):
        body["errors"][0]["field"] = problem.field
        if problem.code:
            body |= {"code": problem.code, "numbers": public_numbers(problem.numbers)}
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
    """The body is longer than may be. The web process refuses it before it gets here (config/http/body_limit.py)."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"

    def __init__(self) -> None:
        super().__init__(
            f"The body is too large; allowed: up to {settings.DATA_UPLOAD_MAX_MEMORY_SIZE // 1024:,} KiB."
        )


class LimitedJsonParser(JSONParser):
    """JSON, as long as a form may be. What is nested deeper than Python follows is refused like any other wrong body."""

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """As DRF. Raises ParseError, TooLarge."""
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = stream.read(most + 1)
        if len(body) > most:
            raise BodyTooLargeError
        try:
            return super().parse(BytesIO(body), media_type, parser_context)
        except RecursionError:
            raise ParseError(
                "The body is JSON nested too deeply; allowed: the fields of this call."
            ) from None


# -- views -------------------------------------------------------------------------------------------------------------


class ApiSchema(AutoSchema):
    """Adds the refusals that any endpoint can give, so that no call site repeats them."""

    def _get_response_bodies(self, direction: str = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction=direction)  # type: ignore[no-untyped-call]
        codes = ["400", "401", "403", "404", "406", "429"]
        if self.method not in ("GET", "HEAD"):
            codes += ["409", "413", "415"]
        for code in codes:
            bodies.setdefault(code, self._get_response_for_code(ErrorsSerializer, code))  # type: ignore[no-untyped-call]
        return bodies


class ApiView(APIView):
    """Base of every endpoint: signed in by session or token, throttled, errors in one shape."""

    authentication_classes = [TokenAuthentication, SessionAuthentication]
    parser_classes = [LimitedJsonParser]
    permission_classes = [IsAuthenticated]
    throttle_classes = [ReadThrottle, WriteThrottle]
    schema = ApiSchema()

    def get_exception_handler(self) -> Any:
        """Errors in one shape."""
        return api_exception_handler

    @property
    def actor(self) -> User:
        """Who asks."""
        return cast(User, self.request.user)

    @property
    def by(self) -> JsonObject:
        """``actor``, ``via`` and ``now`` for a service: by the CLI when it says so, else the API."""
        via = "cli" if self.request.headers.get("User-Agent", "").startswith("gpupool-cli/") else "api"
        return {"actor": self.actor, "via": via, "now": timezone.now()}

    @property
    def now(self) -> datetime:
        """The moment of this request."""
        return timezone.now()

    def given(self, serializer: type[serializers.Serializer[Any]]) -> JsonObject:
        """The body of the request, checked. Raises ValidationError."""
        found = serializer(data=self.request.data, context={"user": self.actor})
        found.is_valid(raise_exception=True)
        return dict(found.validated_data)

    def query(self, serializer: type[serializers.Serializer[Any]]) -> JsonObject:
        """The query of the request, checked. Raises ValidationError."""
        found = serializer(data=self.request.query_params.dict(), context={"user": self.actor})
        found.is_valid(raise_exception=True)
        return dict(found.validated_data)

    def page(
        self,
        rows: QuerySet[Row],
        serializer: type[serializers.Serializer[Any]],
        query: JsonObject,
        told: Callable[[Iterable[Row]], Sequence[Any]] = tuple,
    ) -> Response:
        """One page of a list: ``count``, ``page``, ``page_size``, ``results``. ``told`` makes of its rows what is shown."""
        number, size = query.get("page", 1), query.get("page_size", 50)
        start = (number - 1) * size
        found = serializer(
            told(rows[start : start + size]), many=True, context={"user": self.actor, "now": self.now}
        )
        return Response({"count": rows.count(), "page": number, "page_size": size, "results": found.data})

    def one(
        self, row: Any, serializer: type[serializers.Serializer[Any]], code: int = status.HTTP_200_OK
    ) -> Response:
        """One thing."""
        return Response(serializer(row, context={"user": self.actor, "now": self.now}).data, status=code)


def paginate_list(
    rows: Sequence[Any], serializer: type[serializers.Serializer[Any]], query: JsonObject
) -> Response:
    """One page of what is no query, as ``ApiView.page`` gives it."""
    number, size = query["page"], query["page_size"]
    found = serializer(rows[(number - 1) * size : number * size], many=True)
    return Response({"count": len(rows), "page": number, "page_size": size, "results": found.data})


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses fields it does not know: a misspelt one would otherwise be silently without effect. Of a choice it says which there
    are."""

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """As DRF, in words of this API."""
        fields = super().get_fields()
        for field in fields.values():
            if isinstance(field, serializers.ChoiceField):
                field.error_messages["invalid_choice"] = (
                    f"{ALLOWED_PREFIX}{', '.join(map(str, field.choices))}."
                )
        return fields

    def to_internal_value(self, data: Any) -> Any:
        """As DRF, after the names were checked."""
        if isinstance(data, Mapping):
            unknown = [str(name) for name in data if name not in self.fields]
            if unknown:
                allowed = (
                    ", ".join(sorted(name for name, field in self.fields.items() if not field.read_only))
                    or "none"
                )
                raise ValidationError(
                    {display_value(name)[1:-1]: f"is no field here; allowed: {allowed}." for name in unknown}
                )
            numbers = [
                name
                for name, field in self.fields.items()
                if isinstance(field, serializers.CharField) and isinstance(data.get(name), int | float)
            ]
            if numbers:  # DRF would take 0 as the text "0"
                raise ValidationError(dict.fromkeys(numbers, f"a number; {ALLOWED_PREFIX}text."))
        return super().to_internal_value(data)


class PageQuery(StrictSerializer):
    page = serializers.IntegerField(min_value=1, max_value=MAX_PAGE_NUMBER, default=1)
    page_size = serializers.IntegerField(min_value=1, max_value=MAX_PAGE_SIZE, default=50)


class EmptyBody(StrictSerializer):
    """A body without fields."""


class Why(StrictSerializer):
    why = serializers.CharField(
        max_length=1000, required=False, allow_blank=True, default="", help_text="Kept in the audit record."
    )


def get_visible_or_404(rows: QuerySet[Row], **by: Any) -> Row:
    """The one row out of those that may be seen, or Http404: what may not be seen does not exist."""
    row = rows.filter(**by).first()
    if row is None:
        raise Http404
    return row


def get_named_row(rows: QuerySet[Row], field: str, value: str, noun: str, **by: Any) -> Row:
    """The row that a field of the body names, out of those that may be seen. Raises Invalid."""
    row = rows.filter(**by).first()
    if row is None:
        raise Invalid(
            {field: f"{field} is {display_value(value)}; allowed: {noun} that you may see."}, {field: value}
        )
    return row
