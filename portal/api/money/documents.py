"""Implement the endpoints of the statements of cost centres, and of the settings of billing."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import CurrencyAmount, ResponseSerializer
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery, WhyBody
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.reads.money import documents as reads
from portal.reads.money.charge_filters import checked_cost_centre
from portal.reads.money.charged_months import requested_month
from portal.services.money import billing_settings
from telemetry.models import BillingZone
from telemetry.reads.statement_document import PARTS, statement_document


class DocumentQuery(PageQuery):
    month = serializers.CharField(max_length=20, required=False, help_text="such as 2026-03")
    cost_centre = serializers.CharField(max_length=40, required=False)


class CostCentreStatementShape(ResponseSerializer):
    number = serializers.CharField(help_text="such as 2026-10/CC-4110/1")
    month = serializers.DateField(source="statement.month", help_text="first day of the month")
    cost_centre = serializers.CharField()
    name = serializers.CharField()
    postal_address = serializers.CharField()
    purchase_order = serializers.CharField()
    issuer = serializers.CharField(help_text="name of the organisation at the close")
    tax_text = serializers.CharField()
    currency = serializers.CharField()
    total = CurrencyAmount()
    budget = CurrencyAmount(allow_null=True, help_text="budget of the month; null: none")
    due_on = serializers.DateField()
    closed_at = serializers.DateTimeField(source="statement.closed_at")
    digest = serializers.CharField(source="statement.digest", help_text="digest of the month")


class DocumentRowShape(ResponseSerializer):
    """One row of a statement."""

    project = serializers.CharField()
    person = serializers.CharField()
    workload = serializers.CharField(
        help_text="name of the workload; empty: the row has no workload, or several"
    )
    workloads = serializers.IntegerField(help_text="number of workloads")
    workload_type = serializers.CharField()
    part = serializers.ChoiceField(choices=list(PARTS))
    model = serializers.CharField()
    corrected_month = serializers.DateField(
        allow_null=True, help_text="closed month that the row corrects; null: none"
    )
    gpu_hours = serializers.DecimalField(max_digits=18, decimal_places=3)
    price = serializers.DecimalField(
        max_digits=12, decimal_places=6, allow_null=True, help_text="mean per GPU-hour; null: none"
    )
    amount = CurrencyAmount()


class DocumentAdjustmentShape(ResponseSerializer):
    """A credit or a manual adjustment on a statement."""

    number = serializers.CharField(help_text="such as 2026-10-A1")
    kind = serializers.CharField(help_text="credit or adjustment")
    reason = serializers.CharField()
    author = serializers.CharField()
    approver = serializers.CharField()
    credited_month = serializers.DateField(allow_null=True, help_text="month of the credited charges")
    amount = CurrencyAmount(help_text="negative: less to pay")


class DocumentShape(ResponseSerializer):
    """A statement. The amounts of ``rows``, ``corrections`` and ``adjustments`` sum to the total."""

    statement = CostCentreStatementShape()
    rows = DocumentRowShape(many=True)
    corrections = DocumentRowShape(many=True)
    adjustments = DocumentAdjustmentShape(many=True)
    shown = CurrencyAmount(help_text="charge of teams with showback, which is not in the total")
    coverage = serializers.FloatField(allow_null=True, help_text="measured part of the held time, 0 to 1")


class BillingShape(ResponseSerializer):
    """The settings of billing."""

    tax_text = serializers.CharField()
    payment_days = serializers.IntegerField(help_text="days from a close until its statements are due")
    two_step_close = serializers.BooleanField(help_text="two people close a month")


class BillingWish(WhyBody):
    tax_text = serializers.CharField(max_length=300, required=False, allow_blank=True)
    payment_days = serializers.IntegerField(min_value=0, max_value=365, required=False)
    two_step_close = serializers.BooleanField(required=False)


class BillingZoneShape(ResponseSerializer):
    first_month = serializers.DateField(help_text="first day of the first month in this zone")
    time_zone = serializers.CharField()
    created_at = serializers.DateTimeField()
    created_by = serializers.CharField(source="created_by.username", allow_null=True, default=None)


class BillingZoneWish(WhyBody):
    first_month = serializers.DateField(help_text="first day of a month in which nothing is charged yet")
    time_zone = serializers.CharField(max_length=60, help_text="such as Europe/Berlin")


class CostCentreStatementListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="cost_centre_statements_list",
        parameters=[DocumentQuery],
        responses=page_schema(CostCentreStatementShape),
    )
    def get(self, request: Request) -> Response:
        """List the statements of cost centres that you may see, newest month first."""
        query = self.validated_query(DocumentQuery)
        month = requested_month(query["month"], self.now) if "month" in query else None
        rows = reads.visible_documents(self.actor, month)
        if "cost_centre" in query:
            rows = rows.filter(cost_centre=checked_cost_centre(self.actor, query["cost_centre"]))
        return self.list_response(rows, CostCentreStatementShape, query)


class CostCentreStatementView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="cost_centre_statements_read", responses=DocumentShape)
    def get(self, request: Request, number: str) -> Response:
        """Return the statement of a cost centre with its rows."""
        row = get_visible_or_404(reads.visible_documents(self.actor), number=number)
        return self.object_response(statement_document(row), DocumentShape)


class BillingSettingsView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(operation_id="billing_read", responses=BillingShape)
    def get(self, request: Request) -> Response:
        """Return the settings of billing. For finance and auditors."""
        policy.require(self.actor, "charges.see_all")
        return self.object_response(billing_settings.billing_organisation(), BillingShape)

    @extend_schema(operation_id="billing_change", request=BillingWish, responses=BillingShape)
    def put(self, request: Request) -> Response:
        """Change settings of billing. They apply to months that are closed later."""
        given: dict[str, Any] = self.validated_body(BillingWish)
        organisation = billing_settings.billing_organisation()
        present = {name: getattr(organisation, name) for name in billing_settings.FIELDS}
        changed = billing_settings.change_billing_settings(**self.service_context, **{**present, **given})
        return self.object_response(changed, BillingShape)


class BillingZoneListView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="billing_zones_list", parameters=[PageQuery], responses=page_schema(BillingZoneShape)
    )
    def get(self, request: Request) -> Response:
        """List the time zones of billing months, newest first. Before the first one, months are in UTC."""
        policy.require(self.actor, "charges.see_all")
        rows = BillingZone.objects.select_related("created_by").order_by("-first_month")
        return self.list_response(rows, BillingZoneShape, self.validated_query(PageQuery))

    @extend_schema(
        operation_id="billing_zones_set", request=BillingZoneWish, responses={201: BillingZoneShape}
    )
    def post(self, request: Request) -> Response:
        """Set the time zone of billing months from a month on. This month must have no charges yet."""
        given = self.validated_body(BillingZoneWish)
        row = billing_settings.set_billing_zone(**self.service_context, **given)
        return self.object_response(row, BillingZoneShape, 201)
