"""Define budgets, their alerts and their forecasts."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from scheduler.models import Project, Team
from telemetry.core.currencies import DEFAULT_CURRENCY
from telemetry.models.amounts import CurrencyAmountField

PAST_ERROR_HELP = "median error at the same day of past periods, as a part of the real spending; empty: none"


class BudgetAction(models.TextChoices):
    NOTIFY = "notify"
    REFUSE_NEW = "refuse_new", "refuse new work"
    STOP_BORROWING = "stop_borrowing", "stop borrowing"
    STOP_RUNNING = "stop_running", "stop running work"


class BudgetMeasure(models.TextChoices):
    MONEY = "money"
    GPU_HOURS = "gpu_hours", "GPU-hours"


class BudgetPeriod(models.TextChoices):
    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"


class Budget(models.Model):
    """A limit for a team, a project or a cost centre in a period.

    It limits the charged money or the GPU-hours of all models. A period is a calendar month, quarter or year.
    """

    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets")
    project = models.ForeignKey(
        Project, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets"
    )
    cost_centre = models.CharField(max_length=40, default="", blank=True)
    period = models.CharField(max_length=8, choices=BudgetPeriod.choices, default=BudgetPeriod.MONTH)
    month = models.DateField(help_text="first day of the period")
    measure = models.CharField(max_length=10, choices=BudgetMeasure.choices, default=BudgetMeasure.MONEY)
    currency = models.CharField(
        max_length=3, default=DEFAULT_CURRENCY, help_text="of a budget in money; only this currency counts"
    )
    amount = CurrencyAmountField(help_text="limit, in units of the measure")
    action = models.CharField(max_length=16, choices=BudgetAction.choices, default=BudgetAction.NOTIFY)
    notified_percent = models.PositiveSmallIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "project", "cost_centre", "period", "month", "measure"],
                name="one_budget_per_period",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=Q(team__isnull=False, project__isnull=True, cost_centre="")
                | Q(team__isnull=True, project__isnull=False, cost_centre="")
                | (Q(team__isnull=True, project__isnull=True) & ~Q(cost_centre="")),
                name="a_budget_is_of_one_team_project_or_cost_centre",
            ),
            models.CheckConstraint(
                condition=Q(period="month", month__day=1)
                | Q(period="quarter", month__day=1, month__month__in=(1, 4, 7, 10))
                | Q(period="year", month__day=1, month__month=1),
                name="a_budget_begins_with_its_period",
            ),
        ]


class StoredForecast(models.Model):
    """The columns of a stored forecast: its range, and the record of the same method in the past."""

    expected = CurrencyAmountField()
    low = CurrencyAmountField()
    high = CurrencyAmountField()
    past_periods = models.PositiveSmallIntegerField(default=0)
    past_inside = models.PositiveSmallIntegerField(default=0)
    past_error = models.FloatField(null=True, help_text=PAST_ERROR_HELP)
    as_of = models.DateTimeField()

    class Meta:
        abstract = True


def _range_check(name: str) -> models.CheckConstraint:
    """Return the constraint that the expected amount of a forecast is inside its range."""
    return models.CheckConstraint(
        condition=Q(low__lte=models.F("expected")) & Q(expected__lte=models.F("high")), name=name
    )


class BudgetForecast(StoredForecast):
    """The newest forecast of a budget's spending at the end of its period, in the budget's measure.

    ``low`` and ``high`` are the 10th and the 90th percentile. The same method was tried on ``past_periods``
    earlier periods, at the same day of the period. In ``past_inside`` of them, the real spending was in the
    range.
    """

    budget = models.OneToOneField(
        Budget, primary_key=True, on_delete=models.CASCADE, related_name="spend_forecast"
    )

    class Meta:
        constraints = [
            _range_check("a_forecast_is_inside_its_range"),
            models.CheckConstraint(
                condition=Q(past_inside__lte=models.F("past_periods")),
                name="no_more_periods_inside_than_periods",
            ),
        ]


class OrganisationForecast(StoredForecast):
    """The newest forecast of all charges at the end of a month, in the currency of the month.

    The columns have the same meaning as in BudgetForecast. Only the present month is forecast.
    """

    month = models.DateField(unique=True, help_text="first day of the month")
    currency = models.CharField(max_length=3)

    class Meta:
        constraints = [_range_check("the_forecast_of_all_is_inside_its_range")]


class BudgetAlert(models.Model):
    """An alert: the spending or its forecast passed a threshold of a budget. Each alert causes a notice."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="alerts")
    percent = models.PositiveSmallIntegerField(help_text="threshold in percent: 50, 80 or 100")
    spent = models.DecimalField(max_digits=18, decimal_places=6)
    forecast = models.BooleanField(default=False, help_text="True: forecast, not spent yet")
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["budget", "percent", "forecast"], name="a_threshold_is_passed_once"
            )
        ]
