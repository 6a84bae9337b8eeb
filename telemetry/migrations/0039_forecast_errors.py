"""Store the median error of past forecasts beside each forecast. The next forecast, within an hour, writes it."""

from __future__ import annotations

from django.db import migrations, models

HELP = "median error at the same day of past periods, as a part of the real spending; empty: none"


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0038_postponed_stops")]

    operations = [
        migrations.AddField(
            model_name="budgetforecast",
            name="past_error",
            field=models.FloatField(help_text=HELP, null=True),
        ),
        migrations.AddField(
            model_name="organisationforecast",
            name="past_error",
            field=models.FloatField(help_text=HELP, null=True),
        ),
    ]
