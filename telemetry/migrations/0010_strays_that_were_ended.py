"""Insert the rule for stray processes that an agent ended because their pool says so."""

from django.db import migrations

from telemetry.migrations._health_rules import rules_of


def add_rule(apps, schema_editor):
    """Insert the rule. Users' programs cause these events, so the rule only notes them and counts people."""
    rule = apps.get_model("telemetry", "HealthRule")
    for row in rules_of("0010"):
        rule.objects.get_or_create(
            code=row.code,
            defaults={
                "meaning": row.meaning,
                "action": row.action,
                "repeats": row.repeats,
                "window_seconds": row.window_seconds,
                "source": row.source,
                "counts": row.counts,
                "default_action": row.action,
                "default_repeats": row.repeats,
                "default_window_seconds": row.window_seconds,
                "default_counts": row.counts,
            },
        )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0009_budgets_of_gpu_hours")]

    operations = [migrations.RunPython(add_rule, migrations.RunPython.noop)]
