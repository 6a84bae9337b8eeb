"""The cubes of rollups, and the retention of hours and days."""

from django.db import migrations, models
from django.db.models import F, Q

MEASURES = (
    "held_seconds",
    "covered_seconds",
    "utilisation_seconds",
    "busy_seconds",
    "inefficient_seconds",
    "sm_unmeasured_seconds",
    "idle_seconds",
    "empty_seconds",
    "sm_active_seconds",
    "tensor_active_seconds",
)
NAMES = ", ".join((*MEASURES, "energy_mj"))

CUBES = f"""
CREATE TABLE telemetry_rollupcube (
    resolution integer NOT NULL, bucket timestamptz NOT NULL, pool_id bigint, model text, project_id bigint,
    type text, owner_id bigint, {", ".join(f"{name} float8" for name in MEASURES)}, energy_mj bigint
);
CREATE INDEX telemetry_rollupcube_bucket ON telemetry_rollupcube (resolution, bucket);

-- Writes the cubes of the hours, and of the days (UTC) that contain them and end before ``until``.
CREATE FUNCTION telemetry_write_cubes(hours timestamptz[], until timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    first timestamptz := (SELECT date_trunc('day', min(hour), 'UTC') FROM unnest(hours) AS hour);
    last timestamptz := (SELECT max(hour) FROM unnest(hours) AS hour);
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('telemetry_write_cubes'));
    DELETE FROM telemetry_rollupcube WHERE resolution = 3600 AND bucket = ANY(hours);
    INSERT INTO telemetry_rollupcube
        (resolution, bucket, pool_id, model, project_id, type, owner_id, {NAMES})
    SELECT 3600, used.bucket, gpu.pool_id, gpu.model, held.project_id, work.type, work.owner_id,
        {", ".join(f"sum(used.{name} * (upper(unit.slots) - lower(unit.slots)))" for name in MEASURES)},
        sum(used.energy_mj)
    FROM telemetry_rollup AS used
    JOIN scheduler_allocation AS held ON held.id = used.allocation_id
    JOIN scheduler_unit AS unit ON unit.id = used.unit_id
    JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id
    LEFT JOIN scheduler_workload AS work ON work.id = held.workload_id
    WHERE used.resolution = 3600 AND used.bucket = ANY(hours)
        AND used.container BETWEEN first AND last
    GROUP BY used.bucket, gpu.pool_id, gpu.model, held.project_id, work.type, work.owner_id;
    DELETE FROM telemetry_rollupcube WHERE resolution = 86400 AND bucket IN (
        SELECT date_trunc('day', hour, 'UTC') FROM unnest(hours) AS hour);
    INSERT INTO telemetry_rollupcube
        (resolution, bucket, pool_id, model, project_id, type, owner_id, {NAMES})
    SELECT 86400, date_trunc('day', bucket, 'UTC'), pool_id, model, project_id, type, owner_id,
        {", ".join(f"sum({name})" for name in (*MEASURES, "energy_mj"))}
    FROM telemetry_rollupcube
    WHERE resolution = 3600 AND EXISTS (
        SELECT FROM unnest(hours) AS hour
        WHERE bucket >= date_trunc('day', hour, 'UTC')
            AND bucket < date_trunc('day', hour, 'UTC') + interval '1 day'
            AND date_trunc('day', hour, 'UTC') + interval '1 day' <= until)
    GROUP BY 2, 3, 4, 5, 6, 7;
END $$;
"""
# One day at a time: a statement for all hours would sort all rollups.
FILL = """
DO $$
DECLARE
    of_day timestamptz;
BEGIN
    FOR of_day IN SELECT DISTINCT date_trunc('day', container, 'UTC') FROM telemetry_rolluphours
        UNION SELECT DISTINCT date_trunc('day', bucket, 'UTC') FROM telemetry_rollupopen WHERE resolution = 3600
    LOOP
        PERFORM telemetry_write_cubes(array_agg(hour), now())
        FROM generate_series(of_day, least(of_day + interval '23 hours', now() - interval '1 hour'),
            interval '1 hour') AS hour
        HAVING count(*) > 0;
    END LOOP;
END $$;
"""


def kept_days(level):
    text = f"days of {level} rollups that are kept; empty: without limit"
    return models.PositiveSmallIntegerField(null=True, help_text=text)


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0029_packed_rollups")]

    operations = [
        migrations.RunSQL([CUBES, FILL]),
        migrations.AlterField(
            "retention",
            "minute_days",
            models.PositiveSmallIntegerField(default=30, help_text="days of minute rollups that are kept"),
        ),
        migrations.AddField("retention", "hour_days", kept_days("hour")),
        migrations.AddField("retention", "day_days", kept_days("day")),
        migrations.AddConstraint(
            "retention",
            models.CheckConstraint(
                condition=Q(hour_days=None) | Q(hour_days__gte=F("minute_days")),
                name="hours_are_kept_as_long_as_minutes",
            ),
        ),
        migrations.AddConstraint(
            "retention",
            models.CheckConstraint(
                condition=Q(day_days=None) | Q(hour_days__isnull=False, day_days__gte=F("hour_days")),
                name="days_are_kept_as_long_as_hours",
            ),
        ),
    ]
