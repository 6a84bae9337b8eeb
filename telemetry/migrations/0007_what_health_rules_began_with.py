"""Each rule keeps what it began with, so that it can be put back, and whether an operator changed it can be told."""

from importlib import import_module

from django.db import migrations, models

FIRST = import_module("telemetry.migrations.0003_health_rules")
MORE = import_module("telemetry.migrations.0005_strays_and_more_rules")
PEOPLE = import_module("telemetry.migrations.0006_whose_work_is_behind_events")
ACTIONS = [
    ("note", "Note"),
    ("warn", "Warn"),
    ("cordon", "Cordon"),
    ("drain", "Drain"),
    ("quarantine_gpu", "Quarantine Gpu"),
]
COUNTS = [("events", "events"), ("people", "people's work")]


def keep_defaults(apps, schema_editor):
    """As the migrations before this one made the table. What an operator has chosen meanwhile stays."""
    rules = apps.get_model("telemetry", "HealthRule").objects
    for code, _meaning, action, repeats, window, _source in [*FIRST.rules(), *MORE.rules()]:
        rules.filter(code=code, default_action="").update(
            default_action=action,
            default_repeats=repeats,
            default_window_seconds=window,
            default_counts="events",
        )
    rules.filter(code__in=PEOPLE.OF_PROGRAMS).exclude(default_action="").update(default_counts="people")
    rules.filter(code="xid:109").exclude(default_action="").update(
        default_repeats=3, default_window_seconds=86_400
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
