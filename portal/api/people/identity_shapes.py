"""Define the serializers of identity providers, of rules about claims, and of connected identities."""

from __future__ import annotations

from rest_framework import serializers

from portal.api.base.fields import ResponseSerializer
from portal.api.base.serializers import StrictSerializer
from portal.api.people.account_shapes import AccountReasonWish
from portal.services.people.accounts import ROLES


class ProviderShape(ResponseSerializer):
    slug = serializers.CharField()
    name = serializers.CharField()
    issuer = serializers.CharField()
    client_id = serializers.CharField()
    scopes = serializers.CharField()
    username_claim = serializers.CharField()
    uid_claim = serializers.CharField(help_text="claim with the Unix user number; empty: none is taken")
    gid_claim = serializers.CharField()
    groups_claim = serializers.CharField()
    unix_name_claim = serializers.CharField()
    home_claim = serializers.CharField()
    ca_certificates = serializers.CharField()
    active = serializers.BooleanField()
    creates_accounts = serializers.BooleanField()
    from_environment = serializers.BooleanField(help_text="set by environment variables")


class ClaimRuleShape(ResponseSerializer):
    id = serializers.IntegerField()
    provider = serializers.CharField()
    claim = serializers.CharField()
    value = serializers.CharField()
    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    lead = serializers.BooleanField()
    role = serializers.CharField(help_text="role in the organisation; empty: the rule gives a team")


class SignInSettingsShape(ResponseSerializer):
    local_sign_in = serializers.BooleanField(help_text="people can sign in with a password")
    providers = ProviderShape(many=True)
    rules = ClaimRuleShape(many=True)


class ProviderFields(AccountReasonWish):
    name = serializers.CharField(max_length=80)
    issuer = serializers.CharField(max_length=300)
    client_id = serializers.CharField(max_length=200)
    secret = serializers.CharField(
        max_length=500, required=False, allow_blank=True, help_text="stored encrypted, never returned"
    )
    scopes = serializers.CharField(max_length=200, required=False)
    username_claim = serializers.CharField(max_length=80, required=False)
    uid_claim = serializers.CharField(
        max_length=80, required=False, allow_blank=True, help_text="claim with the Unix user number"
    )
    gid_claim = serializers.CharField(max_length=80, required=False, allow_blank=True)
    groups_claim = serializers.CharField(max_length=80, required=False, allow_blank=True)
    unix_name_claim = serializers.CharField(max_length=80, required=False, allow_blank=True)
    home_claim = serializers.CharField(max_length=80, required=False, allow_blank=True)
    ca_certificates = serializers.CharField(max_length=100_000, required=False, allow_blank=True)
    active = serializers.BooleanField(required=False)
    creates_accounts = serializers.BooleanField(required=False)


class NewProvider(ProviderFields):
    slug = serializers.CharField(max_length=40, required=False)


class ProviderWish(ProviderFields):
    name = serializers.CharField(max_length=80, required=False)
    issuer = serializers.CharField(max_length=300, required=False)
    client_id = serializers.CharField(max_length=200, required=False)


class ConnectionTestShape(ResponseSerializer):
    passed = serializers.BooleanField()
    text = serializers.CharField(help_text="what was found, or why the provider cannot be used")
    algorithms = serializers.ListField(child=serializers.CharField(), help_text="algorithms of the keys")


class LocalSignInWish(AccountReasonWish):
    allowed = serializers.BooleanField()


class RuleFields(StrictSerializer):
    provider = serializers.CharField(max_length=40)
    claim = serializers.CharField(max_length=80)
    value = serializers.CharField(max_length=200)
    team = serializers.CharField(max_length=100, required=False, allow_blank=True)
    lead = serializers.BooleanField(required=False)
    role = serializers.ChoiceField(choices=[*ROLES, ""], required=False)


class NewRule(RuleFields):
    why = serializers.CharField(max_length=1000, required=False, allow_blank=True, default="")


class RulesPreviewWish(StrictSerializer):
    add = RuleFields(required=False, help_text="an additional rule")
    remove = serializers.IntegerField(
        required=False, min_value=1, max_value=2**63 - 1, help_text="the id of a rule"
    )


class RightsChangeShape(ResponseSerializer):
    username = serializers.CharField()
    joins = serializers.DictField(child=serializers.CharField(), help_text="role in each team that they join")
    leaves = serializers.ListField(child=serializers.CharField(), help_text="slugs of teams")
    gains = serializers.ListField(child=serializers.CharField(), help_text="roles in the organisation")
    loses = serializers.ListField(child=serializers.CharField(), help_text="roles in the organisation")
    kept = serializers.ListField(child=serializers.CharField(), help_text="roles that cannot change")


class RulesEffectShape(ResponseSerializer):
    text = serializers.CharField()
    people = serializers.IntegerField(help_text="people whose claims are known")
    joins = serializers.IntegerField(help_text="people who would get a team or a role")
    leaves = serializers.IntegerField(help_text="people who would lose a team or a role")
    changes = RightsChangeShape(many=True)


class IdentityShape(ResponseSerializer):
    id = serializers.IntegerField()
    provider = serializers.CharField()
    subject = serializers.CharField(source="uid", help_text="the id of the person at the provider")
    last_sign_in = serializers.DateTimeField(source="last_login")


class IdentitiesShape(ResponseSerializer):
    results = IdentityShape(many=True)
