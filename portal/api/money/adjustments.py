"""Implement the endpoints of credits and manual adjustments."""

from __future__ import annotations

from collections.abc import Callable

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.base import lookups
from portal.api.base.fields import CurrencyAmount, JsonObject, ResponseSerializer, slug_field
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery, StrictSerializer
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.reads.money.adjustments import visible_adjustments
from portal.reads.money.charge_filters import checked_cost_centre
from portal.reads.money.charged_months import requested_month
from portal.services.money.adjusting import decisions
from portal.services.money.adjusting.drafts import AdjustmentRequest
from telemetry.models import Adjustment, AdjustmentKindChoices, AdjustmentState

MAX_ID = 2**63 - 1


class AdjustmentQuery(PageQuery):
    month = serializers.CharField(max_length=20, required=False, help_text="such as 2026-10")
    state = serializers.ChoiceField(choices=AdjustmentState.values, required=False)
    cost_centre = serializers.CharField(max_length=40, required=False)


class StatementEffectShape(ResponseSerializer):
    before = CurrencyAmount(help_text="total of the cost centre's statement now")
    after = CurrencyAmount(help_text="the total after the approval")
    currency = serializers.CharField()


class AdjustmentShape(ResponseSerializer):
    number = serializers.CharField(help_text="such as 2026-10-A1")
    month = serializers.DateField(source="statement.month", help_text="first day of the statement's month")
    kind = serializers.ChoiceField(choices=AdjustmentKindChoices.values)
    state = serializers.ChoiceField(choices=AdjustmentState.values)
    cost_centre = serializers.CharField()
    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    project = serializers.SerializerMethodField(help_text="team/project; null: none")
    amount = CurrencyAmount(help_text="negative: less to pay")
    currency = serializers.CharField()
    reason = serializers.CharField()
    credited_month = serializers.DateField(
        source="credited.month",
        allow_null=True,
        default=None,
        help_text="month of the charges that a credit gives back",
    )
    charge = serializers.IntegerField(source="charge_id", allow_null=True, help_text="credited charge line")
    withdraws = serializers.CharField(
        source="withdraws.number",
        allow_null=True,
        default=None,
        help_text="number of the adjustment that this one withdraws",
    )
    author = serializers.CharField(source="author_name")
    proposed_at = serializers.DateTimeField()
    decided_by = serializers.CharField(source="decided_by_name", allow_blank=True)
    decided_at = serializers.DateTimeField(allow_null=True)
    decision_note = serializers.CharField(allow_blank=True)

    def get_project(self, row: Adjustment) -> str | None:
        """Return the project as ``team/project``."""
        return f"{row.project.team.slug}/{row.project.slug}" if row.project else None


class AdjustmentDetailShape(AdjustmentShape):
    effect = serializers.SerializerMethodField(
        help_text="effect on the statement if it is approved; null after the decision"
    )

    @extend_schema_field(StatementEffectShape(allow_null=True))
    def get_effect(self, row: Adjustment) -> JsonObject | None:
        """Return the total of the statement before and after the approval.

        Only people who see all charges see proposals. Others must not see the total of a cost centre.
        """
        if row.state != AdjustmentState.PROPOSED:
            return None
        return dict(StatementEffectShape(decisions.effect_of(row)).data)


class AdjustmentWish(StrictSerializer):
    kind = serializers.ChoiceField(choices=AdjustmentKindChoices.values, default="adjustment")
    month = serializers.DateField(help_text="first day of a month that is not closed")
    amount = serializers.CharField(max_length=30, help_text="signed; a credit is negative")
    reason = serializers.CharField(max_length=1000)
    cost_centre = serializers.CharField(
        max_length=40, required=False, help_text="required unless charge or line is given"
    )
    team = slug_field(required=False, allow_null=True)
    project = slug_field(required=False, allow_null=True, help_text="team/project")
    charge = serializers.IntegerField(
        min_value=1, max_value=MAX_ID, required=False, allow_null=True, help_text="charge line of a credit"
    )
    line = serializers.IntegerField(
        min_value=1, max_value=MAX_ID, required=False, allow_null=True, help_text="statement line of a credit"
    )
    credited_month = serializers.DateField(
        required=False,
        allow_null=True,
        help_text="for a credit of all charges of the cost centre: their month",
    )


