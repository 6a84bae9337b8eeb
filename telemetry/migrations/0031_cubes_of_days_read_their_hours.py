"""The cubes of a day read only the hours of this day. Before, they read the hours of all days."""

import importlib

from django.db import migrations

before = importlib.import_module("telemetry.migrations.0030_rollup_cubes")
WRITE_DAYS = f"""
    DELETE FROM telemetry_rollupcube WHERE resolution = 86400 AND bucket = ANY(days);
    INSERT INTO telemetry_rollupcube
        (resolution, bucket, pool_id, model, project_id, type, owner_id, {before.NAMES})
    SELECT 86400, date_trunc('day', bucket, 'UTC'), pool_id, model, project_id, type, owner_id,
        {", ".join(f"sum({name})" for name in (*before.MEASURES, "energy_mj"))}
    FROM telemetry_rollupcube
    WHERE resolution = 3600 AND bucket >= first AND bucket <= last + interval '1 day'
        AND date_trunc('day', bucket, 'UTC') = ANY(days)
        AND date_trunc('day', bucket, 'UTC') + interval '1 day' <= until
    GROUP BY 2, 3, 4, 5, 6, 7;
END $$;
"""
DAYS = """
    days timestamptz[] := ARRAY(SELECT DISTINCT date_trunc('day', hour, 'UTC') FROM unnest(hours) AS hour);
BEGIN
"""
CREATE = before.CUBES[before.CUBES.index("-- Writes the cubes") :].replace(
    "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"
)
HOURS, _ = CREATE.split("    DELETE FROM telemetry_rollupcube WHERE resolution = 86400")
FUNCTION = HOURS.replace("BEGIN\n", DAYS.lstrip("\n"), 1) + WRITE_DAYS.lstrip("\n")


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0030_rollup_cubes")]

    operations = [migrations.RunSQL([FUNCTION])]
