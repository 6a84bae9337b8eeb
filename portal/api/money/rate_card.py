"""Implement the endpoints of price factors and of the currency of months."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.base import lookups
from portal.api.base.fields import ResponseSerializer, slug_field
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery, StrictSerializer, WhyBody
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.services.money.billing_currency import change_currency
from portal.services.money.price_factors import set_price_factor
from portal.wording.formatting import PRIORITY_WORDS
from scheduler.models import WorkloadType
from scheduler.requests import PRIORITY_NAMES
from telemetry.core.currencies import decimals_of
from telemetry.models import BillingCurrency, PriceFactor


class PriceFactorShape(ResponseSerializer):
    pool = serializers.CharField(
        source="pool.slug", allow_null=True, default=None, help_text="null: every shared pool"
    )
    priority = serializers.SerializerMethodField(help_text="null: the factor is of a workload type")
    workload_type = serializers.CharField(allow_blank=True, help_text="empty: the factor is of a priority")
    factor = serializers.DecimalField(max_digits=7, decimal_places=4)
    valid_from = serializers.DateTimeField()
    note = serializers.CharField()

    @extend_schema_field(serializers.ChoiceField(choices=list(PRIORITY_NAMES), allow_null=True))
    def get_priority(self, row: PriceFactor) -> str | None:
        """Return the name of the priority."""
        return None if row.priority is None else PRIORITY_WORDS[row.priority]


class PriceFactorWish(StrictSerializer):
    pool = slug_field(required=False, allow_null=True, help_text="default: every shared pool")
    priority = serializers.ChoiceField(choices=list(PRIORITY_NAMES), required=False)
    workload_type = serializers.ChoiceField(choices=WorkloadType.values, required=False)
    factor = serializers.CharField(
        max_length=30, help_text="above 0, at most 100, with at most four decimals; 1 is the price itself"
    )
    valid_from = serializers.DateTimeField()
    note = serializers.CharField(max_length=300, required=False, allow_blank=True)


class BillingCurrencyShape(ResponseSerializer):
    currency = serializers.CharField()
    decimals = serializers.SerializerMethodField(help_text="decimals of its amounts: 0, 2 or 3")
    first_month = serializers.DateField(help_text="first day of the first month in this currency")

    def get_decimals(self, row: BillingCurrency) -> int:
        """Return the number of decimals of amounts in the currency."""
        return decimals_of(row.currency)


class BillingCurrencyWish(WhyBody):
    currency = serializers.CharField(max_length=10, help_text="a code of ISO 4217, such as EUR")
    first_month = serializers.DateField(help_text="first day of a month that is not charged yet")


class PriceFactorListView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="price_factors_list",
        parameters=[PageQuery],
        responses=page_schema(PriceFactorShape),
    )
    def get(self, request: Request) -> Response:
        """List the price factors of priorities and workload types, newest first."""
        rows = PriceFactor.objects.select_related("pool").order_by("-valid_from", "-pk")
        return self.list_response(rows, PriceFactorShape, self.validated_query(PageQuery))

    @extend_schema(
        operation_id="price_factors_set", request=PriceFactorWish, responses={201: PriceFactorShape}
    )
    def post(self, request: Request) -> Response:
        """Set the price factor of a priority or of a workload type from a date on."""
        given = self.validated_body(PriceFactorWish)
        given["pool"] = lookups.visible_pool(self.actor, given["pool"]) if given.get("pool") else None
        return self.object_response(set_price_factor(**self.service_context, **given), PriceFactorShape, 201)


class BillingCurrencyListView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="currencies_list",
        parameters=[PageQuery],
        responses=page_schema(BillingCurrencyShape),
    )
    def get(self, request: Request) -> Response:
        """List the currencies of months, newest first. Each applies until the next one."""
        rows = BillingCurrency.objects.order_by("-first_month")
        return self.list_response(rows, BillingCurrencyShape, self.validated_query(PageQuery))

    @extend_schema(
        operation_id="currencies_change",
        request=BillingCurrencyWish,
        responses={201: BillingCurrencyShape},
    )
    def post(self, request: Request) -> Response:
        """Charge in another currency from a month on. Each model needs a price in the new currency."""
        given = self.validated_body(BillingCurrencyWish)
        return self.object_response(
            change_currency(**self.service_context, **given), BillingCurrencyShape, 201
        )
