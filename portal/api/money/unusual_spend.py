"""Implement the endpoints of unusual spend."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import CurrencyAmount, ResponseSerializer
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import ApiView
from portal.api.money.serializers import ChargeScopeShape
from portal.models import TokenScope, User
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.chargeback import statement_of
from portal.reads.money.charged_months import requested_month
from portal.reads.money.unusual_spend import unusual_overview
from portal.services.money.unusual_spend import ask_about_spend, explain_unusual_spend
from telemetry.models import StatementState, UnusualSpend, UnusualSpendKind


class ExplanationShape(ResponseSerializer):
    """The reason that a person gave for unusual spend."""

    reason = serializers.CharField()
    author = serializers.CharField(source="author.username")
    at = serializers.DateTimeField()


class UnusualSpendShape(ResponseSerializer):
    """Spend that a rule found unusual."""

    id = serializers.IntegerField(source="spend.pk")
    kind = serializers.ChoiceField(choices=UnusualSpendKind.choices, source="spend.kind")
    title = serializers.CharField()
    detail = serializers.CharField()
    subject = serializers.CharField(source="spend.subject")
    team = serializers.CharField(source="spend.team.slug", allow_null=True, default=None)
    first_day = serializers.DateField(source="spend.first_day")
    last_day = serializers.DateField(source="spend.last_day")
    currency = serializers.CharField(source="spend.currency")
    amount = CurrencyAmount(source="spend.amount")
    usual = CurrencyAmount(source="spend.usual", allow_null=True)
    needs_explanation = serializers.BooleanField(
        help_text="a person must explain it; stays true when it is explained"
    )
    explanation = ExplanationShape(allow_null=True)


class UnusualSpendListShape(ResponseSerializer):
    """The unusual spend of a month that you may see."""

    month = serializers.DateField()
    searched_at = serializers.DateTimeField(allow_null=True, help_text="null: not searched yet")
    scope = ChargeScopeShape()
    results = UnusualSpendShape(many=True)


class ExplainWish(StrictSerializer):
    reason = serializers.CharField(max_length=1000)


class QuestionWish(StrictSerializer):
    question = serializers.CharField(max_length=1000)


class QuestionShape(ResponseSerializer):
    asked = serializers.ListField(child=serializers.CharField(), help_text="people who get a notice")


class UnusualSpendListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="unusual_spend_list", responses=UnusualSpendListShape)
    def get(self, request: Request, month: str) -> Response:
        """List the unusual spend of a month that you may see, with evidence and reasons."""
        first_day = requested_month(month, self.now)
        statement = statement_of(first_day)
        closed = statement is not None and statement.state == StatementState.CLOSED
        found = unusual_overview(self.actor, first_day, closed=closed)
        answer: dict[str, Any] = {
            "month": first_day,
            "searched_at": found.searched_at,
            "scope": charge_scope(self.actor),
            "results": found.rows,
        }
        return self.object_response(answer, UnusualSpendListShape)


class ExplainUnusualSpendView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="unusual_spend_explain", request=ExplainWish, responses={201: ExplanationShape}
    )
    def post(self, request: Request, id: int) -> Response:
        """Give the reason for unusual spend. For finance, and for the leads of the team."""
        spend = _visible_spend_or_404(self.actor, id)
        given = self.validated_body(ExplainWish)
        row = explain_unusual_spend(**self.service_context, spend=spend, **given)
        return self.object_response(row, ExplanationShape, 201)


class AskAboutSpendView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(operation_id="unusual_spend_ask", request=QuestionWish, responses={201: QuestionShape})
    def post(self, request: Request, id: int) -> Response:
        """Ask the person of unusual spend and the leads of its team for the reason, with a notice."""
        spend = _visible_spend_or_404(self.actor, id)
        given = self.validated_body(QuestionWish)
        people = ask_about_spend(**self.service_context, spend=spend, **given)
        asked = [each.get_username() for each in people]
        return self.object_response({"asked": asked}, QuestionShape, 201)


def _visible_spend_or_404(viewer: User, pk: int) -> UnusualSpend:
    spend = policy.visible_unusual_spend(viewer).select_related("statement").filter(pk=pk).first()
    if spend is None:
        raise Http404
    return spend
