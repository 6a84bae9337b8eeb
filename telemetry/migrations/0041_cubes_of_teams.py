"""The cubes of hours by pool, model and team, and the version of each past day.

A page over a year reads each hour of the year. These cubes have a small part of the rows of the cubes of
hours. The version of a day changes when its rollups change, so values of past days can be kept in a cache.
"""

from django.db import migrations

TABLES = """
CREATE TABLE telemetry_rollupteamcube (
    bucket timestamptz NOT NULL, pool_id bigint, model text, team_id bigint,
    held_seconds float8, known_seconds float8, utilisation_seconds float8
);
CREATE INDEX telemetry_rollupteamcube_bucket ON telemetry_rollupteamcube (bucket);
CREATE TABLE telemetry_rollupversion (day timestamptz PRIMARY KEY, version bigint NOT NULL);
"""
# ``known_seconds`` is the covered time whose utilisation is known.
TEAMS = """
    INSERT INTO telemetry_rollupteamcube
        (bucket, pool_id, model, team_id, held_seconds, known_seconds, utilisation_seconds)
    SELECT cube.bucket, cube.pool_id, cube.model, project.team_id, sum(cube.held_seconds),
        sum(cube.covered_seconds - coalesce(cube.utilisation_unknown_seconds, 0)), sum(cube.utilisation_seconds)
    FROM telemetry_rollupcube AS cube LEFT JOIN scheduler_project AS project ON project.id = cube.project_id
    WHERE cube.resolution = 3600"""
GROUPS = " GROUP BY cube.bucket, cube.pool_id, cube.model, project.team_id;"
WRITE = f"""
    DELETE FROM telemetry_rollupteamcube WHERE bucket = ANY(hours);{TEAMS} AND cube.bucket = ANY(hours){GROUPS}
    INSERT INTO telemetry_rollupversion AS known (day, version)
    SELECT day, 1 FROM unnest(days) AS day WHERE day + interval '1 day' <= until
    ON CONFLICT (day) DO UPDATE SET version = known.version + 1;
"""
END = "END $function$"


def extend_cubes(apps, schema_editor):
    """Change the function that writes cubes, as it is: it also writes the cubes of teams and the versions."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_functiondef('telemetry_write_cubes'::regproc)")
        (sql,) = cursor.fetchone()
        before, found, after = sql.rpartition(END)
        if not found:
            raise ValueError(f"telemetry_write_cubes: {END!r} is not in its text")
        cursor.execute(before.rstrip() + WRITE + END + after)


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0040_unknown_readings")]

    operations = [
        migrations.RunSQL([TABLES, f"{TEAMS}{GROUPS}"]),
        migrations.RunPython(extend_cubes),
    ]
