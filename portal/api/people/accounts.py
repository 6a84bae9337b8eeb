"""Implement the endpoints with which operators create and protect accounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from portal import policy
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery
from portal.api.base.views import ApiView
from portal.api.people import account_shapes as shapes
from portal.models import TokenScope, User
from portal.reads.people.organisation import people
from portal.services.people import account_security, accounts, person_removal
from portal.services.people.account_effects import preview_account_change
from portal.services.people.password_links import password_link
from portal.sign_in.own_session import keep_own_session


class PersonListView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="people_list", parameters=[PageQuery], responses=page_schema(shapes.PersonShape)
    )
    def get(self, request: Request) -> Response:
        """List the people that you may see."""
        return self.list_response(people(self.actor), shapes.PersonShape, self.validated_query(PageQuery))

    @extend_schema(
        operation_id="people_create", request=shapes.NewPerson, responses={201: shapes.PersonLinkShape}
    )
    def post(self, request: Request) -> Response:
        """Create an account. Only this answer has the one-time link for the first password. For operators."""
        made = accounts.create_user(**self.service_context, **self.validated_body(shapes.NewPerson))
        return self.object_response(
            {"username": made.username, "link": password_link(made)}, shapes.PersonLinkShape, 201
        )


class PersonView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="people_read", responses=shapes.PersonShape)
    def get(self, request: Request, username: str) -> Response:
        """Return one person, with roles and teams."""
        return self.object_response(_person(self, username), shapes.PersonShape)


class PersonTokensView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="people_tokens", responses=shapes.PersonTokensShape)
    def get(self, request: Request, username: str) -> Response:
        """Return the API tokens in force of a person. For operators."""
        user = _person(self, username)
        policy.require(self.actor, "user.change")
        found = preview_account_change(actor=self.actor, user=user, verb="revoke_tokens", now=self.now)
        return self.object_response({"results": found.tokens}, shapes.PersonTokensShape)


class AccountEffectView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="people_effect", parameters=[shapes.EffectQuery], responses=shapes.AccountEffectShape
    )
    def get(self, request: Request, username: str) -> Response:
        """Return the effect of a change of an account, with its running work. For operators."""
        user = _person(self, username)
        policy.require(self.actor, "user.change")
        verb = self.validated_query(shapes.EffectQuery)["verb"].replace("-", "_")
        found = preview_account_change(actor=self.actor, user=user, verb=verb, now=self.now)
        return self.object_response(found, shapes.AccountEffectShape)


class _AccountChangeView(ApiView):
    """Base of the endpoints that change an account."""

    scope = TokenScope.MANAGE

    def change(
        self, service: Callable[..., Any], username: str, shape: type[Serializer[Any]], **more: Any
    ) -> Any:
        """Call the service with the validated body and ``more``, and return its result.

        Keep the session of the actor.
        """
        user = _person(self, username)
        done = service(**self.service_context, user=user, **more, **self.validated_body(shape))
        keep_own_session(self.request._request, user)
        return done

    def change_person(
        self, service: Callable[..., Any], username: str, shape: type[Serializer[Any]], **more: Any
    ) -> Response:
        """Call the service, and return the person."""
        self.change(service, username, shape, **more)
        return self.object_response(_person(self, username), shapes.PersonShape)


class ChangeRolesView(_AccountChangeView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="people_roles", request=shapes.RolesWish, responses=shapes.PersonShape)
    def post(self, request: Request, username: str) -> Response:
        """Change the roles in the organisation, which ends the person's sessions. For operators."""
        return self.change_person(accounts.change_user, username, shapes.RolesWish)


class CloseAccountView(_AccountChangeView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="people_close", request=shapes.AccountReasonWish, responses=shapes.PersonShape
    )
    def post(self, request: Request, username: str) -> Response:
        """Close an account: sessions and tokens end for ever, work ends by the policy. For operators."""
        return self.change_person(accounts.change_user, username, shapes.AccountReasonWish, active=False)


class OpenAccountView(_AccountChangeView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="people_open", request=shapes.AccountReasonWish, responses=shapes.PersonShape)
    def post(self, request: Request, username: str) -> Response:
        """Open a closed account. Its earlier sessions and tokens stay invalid. For operators."""
        return self.change_person(accounts.change_user, username, shapes.AccountReasonWish, active=True)


class EndSessionsView(_AccountChangeView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="people_end_sessions", request=shapes.ProtectWish, responses=shapes.PersonShape
    )
    def post(self, request: Request, username: str) -> Response:
        """End all sessions, open workspaces and entry codes of a person. For operators."""
        return self.change_person(account_security.end_sessions, username, shapes.ProtectWish)


class RevokeTokensView(_AccountChangeView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="people_revoke_tokens", request=shapes.RevokeWish, responses=shapes.RevokedShape
    )
    def post(self, request: Request, username: str) -> Response:
        """Revoke API tokens of a person: those in ``tokens``, or all. For operators."""
        names = self.change(account_security.revoke_tokens, username, shapes.RevokeWish)
        return self.object_response({"revoked": names}, shapes.RevokedShape)


class ResetPasswordView(_AccountChangeView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="people_reset_password", request=shapes.ProtectWish, responses=shapes.PersonLinkShape
    )
    def post(self, request: Request, username: str) -> Response:
        """Make a password invalid, and return the one-time link for a new one. For operators."""
        link = self.change(account_security.reset_password, username, shapes.ProtectWish)
        return self.object_response({"username": username, "link": link}, shapes.PersonLinkShape)


class ResetSecondFactorView(_AccountChangeView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="people_reset_second_factor", request=shapes.ProtectWish, responses=shapes.PersonShape
    )
    def post(self, request: Request, username: str) -> Response:
        """Remove the second factor and the recovery codes of a person. For operators."""
        return self.change_person(account_security.reset_second_factor, username, shapes.ProtectWish)


class ChangeAddressView(_AccountChangeView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="people_address", request=shapes.AddressWish, responses=shapes.PersonShape)
    def post(self, request: Request, username: str) -> Response:
        """Change the e-mail address of a person. For operators."""
        return self.change_person(account_security.change_address, username, shapes.AddressWish)


class RemovePersonView(_AccountChangeView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="people_remove", request=shapes.RemovePersonWish, responses=shapes.PersonShape
    )
    def post(self, request: Request, username: str) -> Response:
        """Close an account, end its roles and teams, and settle its work by the policy. For operators."""
        return self.change_person(person_removal.remove_person, username, shapes.RemovePersonWish)


class StopWorkView(_AccountChangeView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="people_stop_work", request=shapes.AccountReasonWish, responses=shapes.StoppedShape
    )
    def post(self, request: Request, username: str) -> Response:
        """Stop all running and waiting work of a person. For operators."""
        stopped = self.change(account_security.stop_work, username, shapes.AccountReasonWish)
        return self.object_response({"stopped": stopped}, shapes.StoppedShape)


def _person(view: ApiView, username: str) -> User:
    return get_visible_or_404(people(view.actor), username=username)
