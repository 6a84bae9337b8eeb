"""Insert rules for GPUs that NVML cannot read, and for GPUs that their host no longer reports."""

from django.db import migrations

from telemetry.migrations._health_rules import rules_of


def add_rules(apps, schema_editor):
    """Insert the rules. A rule that an operator added for the same code stays."""
    rule = apps.get_model("telemetry", "HealthRule")
    for row in rules_of("0008"):
        rule.objects.get_or_create(
            code=row.code,
            defaults={
                "meaning": row.meaning,
                "action": row.action,
                "repeats": row.repeats,
                "window_seconds": row.window_seconds,
                "source": row.source,
                "default_action": row.action,
                "default_repeats": row.repeats,
                "default_window_seconds": row.window_seconds,
                "default_counts": row.counts,
            },
        )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0007_what_health_rules_began_with")]

    operations = [migrations.RunPython(add_rules, migrations.RunPython.noop)]
