"""Implement the endpoints of the caller's sessions, second factors and sign-ins."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.base.fields import MAX_INT, ResponseSerializer
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import EmptyBody, PageQuery, StrictSerializer
from portal.api.base.views import ApiView
from portal.models import AuditEvent, BrowserSession, TokenScope
from portal.reads.people.own_account import own_second_factors, own_sessions, own_sign_ins
from portal.services.people import browser_sessions
from portal.sign_in.own_session import keep_own_session
from portal.wording.people.device_texts import device_name


class BrowserSessionShape(ResponseSerializer):
    id = serializers.IntegerField()
    device = serializers.SerializerMethodField(help_text="browser and system")
    address = serializers.CharField()
    method = serializers.CharField(help_text="steps of the sign-in")
    signed_in_at = serializers.DateTimeField()
    last_used_at = serializers.DateTimeField(help_text="at most 5 minutes late")

    def get_device(self, row: BrowserSession) -> str:
        """Return the name of the browser and the system."""
        return device_name(row.agent)


class EndSessionsWish(StrictSerializer):
    revoke_tokens = serializers.BooleanField(required=False, help_text="also revoke all API tokens")


class EndedSessionsShape(ResponseSerializer):
    revoked_tokens = serializers.ListField(child=serializers.CharField(), help_text="names of the tokens")


class SecondFactorShape(ResponseSerializer):
    kind = serializers.ChoiceField(choices=["totp", "webauthn", "recovery_codes"])
    name = serializers.CharField(help_text="name of a passkey")
    created_at = serializers.DateTimeField()
    last_used_at = serializers.DateTimeField(allow_null=True)
    codes_left = serializers.IntegerField(allow_null=True, help_text="unused recovery codes")


class SecondFactorsShape(ResponseSerializer):
    results = SecondFactorShape(many=True)


class SignInEventShape(ResponseSerializer):
    at = serializers.DateTimeField()
    event = serializers.CharField(source="verb_text")
    address = serializers.SerializerMethodField()
    device = serializers.SerializerMethodField()
    method = serializers.SerializerMethodField()

    def get_address(self, row: AuditEvent) -> str:
        """Return the network address."""
        return _detail(row, "address")

    def get_device(self, row: AuditEvent) -> str:
        """Return the name of the browser and the system."""
        agent = _detail(row, "agent")
        return device_name(agent) if agent else ""

    def get_method(self, row: AuditEvent) -> str:
        """Return the steps of the sign-in."""
        return _detail(row, "method")


class SignInEventsShape(ResponseSerializer):
    results = SignInEventShape(many=True)


def _detail(row: AuditEvent, name: str) -> str:
    found: Any = (row.after or {}).get(name, "")
    return str(found)


class OwnSessionListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="me_sessions", parameters=[PageQuery], responses=page_schema(BrowserSessionShape)
    )
    def get(self, request: Request) -> Response:
        """List the browsers in which you are signed in, the latest used first."""
        rows = own_sessions(self.actor, self.now)
        return self.list_response(rows, BrowserSessionShape, self.validated_query(PageQuery))


class EndOwnSessionView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="me_sessions_end", request=EmptyBody, responses=BrowserSessionShape)
    def post(self, request: Request, id: int) -> Response:
        """End one of your browser sessions, with its notebooks and live pages. Running work goes on."""
        row = get_visible_or_404(own_sessions(self.actor, self.now), pk=min(id, MAX_INT))
        self.validated_body(EmptyBody)
        ended = BrowserSessionShape(row).data
        browser_sessions.end_own_session(**self.service_context, session=row)
        return Response(ended)


class EndOwnSessionsView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="me_sessions_end_all", request=EndSessionsWish, responses=EndedSessionsShape)
    def post(self, request: Request) -> Response:
        """End your browser sessions, except the one that asks. With ``revoke_tokens``, revoke all tokens."""
        given = self.validated_body(EndSessionsWish)
        revoked = browser_sessions.end_own_sessions(**self.service_context, **given)
        keep_own_session(request._request, self.actor)
        return self.object_response({"revoked_tokens": revoked}, EndedSessionsShape)


class OwnSecondFactorsView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="me_second_factors", responses=SecondFactorsShape)
    def get(self, request: Request) -> Response:
        """Return your second factors. Adding and removing one needs a browser."""
        return self.object_response({"results": own_second_factors(self.actor)}, SecondFactorsShape)


class OwnSignInsView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="me_sign_ins", responses=SignInEventsShape)
    def get(self, request: Request) -> Response:
        """Return the latest events of signing in to your account, newest first."""
        return self.object_response({"results": own_sign_ins(self.actor)}, SignInEventsShape)
