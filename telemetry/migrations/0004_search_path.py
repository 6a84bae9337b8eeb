"""The two functions that run with the owner's rights look for tables in the schema only, whatever their caller has set."""

from __future__ import annotations

from django.db import migrations

FUNCTIONS = ("telemetry_make_partitions(date, integer)", "telemetry_drop_samples_before(date)")


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0003_health_rules")]

    operations = [
        migrations.RunSQL(
            [f"ALTER FUNCTION {function} SET search_path = public, pg_temp" for function in FUNCTIONS],
            [f"ALTER FUNCTION {function} RESET search_path" for function in FUNCTIONS],
        )
    ]