class AdjustmentDecision(StrictSerializer):
    note = serializers.CharField(max_length=1000, required=False, allow_blank=True, default="")


class AdjustmentRejection(StrictSerializer):
    note = serializers.CharField(max_length=1000)


class AdjustmentWithdrawal(StrictSerializer):
    reason = serializers.CharField(max_length=1000)


class AdjustmentListView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="adjustments_list",
        parameters=[AdjustmentQuery],
        responses=page_schema(AdjustmentShape),
    )
    def get(self, request: Request) -> Response:
        """List the credits and manual adjustments that you may see, newest first.

        Finance and auditors see all; others see the approved ones on charges that they see.
        """
        query = self.validated_query(AdjustmentQuery)
        rows = visible_adjustments(self.actor)
        if "month" in query:
            rows = rows.filter(statement__month=requested_month(query["month"], self.now))
        if "state" in query:
            rows = rows.filter(state=query["state"])
        if "cost_centre" in query:
            rows = rows.filter(cost_centre=checked_cost_centre(self.actor, query["cost_centre"]))
        return self.list_response(rows, AdjustmentShape, query)

    @extend_schema(
        operation_id="adjustments_propose", request=AdjustmentWish, responses={201: AdjustmentDetailShape}
    )
    def post(self, request: Request) -> Response:
        """Propose a credit or a manual adjustment. It counts when another person of finance approves it."""
        given = self.validated_body(AdjustmentWish)
        team, project = given.pop("team", None), given.pop("project", None)
        wanted = AdjustmentRequest(
            **given,
            team=lookups.visible_team(self.actor, team) if team else None,
            project=lookups.visible_project(self.actor, project) if project else None,
        )
        row = decisions.propose_adjustment(**self.service_context, request=wanted)
        return self.object_response(row, AdjustmentDetailShape, 201)


class AdjustmentDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="adjustments_read", responses=AdjustmentDetailShape)
    def get(self, request: Request, number: str) -> Response:
        """Return one credit or adjustment, with its effect on the statement of its cost centre."""
        return self.object_response(_adjustment(self, number), AdjustmentDetailShape)


class ApproveAdjustmentView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="adjustments_approve", request=AdjustmentDecision, responses=AdjustmentDetailShape
    )
    def post(self, request: Request, number: str) -> Response:
        """Approve a proposed credit or adjustment. Its author may not approve it."""
        return _decide(self, number, AdjustmentDecision, decisions.approve_adjustment)


class RejectAdjustmentView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="adjustments_reject", request=AdjustmentRejection, responses=AdjustmentDetailShape
    )
    def post(self, request: Request, number: str) -> Response:
        """Reject a proposed credit or adjustment."""
        return _decide(self, number, AdjustmentRejection, decisions.reject_adjustment)


class WithdrawAdjustmentView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="adjustments_withdraw", request=AdjustmentWithdrawal, responses=AdjustmentDetailShape
    )
    def post(self, request: Request, number: str) -> Response:
        """Withdraw a proposed credit or adjustment, or propose the opposite amount of an approved one."""
        return _decide(self, number, AdjustmentWithdrawal, decisions.withdraw_adjustment)


def _decide(
    view: ApiView, number: str, body: type[StrictSerializer], verb: Callable[..., Adjustment]
) -> Response:
    """Carry out a decision with the fields of ``body``, and return the adjustment that it changed or made."""
    row = verb(**view.service_context, adjustment=_adjustment(view, number), **view.validated_body(body))
    return view.object_response(row, AdjustmentDetailShape)


def _adjustment(view: ApiView, number: str) -> Adjustment:
    return get_visible_or_404(visible_adjustments(view.actor), number=number)
