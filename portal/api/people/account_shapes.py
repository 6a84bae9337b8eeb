"""Define the serializers of accounts and of the changes that protect them."""

from __future__ import annotations

from rest_framework import serializers

from portal.api.base.fields import JsonObject, ResponseSerializer, numbers_field
from portal.api.base.serializers import StrictSerializer
from portal.api.people.serializers import RoleShape, TokenShape
from portal.models import LeaverWork
from portal.wording.people.account_texts import ACCOUNT_VERBS


class PersonShape(ResponseSerializer):
    username = serializers.CharField()
    name = serializers.CharField(source="get_full_name")
    active = serializers.BooleanField(source="is_active", help_text="false: the account is closed")
    operator = serializers.BooleanField()
    finance = serializers.BooleanField()
    auditor = serializers.BooleanField()
    teams = RoleShape(many=True, source="memberships")


class PersonLinkShape(ResponseSerializer):
    username = serializers.CharField()
    link = serializers.CharField(
        help_text="sets a password, once and within 3 days. Shown only once. Empty while passwords are off."
    )


class NewPerson(StrictSerializer):
    username = serializers.CharField(max_length=150)
    email = serializers.CharField(max_length=254)
    full_name = serializers.CharField(max_length=150, required=False, allow_blank=True)
    operator = serializers.BooleanField(required=False)
    finance = serializers.BooleanField(required=False)
    auditor = serializers.BooleanField(required=False)


class AccountReasonWish(StrictSerializer):
    why = serializers.CharField(max_length=1000, required=False, allow_blank=True, default="")


class ProtectWish(AccountReasonWish):
    revoke_tokens = serializers.BooleanField(required=False, help_text="also revoke the API tokens")


class RolesWish(ProtectWish):
    operator = serializers.BooleanField(required=False)
    finance = serializers.BooleanField(required=False)
    auditor = serializers.BooleanField(required=False)


class RemovePersonWish(AccountReasonWish):
    work = serializers.ChoiceField(
        choices=LeaverWork.choices,
        required=False,
        help_text="what happens to the work and the reservations; default: the setting leaver_work",
    )
    stop_work = serializers.BooleanField(
        required=False, help_text="for older clients: true is work=stop, false is work=hand_over"
    )

    def validate(self, attrs: JsonObject) -> JsonObject:
        """Replace ``stop_work`` by ``work``."""
        stops = attrs.pop("stop_work", None)
        if stops is not None:
            attrs.setdefault("work", str(LeaverWork.STOP if stops else LeaverWork.HAND_OVER))
        return attrs


class AddressWish(ProtectWish):
    email = serializers.CharField(max_length=254)


class RevokeWish(AccountReasonWish):
    tokens = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=2**63 - 1),
        required=False,
        max_length=1000,
        help_text="ids of tokens; empty: all tokens in force",
    )


class EffectQuery(StrictSerializer):
    verb = serializers.ChoiceField(choices=[verb.replace("_", "-") for verb in ACCOUNT_VERBS])


class AccountWorkShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    state = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")


class AccountEffectShape(ResponseSerializer):
    verb = serializers.CharField()
    name = serializers.CharField()
    text = serializers.CharField()
    work_text = serializers.CharField(help_text="what happens to the work of the person")
    running = AccountWorkShape(many=True)
    waiting = AccountWorkShape(many=True)
    workspaces = serializers.IntegerField(help_text="open workspace sessions")
    tokens = TokenShape(many=True, help_text="API tokens in force")
    second_factor = serializers.BooleanField()
    code = serializers.CharField()
    refused = serializers.CharField(help_text="why it would be refused now; empty: it would not")
    numbers = numbers_field()


class PersonTokensShape(ResponseSerializer):
    results = TokenShape(many=True)


class RevokedShape(ResponseSerializer):
    revoked = serializers.ListField(child=serializers.CharField(), help_text="names of the tokens")


class StoppedShape(ResponseSerializer):
    stopped = serializers.IntegerField(help_text="number of workloads")
