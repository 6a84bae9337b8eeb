"""Implement the endpoint of the advice for repeated work, from all ended runs of a period."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.base.fields import CurrencyAmount, JsonObject, ResponseSerializer
from portal.api.base.periods import checked_period
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import ApiView
from portal.errors import Invalid
from portal.models import TokenScope
from portal.reads.utilisation.right_sizing import SizingAdvice, sizing_advice
from portal.wording.pages import api_answers
from telemetry.core.capacity.right_sizing import SAVING_CODES
from telemetry.money.billing_months import month_of
from telemetry.money.pricing.billing_currencies import currency_of_month
from telemetry.reads.usage_filters import UsageFilters

MAX_PERIOD = timedelta(days=400)
DEFAULT_PERIOD = timedelta(days=30)


class RightSizingQuery(StrictSerializer):
    start = serializers.DateTimeField(required=False, help_text="default: 30 days ago")
    end = serializers.DateTimeField(required=False, help_text="default: now; required with a start")


class SizingAdviceShape(ResponseSerializer):
    """Advice for runs of the same project, owner and name."""

    code = serializers.ChoiceField(choices=SAVING_CODES, source="sizing.code")
    headline = serializers.CharField()
    evidence = serializers.CharField()
    name = serializers.CharField(source="sizing.name", help_text="without a number at its end")
    team = serializers.CharField(source="project.team.slug")
    project = serializers.CharField(source="project.slug")
    person = serializers.CharField()
    numbers = serializers.SerializerMethodField(help_text="numbers of the run that needed most")
    runs = serializers.IntegerField(source="sizing.runs", help_text="number of runs with a report")
    advised_runs = serializers.IntegerField(source="sizing.advised_runs")
    held_hours = serializers.FloatField(source="sizing.held_hours", help_text="GPU-hours of the advised runs")
    saved_hours = serializers.FloatField(source="sizing.saved_hours")
    saved = CurrencyAmount(
        allow_null=True, help_text="of the period; null: the cost of a run is unknown, or you may not see it"
    )
    saved_per_month = CurrencyAmount(allow_null=True)
    currency = serializers.CharField()

    def get_numbers(self, advice: SizingAdvice) -> dict[str, Any]:
        """Return the numbers of the advice."""
        return dict(advice.sizing.numbers)


class RightSizingAnswer(ResponseSerializer):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    advice = SizingAdviceShape(many=True, help_text="the largest saving first")


class RightSizingView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="right_sizing", parameters=[RightSizingQuery], responses=RightSizingAnswer)
    def get(self, request: Request) -> Response:
        """Return advice on what to request next time, from the reports of ended runs.

        The runs are your own and those of the teams that you lead.
        """
        filters = self._filters(self.validated_query(RightSizingQuery))
        answer = {
            "start": filters.start,
            "end": filters.end,
            "advice": sizing_advice(self.actor, filters, self.now),
        }
        return self.object_response(answer, RightSizingAnswer)

    def _filters(self, query: JsonObject) -> UsageFilters:
        if "start" in query and "end" not in query:
            raise Invalid({"end": api_answers.PERIOD_WITHOUT_END}, {"end": ""})
        end = query.get("end", self.now)
        start, end = checked_period(query.get("start", end - DEFAULT_PERIOD), end, MAX_PERIOD)
        return UsageFilters(start=start, end=end, currency=currency_of_month(month_of(self.now)))
