"""Define budgets and their alerts."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from scheduler.models import Project, Team


class BudgetAction(models.TextChoices):
    NOTIFY = "notify"
    REFUSE_NEW = "refuse_new", "refuse new work"
    STOP_BORROWING = "stop_borrowing", "stop borrowing"


class BudgetMeasure(models.TextChoices):
    MONEY = "money"
    GPU_HOURS = "gpu_hours", "GPU-hours"


class Budget(models.Model):
    """A limit for a team or a project in a month, on the charged money or on the GPU-hours of all models."""

    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets")
    project = models.ForeignKey(
        Project, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets"
    )
    month = models.DateField(help_text="first day of the month")
    measure = models.CharField(max_length=10, choices=BudgetMeasure.choices, default=BudgetMeasure.MONEY)
    amount = models.DecimalField(max_digits=14, decimal_places=2, help_text="limit, in units of the measure")
    action = models.CharField(max_length=16, choices=BudgetAction.choices, default=BudgetAction.NOTIFY)
    notified_percent = models.PositiveSmallIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "project", "month", "measure"],
                name="one_budget_per_month",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=Q(team__isnull=True) ^ Q(project__isnull=True),
                name="a_budget_is_of_a_team_or_of_a_project",
            ),
        ]


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
