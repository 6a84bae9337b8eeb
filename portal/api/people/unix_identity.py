"""Implement the endpoints of Unix identities and of the limit of a team's homes."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import ResponseSerializer
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import ApiView
from portal.api.people.account_shapes import AccountReasonWish
from portal.api.people.serializers import TeamShape
from portal.models import TokenScope, User
from portal.services.fleet.pool_work import change_home_limit
from portal.services.people.identity import unix_identities
from scheduler.models import UnixIdentity


class UnixIdentityShape(ResponseSerializer):
    username = serializers.CharField(source="person.username")
    uid = serializers.IntegerField()
    gid = serializers.IntegerField()
    groups = serializers.ListField(child=serializers.IntegerField())
    name = serializers.CharField(help_text="Unix name")
    home = serializers.CharField(help_text="path of the home on the hosts")
    provider = serializers.CharField(help_text="the provider that set it; empty: an operator")
    changed_at = serializers.DateTimeField()


class RemovedUnixIdentityShape(ResponseSerializer):
    username = serializers.CharField(help_text="the account that has no Unix identity any more")


class UnixIdentityWish(AccountReasonWish):
    uid = serializers.IntegerField()
    gid = serializers.IntegerField(required=False, help_text="absent: the uid")
    groups = serializers.ListField(child=serializers.IntegerField(), required=False, max_length=200)
    name = serializers.CharField(max_length=100, required=False, help_text="absent: the user name")
    home = serializers.CharField(max_length=400, required=False, help_text="absent: /home/ and the name")


class HomeLimitWish(StrictSerializer):
    home_limit_gib = serializers.IntegerField(allow_null=True, help_text="null: the limit of the pool")
    why = serializers.CharField(max_length=300, required=False, allow_blank=True)


class UnixIdentityView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="people_unix_identity", responses=UnixIdentityShape)
    def get(self, request: Request, username: str) -> Response:
        """Return the Unix identity of a person or service account. For operators, auditors and the person."""
        user = _account(self, username)
        if user.pk != self.actor.pk:
            policy.require(self.actor, "identity.see")
        rows = UnixIdentity.objects.select_related("person")
        return self.object_response(get_visible_or_404(rows, person=user), UnixIdentityShape)

    @extend_schema(
        operation_id="people_set_unix_identity", request=UnixIdentityWish, responses=UnixIdentityShape
    )
    def put(self, request: Request, username: str) -> Response:
        """Set the Unix identity of a person or service account. New work has it. For operators."""
        body = self.validated_body(UnixIdentityWish)
        row = unix_identities.set_unix_identity(**self.service_context, user=_account(self, username), **body)
        return self.object_response(row, UnixIdentityShape)


class RemoveUnixIdentityView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="people_remove_unix_identity",
        request=AccountReasonWish,
        responses=RemovedUnixIdentityShape,
    )
    def post(self, request: Request, username: str) -> Response:
        """Remove the Unix identity of a person. Running and waiting work keeps it. For operators."""
        body = self.validated_body(AccountReasonWish)
        user = unix_identities.remove_unix_identity(
            **self.service_context, user=_account(self, username), **body
        )
        return self.object_response(user, RemovedUnixIdentityShape)


class TeamHomeLimitView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="teams_home_limit", request=HomeLimitWish, responses=TeamShape)
    def put(self, request: Request, slug: str) -> Response:
        """Set the largest size of new homes of a team. For operators."""
        team = get_visible_or_404(policy.visible_teams(self.actor), slug=slug)
        body = self.validated_body(HomeLimitWish)
        return self.object_response(change_home_limit(**self.service_context, team=team, **body), TeamShape)


def _account(view: ApiView, username: str) -> User:
    return get_visible_or_404(policy.visible_users(view.actor), username=username)
