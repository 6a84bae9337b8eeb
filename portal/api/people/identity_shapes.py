"""Define the serializers of identity providers, of rules about claims, and of connected identities."""

from __future__ import annotations

from rest_framework import serializers

from portal.api.base.fields import ResponseSerializer
from portal.api.base.serializers import StrictSerializer
from portal.api.people.account_shapes import AccountReasonWish
from portal.services.people.accounts import ROLES
from portal.sign_in.ldap.settings import GONE_RULES, GROUP_KINDS


class DirectoryShape(ResponseSerializer):
    url = serializers.CharField()
    start_tls = serializers.BooleanField()
    bind_dn = serializers.CharField(help_text="the service account")
    user_base = serializers.CharField()
    user_filter = serializers.CharField(help_text="people who match it may sign in")
    username_attribute = serializers.CharField()
    subject_attribute = serializers.CharField(help_text="the lasting id of a person")
    email_attribute = serializers.CharField()
    name_attribute = serializers.CharField()
    further_attributes = serializers.CharField(help_text="attributes for rules, with spaces between them")
    group_base = serializers.CharField()
    group_kind = serializers.CharField()
    when_gone = serializers.CharField(
        help_text="close or remove: what the sync does with people who are gone"
    )
    max_loss_percent = serializers.IntegerField(help_text="a sync that takes more from people is refused")


class ProviderShape(ResponseSerializer):
    slug = serializers.CharField()
    kind = serializers.CharField(help_text="oidc or ldap")
    name = serializers.CharField()
    directory = DirectoryShape(allow_null=True, help_text="null unless the kind is ldap")
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


class DirectoryWish(StrictSerializer):
    url = serializers.CharField(max_length=500, required=False)
    start_tls = serializers.BooleanField(required=False)
    bind_dn = serializers.CharField(max_length=500, required=False)
    user_base = serializers.CharField(max_length=500, required=False)
    user_filter = serializers.CharField(max_length=500, required=False)
    username_attribute = serializers.CharField(max_length=80, required=False)
    subject_attribute = serializers.CharField(max_length=80, required=False)
    email_attribute = serializers.CharField(max_length=80, required=False)
    name_attribute = serializers.CharField(max_length=80, required=False)
    further_attributes = serializers.CharField(max_length=500, required=False, allow_blank=True)
    group_base = serializers.CharField(max_length=500, required=False, allow_blank=True)
    group_kind = serializers.ChoiceField(choices=GROUP_KINDS, required=False)
    when_gone = serializers.ChoiceField(choices=GONE_RULES, required=False)
    max_loss_percent = serializers.IntegerField(required=False, min_value=1, max_value=100)


class ProviderFields(AccountReasonWish):
    name = serializers.CharField(max_length=80)
    issuer = serializers.CharField(max_length=300, required=False)
    client_id = serializers.CharField(max_length=200, required=False)
    directory = DirectoryWish(required=False, help_text="the settings of a provider of the kind ldap")
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
    kind = serializers.ChoiceField(choices=["oidc", "ldap"], required=False)


class ProviderWish(ProviderFields):
    name = serializers.CharField(max_length=80, required=False)


class ConnectionTestWish(StrictSerializer):
    username = serializers.CharField(
        max_length=150,
        required=False,
        allow_blank=True,
        help_text="a person of a directory, whose attributes and groups are returned",
    )


class RightsChangeShape(ResponseSerializer):
    username = serializers.CharField()
    joins = serializers.DictField(child=serializers.CharField(), help_text="role in each team that they join")
    leaves = serializers.ListField(child=serializers.CharField(), help_text="slugs of teams")
    gains = serializers.ListField(child=serializers.CharField(), help_text="roles in the organisation")
    loses = serializers.ListField(child=serializers.CharField(), help_text="roles in the organisation")
    kept = serializers.ListField(child=serializers.CharField(), help_text="roles that cannot change")


class ConnectionTestShape(ResponseSerializer):
    passed = serializers.BooleanField()
    text = serializers.CharField(help_text="what was found, or why the provider cannot be used")
    algorithms = serializers.ListField(child=serializers.CharField(), help_text="algorithms of the keys")
    claims = serializers.JSONField(help_text="attributes and groups of the person of a directory")
    granted = RightsChangeShape(help_text="what the rules would give to the person")


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


class SyncWish(StrictSerializer):
    allow_loss = serializers.BooleanField(
        required=False, help_text="sync although many people would lose their account or rights"
    )


class SyncPlanShape(ResponseSerializer):
    text = serializers.CharField()
    people = serializers.IntegerField(help_text="people who were compared")
    closes = serializers.ListField(child=serializers.CharField(), help_text="accounts that would be closed")
    kept = serializers.ListField(child=serializers.CharField(), help_text="the last operator, who stays")
    joins = serializers.IntegerField(help_text="people who would get a team or a role")
    leaves = serializers.IntegerField(help_text="people who would lose a team or a role")
    loses_too_many = serializers.BooleanField(help_text="a sync would be refused without allow_loss")
    problem = serializers.CharField(help_text="why the directory cannot be read; empty if it can")
    changes = RightsChangeShape(many=True)


class DirectorySyncShape(ResponseSerializer):
    provider = serializers.CharField()
    outcome = serializers.CharField(help_text="done; refused or failed: nothing was changed")
    text = serializers.CharField()
    people = serializers.IntegerField(help_text="people who were compared")
    closed = serializers.IntegerField(help_text="accounts that were closed, or would have been")
    joined = serializers.IntegerField(help_text="people who got a team or a role, or would have")
    left = serializers.IntegerField(help_text="people who lost a team or a role, or would have")
    created_at = serializers.DateTimeField()
