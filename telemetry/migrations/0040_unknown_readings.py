"""Rollups and cubes have the covered time whose utilisation, and whose SM activity, is unknown.

A mean is divided by the rest of the covered time. Before, it was divided by all of it.
"""

import importlib
import re

from django.db import migrations, models

rollups = importlib.import_module("telemetry.migrations.0029_packed_rollups")
# new measure: the sum that is NULL where all of the covered time is unknown
SUM_OF = {"utilisation_unknown_seconds": "utilisation_seconds", "sm_unknown_seconds": "sm_active_seconds"}
MEASURES = tuple(SUM_OF)
KINDS = {table: kind for table, kind, _ in rollups.LEVELS.values()}
COLUMNS = "".join(
    f"ALTER TABLE {table} ADD COLUMN {name} {kind}[];\n"
    f"ALTER TABLE {table} ALTER COLUMN {name} SET STORAGE MAIN;\n"
    for table, kind in KINDS.items()
    for name in MEASURES
) + "".join(
    f"ALTER TABLE telemetry_rollupopen ADD COLUMN {name} bigint[];\n"
    f"ALTER TABLE telemetry_rollupcube ADD COLUMN {name} float8;\n"
    for name in MEASURES
)
# The last measure of the rollups before. The new ones follow it wherever all measures are listed.
LAST = "energy_faults"


def with_measures(sql):
    """Return SQL of an earlier migration with the new measures in each list of all measures."""

    def gathered(match):
        before, between, after = match.groups()
        return ", ".join(before + name + between + name + after for name in ("<last>", *MEASURES))

    def listed(match):
        return ", ".join((match.group(1) or "") + name for name in (LAST, *MEASURES))

    aggregate = rf"(CASE WHEN count\(ordered\.){LAST}(\) > 0 THEN array_agg\(ordered\.){LAST}(::\w+\) END)"
    return re.sub(rf"(\w+\.)?\b{LAST}\b", listed, re.sub(aggregate, gathered, sql)).replace("<last>", LAST)


def view():
    """Return SQL of the view of rollups."""

    def columns(match):
        seconds = [f"{match.group(1)}.{name} / 1e6::float8 AS {name}" for name in MEASURES]
        return ", ".join([f"{match.group(1)}.<last>::integer AS <last>", *seconds])

    sql = rollups.STORAGE[rollups.STORAGE.index("CREATE VIEW") :]
    return with_measures(re.sub(rf"(\w+)\.{LAST}::integer AS {LAST}", columns, sql)).replace(
        "CREATE VIEW", "CREATE OR REPLACE VIEW"
    )


def extend_cubes(apps, schema_editor):
    """Change the function that writes cubes, as it is. Their last measure in seconds was tensor activity."""
    last = "tensor_active_seconds"
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_functiondef('telemetry_write_cubes'::regproc)")
        (sql,) = cursor.fetchone()
        changes = {f"{last}, energy_mj": ", ".join((last, *MEASURES, "energy_mj"))}
        for total in (f"sum(used.{last} * (upper(unit.slots) - lower(unit.slots)))", f"sum({last})"):
            changes[total] = ", ".join(total.replace(last, name) for name in (last, *MEASURES))
        for before, after in changes.items():
            if before not in sql:
                raise ValueError(f"telemetry_write_cubes: {before!r} is not in its text")
            sql = sql.replace(before, after)
        cursor.execute(sql)


PACK = with_measures(rollups.FUNCTIONS[rollups.FUNCTIONS.index("-- Moves open rows") :]).replace(
    "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"
)
# Earlier rows of which nothing was known. Of rows that were known in part, nobody can say how much was.
FILL = "".join(
    f"UPDATE {table} SET {name} = covered_seconds WHERE {SUM_OF[name]} IS NULL AND covered_seconds IS NOT NULL;\n"
    for table in ("telemetry_rolluphours", "telemetry_rollupdays", "telemetry_rollupcube")
    for name in MEASURES
)


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0039_forecast_errors")]

    operations = [
        migrations.RunSQL([COLUMNS, view(), PACK]),
        migrations.RunPython(extend_cubes),
        migrations.RunSQL([FILL]),
        *(migrations.AddField("runreportunit", name, models.FloatField(null=True)) for name in MEASURES),
    ]
