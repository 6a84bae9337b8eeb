"""Implement the endpoints of identity providers, of rules about claims, and of connected identities."""

from __future__ import annotations

from allauth.socialaccount.models import SocialAccount
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.views import ApiView
from portal.api.people import identity_shapes as shapes
from portal.api.people.account_shapes import AccountReasonWish
from portal.models import ClaimRule, IdentityProvider, TokenScope
from portal.reads.people.identity import claim_rules, own_identities
from portal.services.people.identity import directory_sync, providers, rules, sign_in
from portal.sign_in.oidc.providers import all_providers, settings_of


class SignInSettingsView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="identity_read", responses=shapes.SignInSettingsShape)
    def get(self, request: Request) -> Response:
        """Return the identity providers and the rules. For operators and auditors."""
        policy.require(self.actor, "identity.see")
        return _settings_response(self)


class LocalSignInView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="identity_local_sign_in",
        request=shapes.LocalSignInWish,
        responses=shapes.SignInSettingsShape,
    )
    def put(self, request: Request) -> Response:
        """Turn sign-in by password on or off. For operators."""
        providers.set_local_sign_in(**self.service_context, **self.validated_body(shapes.LocalSignInWish))
        return _settings_response(self)


class ProviderListView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="identity_providers_create",
        request=shapes.NewProvider,
        responses={201: shapes.ProviderShape},
    )
    def post(self, request: Request) -> Response:
        """Create an identity provider. For operators."""
        body = {"secret": "", **self.validated_body(shapes.NewProvider)}
        row = providers.create_provider(**self.service_context, **body)
        return self.object_response(settings_of(row), shapes.ProviderShape, 201)


class ProviderView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="identity_providers_set", request=shapes.ProviderWish, responses=shapes.ProviderShape
    )
    def put(self, request: Request, slug: str) -> Response:
        """Change an identity provider. Absent fields, and an empty secret, stay. For operators."""
        policy.require(self.actor, "identity.change")
        row = get_visible_or_404(IdentityProvider.objects.all(), slug=slug)
        body = self.validated_body(shapes.ProviderWish)
        changed = providers.change_provider(**self.service_context, provider=row, **body)
        return self.object_response(settings_of(changed), shapes.ProviderShape)


class ProviderRemoveView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="identity_providers_remove",
        request=AccountReasonWish,
        responses=shapes.SignInSettingsShape,
    )
    def post(self, request: Request, slug: str) -> Response:
        """Remove an identity provider with its rules and connections. Accounts stay. For operators."""
        policy.require(self.actor, "identity.change")
        row = get_visible_or_404(IdentityProvider.objects.all(), slug=slug)
        providers.remove_provider(
            **self.service_context, provider=row, **self.validated_body(AccountReasonWish)
        )
        return _settings_response(self)


class ProviderTestView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="identity_providers_test",
        request=shapes.ConnectionTestWish,
        responses=shapes.ConnectionTestShape,
    )
    def post(self, request: Request, slug: str) -> Response:
        """Test the connection to a provider. Of a directory, also read one person. For operators."""
        body = self.validated_body(shapes.ConnectionTestWish)
        found = providers.run_connection_test(**self.service_context, slug=slug, **body)
        granted = rules.preview_for_claims(actor=self.actor, provider=slug, claims=found.claims)
        return self.object_response({**vars(found), "granted": granted}, shapes.ConnectionTestShape)


class SyncPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="identity_sync_preview", responses=shapes.SyncPlanShape)
    def get(self, request: Request, slug: str) -> Response:
        """Return what a sync with a directory would do. For operators."""
        found = directory_sync.preview_sync(actor=self.actor, provider=slug, now=self.now)
        return self.object_response(found, shapes.SyncPlanShape)


class SyncView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="identity_sync", request=shapes.SyncWish, responses=shapes.DirectorySyncShape)
    def post(self, request: Request, slug: str) -> Response:
        """Close accounts that a directory does not have any more, and apply the rules. For operators."""
        body = self.validated_body(shapes.SyncWish)
        found = directory_sync.sync_now(**self.service_context, provider=slug, **body)
        return self.object_response(found, shapes.DirectorySyncShape)


class RuleListView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="identity_rules_create", request=shapes.NewRule, responses={201: shapes.ClaimRuleShape}
    )
    def post(self, request: Request) -> Response:
        """Add a rule that gives a team or a role to people with a claim. For operators."""
        row = rules.create_rule(**self.service_context, **self.validated_body(shapes.NewRule))
        return self.object_response(row, shapes.ClaimRuleShape, 201)


class RuleRemoveView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="identity_rules_remove", request=AccountReasonWish, responses=shapes.SignInSettingsShape
    )
    def post(self, request: Request, id: int) -> Response:
        """Remove a rule. The rights that it gave end at each person's next sign-in. For operators."""
        policy.require(self.actor, "identity.change")
        row = get_visible_or_404(ClaimRule.objects.select_related("team"), pk=id)
        rules.remove_rule(**self.service_context, rule=row, **self.validated_body(AccountReasonWish))
        return _settings_response(self)


class RulesPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="identity_rules_preview",
        request=shapes.RulesPreviewWish,
        responses=shapes.RulesEffectShape,
    )
    def post(self, request: Request) -> Response:
        """Return the effect of one more or one fewer rule at the next sign-ins. For operators."""
        body = self.validated_body(shapes.RulesPreviewWish)
        found = rules.preview_rules(actor=self.actor, now=self.now, **body)
        return self.object_response(found, shapes.RulesEffectShape)


class OwnIdentitiesView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="me_identities", responses=shapes.IdentitiesShape)
    def get(self, request: Request) -> Response:
        """Return the identities that are connected to your account. Connecting one needs a browser."""
        return self.object_response({"results": own_identities(self.actor)}, shapes.IdentitiesShape)


class DisconnectIdentityView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="me_identities_disconnect", request=None, responses=shapes.IdentitiesShape)
    def post(self, request: Request, id: int) -> Response:
        """Disconnect an identity from your account. Your last way to sign in stays."""
        row = get_visible_or_404(SocialAccount.objects.filter(user=self.actor), pk=id)
        sign_in.disconnect_identity(**self.service_context, account=row)
        return self.object_response({"results": own_identities(self.actor)}, shapes.IdentitiesShape)


def _settings_response(view: ApiView) -> Response:
    found = {
        "local_sign_in": sign_in.local_sign_in_allowed(),
        "providers": all_providers(),
        "rules": claim_rules(view.actor),
    }
    return view.object_response(found, shapes.SignInSettingsShape)
