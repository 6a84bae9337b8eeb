"""Implement the endpoint of the figures above the table of the chargeback page."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import CurrencyAmount, ResponseSerializer
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import ApiView
from portal.api.money.serializers import ChargeScopeShape
from portal.models import TokenScope
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.charged_months import requested_month
from portal.reads.money.overview.curve import CurveDay
from portal.reads.money.overview.forecast import BUDGET_KINDS
from portal.reads.money.overview.of_viewer import overview_of_viewer
from portal.reads.money.overview.page import MonthChange
from portal.wording.chargeback.bridge_texts import STEP_MEANINGS, step_note
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.spending.spend_bridge import STEP_KINDS
from telemetry.money.billing_months import month_of


class MonthAmountShape(ResponseSerializer):
    """The amount on the statement of a month."""

    month = serializers.DateField()
    charged = CurrencyAmount()
    currency = serializers.CharField()
    closed = serializers.BooleanField()


class BridgeStepShape(ResponseSerializer):
    """One step from the amount before to the amount now."""

    kind = serializers.ChoiceField(
        choices=list(STEP_KINDS),
        help_text="; ".join(f"{kind}: {text}" for kind, text in STEP_MEANINGS.items()),
    )
    amount = CurrencyAmount()
    note = serializers.CharField(help_text="the evidence of the step; empty: none")


class MonthChangeShape(ResponseSerializer):
    """The change since the same days of the month before. The steps sum to ``now`` - ``before``."""

    until = serializers.DateField(
        source="days.now.until", allow_null=True, default=None, help_text="the day after the compared days"
    )
    until_before = serializers.DateField(
        source="days.before.until",
        allow_null=True,
        default=None,
        help_text="the day after the compared days of the month before",
    )
    before = CurrencyAmount(source="bridge.before", allow_null=True, default=None)
    now = CurrencyAmount(source="bridge.now", allow_null=True, default=None)
    steps = serializers.SerializerMethodField()
    missing = serializers.ChoiceField(
        choices=["", "first_day", "first_month", "currency"],
        help_text="why nothing is compared: no day is over, no month before, or it has another currency",
    )

    @extend_schema_field(BridgeStepShape(many=True))
    def get_steps(self, change: MonthChange) -> list[dict[str, Any]]:
        """Return the steps, or an empty list without a comparison."""
        if change.bridge is None or change.former is None:
            return []
        return [
            {
                "kind": step.kind,
                "amount": str(step.amount),
                "note": step_note(step, change.project_names, change.former.currency),
            }
            for step in change.bridge.steps
        ]


class SpendRangeShape(ResponseSerializer):
    """The expected amount at the end of the month, with the 10th and the 90th percentile."""

    expected = CurrencyAmount()
    low = CurrencyAmount()
    high = CurrencyAmount()
    past_periods = serializers.IntegerField(
        help_text="number of earlier months with a forecast at the same day"
    )
    past_inside = serializers.IntegerField(
        help_text="number of these months that ended inside the forecast range"
    )
    past_error = serializers.FloatField(
        allow_null=True,
        help_text="median error of these forecasts, as a part of the real amount; null: unknown",
    )


class BudgetSumShape(ResponseSerializer):
    """The budgets of the month of one kind of owner, as one amount."""

    kind = serializers.ChoiceField(choices=list(BUDGET_KINDS))
    names = serializers.ListField(child=serializers.CharField(), help_text="the owners")
    amount = CurrencyAmount()
    spent = CurrencyAmount(help_text="the charges that count against these budgets")
    left = CurrencyAmount()
    covers_all = serializers.BooleanField(help_text="true: all charges that you see count against them")


class CurveDayShape(ResponseSerializer):
    """One day of the month. Null: the day is to come, or there is no such day or budget."""

    day = serializers.DateField()
    gpu_hours = serializers.SerializerMethodField()
    charged = CurrencyAmount(allow_null=True)
    charged_so_far = CurrencyAmount(source="total", allow_null=True)
    month_before_so_far = CurrencyAmount(source="former_total", allow_null=True)
    even_pace = CurrencyAmount(
        allow_null=True,
        help_text="amount spent by the end of the day if each day cost the same part of the budget",
    )

    def get_gpu_hours(self, day: CurveDay) -> float:
        """Return the held and reserved GPU-hours of the day."""
        return round(day.slot_seconds / SLOT_SECONDS_PER_GPU_HOUR, 6)


class EquationTermShape(ResponseSerializer):
    """One term: the amounts with their signs sum to the term ``cost``, whose sign is 0."""

    key = serializers.CharField(help_text="charged, adjusted, margin, not_sold, overhead or cost")
    sign = serializers.IntegerField(help_text="1 or -1; 0: the term is the right side of the equation")
    amount = CurrencyAmount()


class MonthEquationShape(ResponseSerializer):
    """The charges of a month against the cost of the GPUs."""

    terms = EquationTermShape(many=True)
    difference = CurrencyAmount(help_text="left side minus right side")
    adjusted = CurrencyAmount(
        help_text="credits and adjustments; the term charged includes them, adjusted subtracts them"
    )


class ChargebackOverviewShape(ResponseSerializer):
    """The figures of a month that you see, as on the page of chargeback."""

    month = serializers.DateField()
    closed = serializers.BooleanField()
    currency = serializers.CharField()
    charged = CurrencyAmount(help_text="the amount on the statement, with corrections of earlier months")
    corrections = CurrencyAmount(
        source="curve.corrections", help_text="the part of ``charged`` that corrects earlier months"
    )
    gpu_hours = serializers.FloatField(help_text="held or reserved")
    coverage = serializers.FloatField(allow_null=True, help_text="measured part of the held time, 0 to 1")
    elapsed_days = serializers.FloatField()
    months = MonthAmountShape(many=True, help_text="the last twelve months, oldest first")
    change = MonthChangeShape()
    forecast = SpendRangeShape(
        allow_null=True, help_text="null: the month is over, or fewer than three whole days are known"
    )
    budget = BudgetSumShape(allow_null=True, help_text="null: there is no budget for the month")
    days = CurveDayShape(many=True, source="curve.days")
    equation = MonthEquationShape(allow_null=True, help_text="null: you do not see all charges")


class ChargebackAnswer(ResponseSerializer):
    """The figures of a month, and the scope of the viewer."""

    overview = ChargebackOverviewShape()
    scope = ChargeScopeShape()


class ChargebackQuery(StrictSerializer):
    month = serializers.CharField(
        max_length=20, required=False, help_text="such as 2026-03; default: the present month"
    )


class ChargebackView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="chargeback_read", parameters=[ChargebackQuery], responses=ChargebackAnswer)
    def get(self, request: Request) -> Response:
        """Return a month's daily charges, change, forecast, budget, and comparison of charges with GPU cost.

        ``change`` is the change from the month before. ``equation`` is the comparison.
        """
        given, scope = self.validated_query(ChargebackQuery).get("month"), charge_scope(self.actor)
        first_day = requested_month(given, self.now) if given else month_of(self.now)
        if scope.kind == "none":
            policy.require(self.actor, "charges.see_all")
        overview = overview_of_viewer(self.actor, first_day, self.now, scope)
        return self.object_response({"overview": overview, "scope": scope}, ChargebackAnswer)
