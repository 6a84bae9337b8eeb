"""Implement the endpoints of service accounts and of their tokens."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.lookups import get_named_row, get_visible_or_404, visible_team
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery
from portal.api.base.views import ApiView
from portal.api.people import serializers as shapes
from portal.api.people.views import created_token
from portal.models import ApiToken, TokenScope, User
from portal.services.people import service_accounts


def _account(view: ApiView, name: str) -> User:
    rows = policy.visible_service_accounts(view.actor).select_related("service_team", "service_owner")
    return get_visible_or_404(rows, username=name)


def _with_owner(view: ApiView, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the person whom ``owner`` names. Raises Invalid."""
    if given.get("owner") is not None:
        people = policy.visible_users(view.actor)
        named = get_named_row(
            people, "owner", given["owner"], "the user name of a person", username=given["owner"]
        )
        given["owner"] = named
    return given


class ServiceAccountListView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="service_accounts_list",
        parameters=[PageQuery],
        responses=page_schema(shapes.ServiceAccountShape),
    )
    def get(self, request: Request) -> Response:
        """List the service accounts of your teams."""
        rows = policy.visible_service_accounts(self.actor).select_related("service_team", "service_owner")
        query = self.validated_query(PageQuery)
        return self.list_response(rows.order_by("username"), shapes.ServiceAccountShape, query)

    @extend_schema(
        operation_id="service_accounts_create",
        request=shapes.ServiceAccountWish,
        responses={201: shapes.ServiceAccountShape},
    )
    def post(self, request: Request) -> Response:
        """Create a service account of a team. For leads of the team and operators."""
        given = _with_owner(self, self.validated_body(shapes.ServiceAccountWish))
        given["team"] = visible_team(self.actor, given["team"])
        created = service_accounts.create_service_account(**self.service_context, **given)
        return self.object_response(created, shapes.ServiceAccountShape, 201)


class ServiceAccountView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="service_accounts_read", responses=shapes.ServiceAccountShape)
    def get(self, request: Request, name: str) -> Response:
        """Return one service account."""
        return self.object_response(_account(self, name), shapes.ServiceAccountShape)

    @extend_schema(
        operation_id="service_accounts_change",
        request=shapes.ServiceAccountChange,
        responses=shapes.ServiceAccountShape,
    )
    def patch(self, request: Request, name: str) -> Response:
        """Give a service account another owner, or close or open it. A closed account loses its tokens."""
        account = _account(self, name)
        given = _with_owner(self, self.validated_body(shapes.ServiceAccountChange))
        changed = service_accounts.change_service_account(**self.service_context, account=account, **given)
        return self.object_response(changed, shapes.ServiceAccountShape)


class ServiceAccountTokenListView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="service_accounts_tokens_list",
        parameters=[PageQuery],
        responses=page_schema(shapes.TokenShape),
    )
    def get(self, request: Request, name: str) -> Response:
        """List the tokens of a service account that you may change, newest first, without their text."""
        account = _account(self, name)
        policy.require(self.actor, "service_account.change", account)
        rows = ApiToken.objects.filter(user=account).select_related("user")
        query = self.validated_query(PageQuery)
        return self.list_response(rows.order_by("-created_at", "-pk"), shapes.TokenShape, query)

    @extend_schema(
        operation_id="service_accounts_tokens_create",
        request=shapes.TokenWish,
        responses={201: shapes.TokenMade},
    )
    def post(self, request: Request, name: str) -> Response:
        """Create a token of a service account; only this response has its text."""
        return created_token(self, _account(self, name))
