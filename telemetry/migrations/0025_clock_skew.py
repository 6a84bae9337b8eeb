"""Samples that are refused because the clock of their host is wrong, and the health rule about it."""

from django.db import migrations, models

from telemetry.migrations._health_rules import rules_of


def insert_rule(apps, schema_editor):
    """Insert the rule, unless an operator has added one for its code."""
    rule = apps.get_model("telemetry", "HealthRule")
    rule.objects.bulk_create(
        [
            rule(
                code=row.code,
                meaning=row.meaning,
                action=row.action,
                repeats=row.repeats,
                window_seconds=row.window_seconds,
                counts=row.counts,
                source=row.source,
                elsewhere=row.elsewhere,
                default_action=row.action,
                default_repeats=row.repeats,
                default_window_seconds=row.window_seconds,
                default_counts=row.counts,
            )
            for row in rules_of("0025")
        ],
        ignore_conflicts=True,
    )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0024_reading_faults")]

    operations = [
        migrations.AddField(
            "batch",
            "refused_until",
            models.DateTimeField(
                null=True, help_text="true time of the last sample that was refused for a wrong clock"
            ),
        ),
        migrations.AlterField(
            "samplegap",
            "cause",
            models.CharField(
                max_length=12,
                choices=[
                    ("skipped", "batches were missing for too long"),
                    ("reinstalled", "the agent was installed again, without its spool"),
                    ("removed", "the host was removed"),
                    ("clock", "the clock of the host was too wrong"),
                ],
            ),
        ),
        migrations.RunPython(insert_rule, migrations.RunPython.noop),
    ]
