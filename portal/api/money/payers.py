"""Implement the endpoints of refund limits and the payer of idle time."""

from __future__ import annotations

from datetime import date
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery
from portal.api.base.views import ApiView
from portal.api.money import serializers as shapes
from portal.models import TokenScope
from portal.reads.money import chargeback as reads
from portal.reads.money.charged_months import named_month
from portal.services.money import months, refund_limits
from telemetry.models import RefundLimit


class RefundLimitListView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="refund_limits_list",
        parameters=[PageQuery],
        responses=page_schema(shapes.RefundLimitShape),
    )
    def get(self, request: Request) -> Response:
        """List the refund limits of the pools that you may see, newest first.

        Before its first limit, a pool has a limit of 60 minutes.
        """
        rows = RefundLimit.objects.filter(pool__in=policy.visible_pools(self.actor)).select_related("pool")
        return self.list_response(
            rows.order_by("-valid_from", "-pk"), shapes.RefundLimitShape, self.validated_query(PageQuery)
        )

    @extend_schema(
        operation_id="refund_limits_set",
        request=shapes.RefundLimitWish,
        responses={201: shapes.RefundLimitShape},
    )
    def post(self, request: Request) -> Response:
        """Set a pool's refund limit from a date on: the maximum minutes refunded when work is lost."""
        given = self.validated_body(shapes.RefundLimitWish)
        given["pool"] = lookups.visible_pool(self.actor, given["pool"])
        return self.object_response(
            refund_limits.set_refund_limit(**self.service_context, **given), shapes.RefundLimitShape, 201
        )


class IdlePayerView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(operation_id="idle_payer_read", responses=shapes.IdlePayerShape)
    def get(self, request: Request, month: str) -> Response:
        """Return the payer of a month's idle time.

        Before the month is closed, also return the amounts that teams would pay with each choice.
        """
        policy.require(self.actor, "charges.see_all")
        return self.object_response(_idle_payer_of(named_month(month)), shapes.IdlePayerShape)

    @extend_schema(
        operation_id="idle_payer_set", request=shapes.IdlePayerWish, responses=shapes.IdlePayerShape
    )
    def put(self, request: Request, month: str) -> Response:
        """Choose who pays for the idle time of a month that is not closed."""
        given = self.validated_body(shapes.IdlePayerWish)
        first_day = named_month(month)
        months.set_idle_payer(**self.service_context, month=first_day, **given)
        return self.object_response(_idle_payer_of(first_day), shapes.IdlePayerShape)


def _idle_payer_of(month: date) -> dict[str, Any]:
    statement = reads.statement_of(month)
    closed = statement is not None and statement.state == "closed"
    return {
        "month": month,
        "payer": statement.idle_payer if statement is not None else "operator",
        "fixed": closed,
        "effects": [] if closed else reads.idle_payer_effects(month),
    }
