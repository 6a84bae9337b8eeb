"""Implement the endpoints of the billing modes of teams."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.fields import ResponseSerializer, slug_field
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery, WhyBody
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.services.money import billing_modes
from telemetry.models import BillingMode


class BillingModeShape(ResponseSerializer):
    team = serializers.CharField(source="team.slug")
    mode = serializers.ChoiceField(choices=BillingMode.values)
    first_month = serializers.DateField(help_text="first day of the first month in this mode")
    created_at = serializers.DateTimeField()
    created_by = serializers.CharField(source="created_by.username")


class BillingModeWish(WhyBody):
    team = slug_field()
    mode = serializers.ChoiceField(choices=BillingMode.values)
    first_month = serializers.DateField(help_text="first day of a month that is not closed")


class BillingModeListView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="billing_modes_list", parameters=[PageQuery], responses=page_schema(BillingModeShape)
    )
    def get(self, request: Request) -> Response:
        """List the billing modes of teams, newest first. A team without one has chargeback."""
        policy.require(self.actor, "charges.see_all")
        rows = billing_modes.billing_modes()
        return self.list_response(rows, BillingModeShape, self.validated_query(PageQuery))

    @extend_schema(
        operation_id="billing_modes_set", request=BillingModeWish, responses={201: BillingModeShape}
    )
    def post(self, request: Request) -> Response:
        """Set whether the charges of a team are invoiced, starting with a month that is not closed."""
        given = self.validated_body(BillingModeWish)
        team = lookups.visible_team(self.actor, given.pop("team"))
        row = billing_modes.set_billing_mode(**self.service_context, team=team, **given)
        return self.object_response(row, BillingModeShape, 201)
