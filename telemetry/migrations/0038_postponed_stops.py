"""How often and how long the owner of an unused job may postpone its stop."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0037_capacity_studies")]

    operations = [
        migrations.AddField(
            "alertrule",
            "postpone_times",
            models.PositiveSmallIntegerField(
                default=3, help_text="how often the stop of a job may be postponed"
            ),
        ),
        migrations.AddField(
            "alertrule",
            "postpone_minutes",
            models.PositiveIntegerField(default=120, help_text="longest time of one postponement"),
        ),
        migrations.AddField(
            "alert",
            "postponed",
            models.PositiveSmallIntegerField(default=0, help_text="how often its stop was postponed"),
        ),
    ]
