"""Insert the first health rules. Operators edit them; a later migration never overwrites their choice."""

from __future__ import annotations

from django.db import migrations

from telemetry.migrations._health_rules import rules_of


def add_rules(apps, schema_editor):
    rule = apps.get_model("telemetry", "HealthRule")
    rule.objects.bulk_create(
        [
            rule(
                code=row.code,
                meaning=row.meaning,
                action=row.action,
                repeats=row.repeats,
                window_seconds=row.window_seconds,
                source=row.source,
            )
            for row in rules_of("0003")
        ],
        ignore_conflicts=True,
    )
    apps.get_model("telemetry", "Retention").objects.get_or_create(pk=1)


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0002_partitions_and_guards")]

    operations = [migrations.RunPython(add_rules, migrations.RunPython.noop)]
