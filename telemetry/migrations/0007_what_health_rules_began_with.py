"""Store the default values in each rule, so that it can be reset and an operator's change can be recognised."""

from django.db import migrations, models

from telemetry.migrations._health_rules import rules_of

ACTIONS = [
    ("note", "Note"),
    ("warn", "Warn"),
    ("cordon", "Cordon"),
    ("drain", "Drain"),
    ("quarantine_gpu", "Quarantine Gpu"),
]
COUNTS = [("events", "events"), ("people", "people's work")]


def keep_defaults(apps, schema_editor):
    """Set the defaults of the rules that the migrations before this one inserted. Current values stay."""
    rules = apps.get_model("telemetry", "HealthRule").objects
    for row in rules_of("0003", "0005"):
        rules.filter(code=row.code, default_action="").update(
            default_action=row.action,
            default_repeats=row.repeats,
            default_window_seconds=row.window_seconds,
            default_counts=row.counts,
        )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0006_whose_work_is_behind_events")]

    operations = [
        migrations.AddField(
            model_name="healthrule",
            name="default_action",
            field=models.CharField(blank=True, choices=ACTIONS, default="", max_length=16),
        ),
        migrations.AddField(
            model_name="healthrule",
            name="default_repeats",
            field=models.PositiveSmallIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="healthrule",
            name="default_window_seconds",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="healthrule",
            name="default_counts",
            field=models.CharField(blank=True, choices=COUNTS, default="", max_length=6),
        ),
        migrations.RunPython(keep_defaults, migrations.RunPython.noop),
    ]
