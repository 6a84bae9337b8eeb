"""Define the base class of all endpoints. It validates requests and builds responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar, cast

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from rest_framework import serializers, status
from rest_framework.authentication import SessionAuthentication
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal import policy
from portal.api.base.authentication import TokenAuthentication
from portal.api.base.errors import api_exception_handler
from portal.api.base.fields import JsonObject
from portal.api.base.idempotency import LIFETIME_HEADER, answering_once
from portal.api.base.lookups import Row
from portal.api.base.parsers import LimitedJsonParser
from portal.api.base.schema import ApiSchema
from portal.api.base.throttling import ReadThrottle, WriteThrottle
from portal.models import ApiToken, TokenScope, User
from portal.redis_state.announced_maintenance import announced_maintenance
from portal.services.idempotency import KEY_LIFETIME


class AnyContentNegotiation(BaseContentNegotiation):
    """A content negotiation that accepts every Accept header. The view sets the media type of its answer."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """Return the first parser."""
        return parsers[0]

    def select_renderer(
        self, request: HttpRequest, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """Return the first renderer, which writes the errors."""
        return renderers[0], renderers[0].media_type


MAINTENANCE_HEADER = "Gpupool-Database-Maintenance"  # JSON with ends_at and reason, while one lasts


class ApiView(APIView):
    """An endpoint of the API.

    A session or an API token authenticates the user. Requests are throttled. All errors have one format.
    """

    authentication_classes = [TokenAuthentication, SessionAuthentication]
    parser_classes = [LimitedJsonParser]
    permission_classes = [IsAuthenticated]
    throttle_classes = [ReadThrottle, WriteThrottle]
    schema = ApiSchema()
    # The scope that a token needs to write. A request that only reads needs the scope "read". A view whose
    # scope is "read" changes nothing, even if it answers POST, such as a preview.
    scope: ClassVar[TokenScope]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate and throttle the request. Raises NotAllowed if its token lacks the scope."""
        super().initial(request, *args, **kwargs)
        policy.require_scope(self.token, TokenScope.READ if request.method in SAFE_METHODS else self.scope)
        post = getattr(self, "post", None)
        if request.method == "POST" and post is not None and self.scope != TokenScope.READ:
            setattr(self, "post", answering_once(post, self.actor, self.now))  # noqa: B010

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Return the response, with the life of an ``Idempotency-Key`` and the announced maintenance."""
        response[LIFETIME_HEADER] = str(int(KEY_LIFETIME.total_seconds()))
        maintenance = announced_maintenance()
        if maintenance is not None:
            response[MAINTENANCE_HEADER] = maintenance.header
        return super().finalize_response(request, response, *args, **kwargs)

    @property
    def token(self) -> ApiToken | None:
        """Return the token of the request; None if a session authenticates it."""
        return self.request.auth if isinstance(self.request.auth, ApiToken) else None

    def get_exception_handler(self) -> Any:
        """Return the handler that gives all errors one format."""
        return api_exception_handler

    @property
    def actor(self) -> User:
        """Return the user of the request."""
        return cast(User, self.request.user)

    @property
    def service_context(self) -> JsonObject:
        """Return the arguments ``actor``, ``via`` and ``now`` that each service takes.

        ``via`` is "cli" if the User-Agent header names gpupool's CLI, otherwise "api".
        """
        via = "cli" if self.request.headers.get("User-Agent", "").startswith("gpupool-cli/") else "api"
        return {"actor": self.actor, "via": via, "now": timezone.now()}

    @property
    def now(self) -> datetime:
        """Return the present time."""
        return timezone.now()

    def validated_body(self, serializer: type[serializers.Serializer[Any]]) -> JsonObject:
        """Return the validated body. Raises ValidationError."""
        found = serializer(data=self.request.data, context={"user": self.actor})
        found.is_valid(raise_exception=True)
        return dict(found.validated_data)

    def validated_query(self, serializer: type[serializers.Serializer[Any]]) -> JsonObject:
        """Return the validated query parameters. Raises ValidationError."""
        found = serializer(data=self.request.query_params.dict(), context={"user": self.actor})
        found.is_valid(raise_exception=True)
        return dict(found.validated_data)

    def list_response(
        self,
        rows: QuerySet[Row],
        serializer: type[serializers.Serializer[Any]],
        query: JsonObject,
        describe: Callable[[Iterable[Row]], Sequence[Any]] = tuple,
    ) -> Response:
        """Return one page of a list: ``count``, ``page``, ``page_size``, ``results``.

        ``describe`` turns the rows of the page into objects for ``serializer``.
        """
        number, size = query.get("page", 1), query.get("page_size", 50)
        start = (number - 1) * size
        found = serializer(
            describe(rows[start : start + size]), many=True, context={"user": self.actor, "now": self.now}
        )
        return Response({"count": rows.count(), "page": number, "page_size": size, "results": found.data})

    def object_response(
        self, row: Any, serializer: type[serializers.Serializer[Any]], code: int = status.HTTP_200_OK
    ) -> Response:
        """Return a response with one serialized object."""
        return Response(serializer(row, context={"user": self.actor, "now": self.now}).data, status=code)


def paginate_list(
    rows: Sequence[Any], serializer: type[serializers.Serializer[Any]], query: JsonObject
) -> Response:
    """Return one page of a sequence, in the format of ``ApiView.list_response``."""
    number, size = query["page"], query["page_size"]
    found = serializer(rows[(number - 1) * size : number * size], many=True)
    return Response({"count": len(rows), "page": number, "page_size": size, "results": found.data})
