"""Budgets of months, quarters and years, also for cost centres; the forecast of each budget."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F, Q

ACTIONS = [
    ("notify", "Notify"),
    ("refuse_new", "refuse new work"),
    ("stop_borrowing", "stop borrowing"),
    ("stop_running", "stop running work"),
]


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0003_cost_centres_of_pools")]

    operations = [
        migrations.RemoveConstraint("budget", "one_budget_per_month"),
        migrations.RemoveConstraint("budget", "a_budget_is_of_a_team_or_of_a_project"),
        migrations.AddField("budget", "cost_centre", models.CharField(blank=True, default="", max_length=40)),
        migrations.AddField(
            "budget",
            "period",
            models.CharField(
                choices=[("month", "Month"), ("quarter", "Quarter"), ("year", "Year")],
                default="month",
                max_length=8,
            ),
        ),
        migrations.AlterField("budget", "month", models.DateField(help_text="first day of the period")),
        migrations.AlterField(
            "budget", "action", models.CharField(choices=ACTIONS, default="notify", max_length=16)
        ),
        migrations.AddConstraint(
            "budget",
            models.UniqueConstraint(
                fields=("team", "project", "cost_centre", "period", "month", "measure"),
                name="one_budget_per_period",
                nulls_distinct=False,
            ),
        ),
        migrations.AddConstraint(
            "budget",
            models.CheckConstraint(
                condition=Q(team__isnull=False, project__isnull=True, cost_centre="")
                | Q(team__isnull=True, project__isnull=False, cost_centre="")
                | (Q(team__isnull=True, project__isnull=True) & ~Q(cost_centre="")),
                name="a_budget_is_of_one_team_project_or_cost_centre",
            ),
        ),
        migrations.AddConstraint(
            "budget",
            models.CheckConstraint(
                condition=Q(period="month", month__day=1)
                | Q(period="quarter", month__day=1, month__month__in=(1, 4, 7, 10))
                | Q(period="year", month__day=1, month__month=1),
                name="a_budget_begins_with_its_period",
            ),
        ),
        migrations.CreateModel(
            "BudgetForecast",
            [
                (
                    "budget",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="spend_forecast",
                        serialize=False,
                        to="telemetry.budget",
                    ),
                ),
                ("expected", models.DecimalField(decimal_places=2, max_digits=18)),
                ("low", models.DecimalField(decimal_places=2, max_digits=18)),
                ("high", models.DecimalField(decimal_places=2, max_digits=18)),
                ("past_periods", models.PositiveSmallIntegerField(default=0)),
                ("past_inside", models.PositiveSmallIntegerField(default=0)),
                ("as_of", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(low__lte=F("expected")) & Q(expected__lte=F("high")),
                        name="a_forecast_is_inside_its_range",
                    ),
                    models.CheckConstraint(
                        condition=Q(past_inside__lte=F("past_periods")),
                        name="no_more_periods_inside_than_periods",
                    ),
                ]
            },
        ),
    ]
