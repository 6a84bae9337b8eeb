"""Define the serializers of cost centres and of their shares."""

from __future__ import annotations

from rest_framework import serializers

from portal.api.base.fields import CurrencyAmount, ResponseSerializer, slug_field
from portal.api.base.serializers import StrictSerializer
from portal.services.money.cost_centres.directory import (
    MAX_ADDRESS_LENGTH,
    MAX_NAME_LENGTH,
    MAX_PURCHASE_ORDER_LENGTH,
)
from telemetry.models import CostCentreShare

PERCENT_HELP = "more than 0, up to 100, with at most two decimals"


class CostCentreShape(ResponseSerializer):
    code = serializers.CharField()
    name = serializers.CharField(allow_blank=True)
    postal_address = serializers.CharField(allow_blank=True)
    purchase_order = serializers.CharField(allow_blank=True, help_text="reference that statements show")
    retired_from = serializers.DateTimeField(allow_null=True, help_text="it pays until this time")


class CostCentreWish(StrictSerializer):
    code = serializers.CharField(max_length=40)
    name = serializers.CharField(max_length=MAX_NAME_LENGTH, required=False, allow_blank=True)
    postal_address = serializers.CharField(max_length=MAX_ADDRESS_LENGTH, required=False, allow_blank=True)
    purchase_order = serializers.CharField(
        max_length=MAX_PURCHASE_ORDER_LENGTH, required=False, allow_blank=True
    )


class CostCentreChange(StrictSerializer):
    name = serializers.CharField(max_length=MAX_NAME_LENGTH, required=False, allow_blank=True)
    postal_address = serializers.CharField(max_length=MAX_ADDRESS_LENGTH, required=False, allow_blank=True)
    purchase_order = serializers.CharField(
        max_length=MAX_PURCHASE_ORDER_LENGTH, required=False, allow_blank=True
    )


class CostCentreRetirement(StrictSerializer):
    retired_from = serializers.DateTimeField(allow_null=True, help_text="null takes the retirement back")
    why = serializers.CharField(max_length=300, required=False, allow_blank=True)


class CostCentreShareShape(ResponseSerializer):
    project = serializers.SerializerMethodField(help_text="team/project; null for a dedicated pool")
    pool = serializers.CharField(
        source="pool.slug",
        allow_null=True,
        default=None,
        help_text="dedicated pool whose unused time it pays",
    )
    code = serializers.CharField()
    percent = serializers.DecimalField(max_digits=5, decimal_places=2)
    valid_from = serializers.DateTimeField()
    created_at = serializers.DateTimeField(
        help_text="of several splits with one valid_from, the newest created_at applies"
    )

    def get_project(self, share: CostCentreShare) -> str | None:
        """Return the project as ``team/project``."""
        project = share.project
        return f"{project.team.slug}/{project.slug}" if project else None


class GivenShare(StrictSerializer):
    code = serializers.CharField(max_length=40)
    percent = serializers.CharField(max_length=20, help_text=PERCENT_HELP)


class SplitWish(StrictSerializer):
    project = slug_field(required=False, allow_null=True)
    pool = slug_field(required=False, allow_null=True)
    shares = GivenShare(many=True, help_text="they sum to exactly 100 %")
    valid_from = serializers.DateTimeField(help_text="may be past, in a month that is not closed")
    why = serializers.CharField(max_length=300, required=False, allow_blank=True)


class MovedAmountShape(ResponseSerializer):
    code = serializers.CharField(
        allow_blank=True, help_text="code of the cost centre; empty: for time without one"
    )
    currency = serializers.CharField()
    before = CurrencyAmount()
    after = CurrencyAmount()
    moved = CurrencyAmount(help_text="after minus before")


class SplitPreviewShape(ResponseSerializer):
    amounts = MovedAmountShape(many=True, help_text="charged amounts that the split moves")
