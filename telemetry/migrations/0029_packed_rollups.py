"""Rollups are stored as arrays, in partitions: minutes by hour, hours by day. ``telemetry_rollup`` is a view.

Existing rollups are converted. The time is proportional to their number.
"""

from django.db import migrations, models

MICROS = (  # stored as millionths: seconds and per cent
    "held_seconds",
    "covered_seconds",
    "utilisation_seconds",
    "utilisation_max",
    "busy_seconds",
    "inefficient_seconds",
    "sm_unmeasured_seconds",
    "idle_seconds",
    "empty_seconds",
    "sm_active_seconds",
    "tensor_active_seconds",
)
COUNTS = {
    "samples": "integer",
    "memory_used_max_mib": "integer",
    "energy_mj": "bigint",
    "energy_faults": "integer",
}
MEASURES = (*MICROS, *COUNTS)
NAMES = ", ".join(MEASURES)
# resolution: (table, type of an element, seconds of a stored row)
LEVELS = {
    60: ("telemetry_rollupminutes", "integer", 3_600),
    3_600: ("telemetry_rolluphours", "bigint", 86_400),
    86_400: ("telemetry_rollupdays", "bigint", 86_400),
}


def arrays(kind, compression=""):
    return ", ".join(f"{name} {kind}[]{compression}" for name in MEASURES)


def packed_table(name, kind):
    main = ", ".join(f"ALTER COLUMN {measure} SET STORAGE MAIN" for measure in MEASURES)
    return f"""
CREATE TABLE {name} (
    container timestamptz NOT NULL, unit_id bigint NOT NULL, allocation_id bigint,
    simulated boolean NOT NULL, {arrays(kind)},
    UNIQUE NULLS NOT DISTINCT (container, unit_id, allocation_id)
) PARTITION BY RANGE (container);
CREATE INDEX {name}_allocation ON {name} (allocation_id, container);
ALTER TABLE {name} {main};
"""


def measure_columns(source):
    seconds = [f"{source}.{name} / 1e6::float8 AS {name}" for name in MICROS]
    return ", ".join(seconds + [f"{source}.{name}::{kind} AS {name}" for name, kind in COUNTS.items()])


def each(source):
    return ", ".join(f"{source}.{name}" for name in MEASURES)


def packed_branch(resolution, name):
    return f"""
SELECT NULL::bigint AS id, {resolution} AS resolution,
    packed.container + (slot.number - 1) * interval '{resolution} seconds' AS bucket, packed.container,
    gpu.host_id, packed.unit_id, packed.allocation_id, packed.simulated, {measure_columns("slot")}
FROM {name} AS packed
CROSS JOIN LATERAL unnest({each("packed")}) WITH ORDINALITY AS slot ({NAMES}, number)
LEFT JOIN scheduler_unit AS unit ON unit.id = packed.unit_id
LEFT JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id
WHERE slot.held_seconds IS NOT NULL"""


STORAGE = (
    "".join(packed_table(name, kind) for name, kind, _ in LEVELS.values())
    + f"""
CREATE TABLE telemetry_rollupopen (
    resolution integer NOT NULL, bucket timestamptz NOT NULL, host_id bigint NOT NULL,
    unit_ids bigint[] NOT NULL, allocation_ids bigint[] NOT NULL, simulated boolean[] NOT NULL,
    {arrays("bigint")},
    PRIMARY KEY (resolution, bucket, host_id)
);
CREATE INDEX telemetry_rolluphours_simulated ON telemetry_rolluphours (container) WHERE simulated;
CREATE VIEW telemetry_rollup AS {" UNION ALL ".join(packed_branch(n, level[0]) for n, level in LEVELS.items())}
UNION ALL
SELECT NULL::bigint, open.resolution, open.bucket, open.bucket, open.host_id, item.unit_id,
    item.allocation_id, item.simulated, {measure_columns("item")}
FROM telemetry_rollupopen AS open
CROSS JOIN LATERAL unnest(open.unit_ids, open.allocation_ids, open.simulated, {each("open")})
    AS item (unit_id, allocation_id, simulated, {NAMES})
WHERE item.held_seconds IS NOT NULL;
"""
)


def pack_statement(resolution):
    """Return SQL that moves the open rows $1 (until), $2 (hosts) of ended containers to the packed table."""
    name, kind, seconds = LEVELS[resolution]
    container = f"date_bin('{seconds} seconds', open.bucket, 'epoch')"
    gathered = ", ".join(
        f"CASE WHEN count(ordered.{measure}) > 0 THEN array_agg(ordered.{measure}::{kind}) END"
        for measure in MEASURES
    )
    return f"""
    WITH fresh AS (
        DELETE FROM telemetry_rollupopen AS open WHERE open.resolution = {resolution}
            AND open.bucket < ended AND (of_hosts IS NULL OR open.host_id = ANY(of_hosts)) RETURNING open.*
    ), item AS MATERIALIZED (
        SELECT {container} AS container,
            (extract(epoch FROM open.bucket)::bigint % {seconds} / {resolution})::integer AS slot,
            value.unit_id, value.allocation_id, value.simulated, {each("value")}
        FROM fresh AS open
        CROSS JOIN LATERAL unnest(open.unit_ids, open.allocation_ids, open.simulated, {each("open")})
            AS value (unit_id, allocation_id, simulated, {NAMES})
    ), old AS (
        DELETE FROM {name} AS packed USING (SELECT DISTINCT container, unit_id FROM item) AS changed
        WHERE packed.container = changed.container AND packed.unit_id = changed.unit_id
            AND packed.container BETWEEN first AND last
        RETURNING packed.*
    ), merged AS (
        SELECT container, slot, unit_id, coalesce(allocation_id, 0) AS allocation_id, simulated, {NAMES}
        FROM item WHERE held_seconds IS NOT NULL
        UNION ALL
        SELECT old.container, (value.number - 1)::integer, old.unit_id, coalesce(old.allocation_id, 0),
            old.simulated, {each("value")}
        FROM old CROSS JOIN LATERAL unnest({each("old")}) WITH ORDINALITY AS value ({NAMES}, number)
        WHERE value.held_seconds IS NOT NULL AND NOT EXISTS (
            SELECT FROM item WHERE item.container = old.container AND item.unit_id = old.unit_id
                AND item.slot = value.number - 1)
    ), ordered AS (
        SELECT container, unit_id, allocation_id, slot, merged.simulated, {NAMES}
        FROM (SELECT DISTINCT container, unit_id, allocation_id FROM merged) AS owner
        CROSS JOIN generate_series(0, {seconds // resolution - 1}) AS slot
        LEFT JOIN merged USING (container, unit_id, allocation_id, slot)
        ORDER BY container, unit_id, allocation_id, slot
    )
    INSERT INTO {name} (container, unit_id, allocation_id, simulated, {NAMES})
    SELECT container, unit_id, nullif(allocation_id, 0), bool_or(simulated), {gathered}
    FROM ordered GROUP BY container, unit_id, allocation_id;
"""


def pack_branches():
    branches = []
    for resolution, (_, _, seconds) in LEVELS.items():
        branches.append(
            f"""
    {"IF" if not branches else "ELSIF"} of_resolution = {resolution} THEN
    ended := date_bin('{seconds} seconds', until, 'epoch');
    SELECT min(at), max(at), count(telemetry_make_rollup_partition({resolution}, at)) INTO first, last, partitions
    FROM (
        SELECT DISTINCT date_bin('{seconds} seconds', bucket, 'epoch') AS at FROM telemetry_rollupopen
        WHERE resolution = {resolution} AND bucket < ended
            AND (of_hosts IS NULL OR host_id = ANY(of_hosts))) AS found;
    IF first IS NULL THEN RETURN; END IF;
    {pack_statement(resolution)}"""
        )
    return "".join(branches)


FUNCTIONS = f"""
-- The partition of a level that contains a time: minutes by day, hours by month, days by year.
CREATE FUNCTION telemetry_make_rollup_partition(of_resolution integer, at timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    parent text := CASE of_resolution {" ".join(f"WHEN {n} THEN '{level[0]}'" for n, level in LEVELS.items())} END;
    unit text := CASE of_resolution WHEN 60 THEN 'day' WHEN 3600 THEN 'month' WHEN 86400 THEN 'year' END;
    low timestamptz := date_trunc(unit, at, 'UTC');
    part text := parent || '_' || to_char(low AT TIME ZONE 'UTC', 'YYYYMMDD');
BEGIN
    IF parent IS NULL THEN
        RAISE EXCEPTION 'resolution: % is not one of 60, 3600, 86400', of_resolution;
    END IF;
    IF to_regclass(part) IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext(parent || ' partitions'));
    IF to_regclass(part) IS NOT NULL THEN
        RETURN false;
    END IF;
    -- A value compresses well, so a row is compressed as far as possible.
    EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L) WITH (toast_tuple_target = 128)',
        part, parent, low, ((low AT TIME ZONE 'UTC') + ('1 ' || unit)::interval) AT TIME ZONE 'UTC');
    RETURN true;
END $$;

CREATE FUNCTION telemetry_drop_rollups_before(of_resolution integer, first_kept timestamptz) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    parent text := CASE of_resolution {" ".join(f"WHEN {n} THEN '{level[0]}'" for n, level in LEVELS.items())} END;
    unit text := CASE of_resolution WHEN 60 THEN 'day' WHEN 3600 THEN 'month' WHEN 86400 THEN 'year' END;
    dropped integer := 0;
    part text;
BEGIN
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = parent::regclass
          AND (to_date(right(c.relname, 8), 'YYYYMMDD') + ('1 ' || unit)::interval) AT TIME ZONE 'UTC' <= first_kept
    LOOP
        EXECUTE format('DROP TABLE %I', part);
        dropped := dropped + 1;
    END LOOP;
    DELETE FROM telemetry_rollupopen WHERE resolution = of_resolution AND bucket < first_kept
        AND date_trunc(unit, bucket, 'UTC') + ('1 ' || unit)::interval <= first_kept;
    RETURN dropped;
END $$;

-- Moves open rows to the arrays of their container (an hour of minutes, a day of hours, a day), if the
-- container ended at or before ``until``. A slot of a unit that has an open row is replaced as a whole.
CREATE FUNCTION telemetry_pack_rollups(of_resolution integer, until timestamptz, of_hosts bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ended timestamptz;
    first timestamptz;
    last timestamptz;
    partitions integer;
BEGIN
    {pack_branches()}
    END IF;
END $$;
"""


def known(name):
    """Return SQL for the stored value of a former row. Impossible values of earlier versions become unknown.

    NaN is greater than every number.
    """
    if name in MICROS:
        most, value = (
            "CASE WHEN old.resolution = 60 THEN 2147 ELSE 1e9 END",
            f"round(old.{name} * 1e6)::bigint",
        )
    elif name == "energy_mj":
        most, value = "CASE WHEN old.resolution = 60 THEN 2147483647 ELSE 1e18 END", f"old.{name}::bigint"
    else:
        most, value = "2147483647", f"old.{name}::bigint"
    return f"CASE WHEN old.{name} BETWEEN 0 AND {most} THEN {value} END"


VALUES = {name: known(name) for name in MEASURES}
# Earlier versions did not write the busy seconds with unknown SM activity.
VALUES["sm_unmeasured_seconds"] = (
    f"CASE WHEN old.sm_unmeasured_seconds IS NOT NULL THEN {VALUES['sm_unmeasured_seconds']}"
    " WHEN old.busy_seconds IS NULL THEN NULL"
    f" WHEN old.inefficient_seconds IS NULL THEN {VALUES['busy_seconds']} ELSE 0 END"
)
CONVERT = f"""
INSERT INTO telemetry_rollupopen (resolution, bucket, host_id, unit_ids, allocation_ids, simulated, {NAMES})
SELECT old.resolution, old.bucket, gpu.host_id, array_agg(old.unit_id ORDER BY old.id),
    array_agg(old.allocation_id ORDER BY old.id), array_agg(old.simulated ORDER BY old.id),
    {", ".join(f"array_agg({VALUES[name]} ORDER BY old.id)" for name in MEASURES)}
FROM telemetry_rollup_before AS old
JOIN scheduler_unit AS unit ON unit.id = old.unit_id JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id
GROUP BY 1, 2, 3;
SELECT telemetry_pack_rollups(60, now(), NULL);
SELECT telemetry_pack_rollups(3600, now(), NULL);
SELECT telemetry_pack_rollups(86400, now(), NULL);
DROP TABLE telemetry_rollup_before;
"""
RENAME = """
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE telemetry_rollup RENAME TO telemetry_rollup_before;
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0034_dcgm_exporter")]

    operations = [
        migrations.SeparateDatabaseAndState(
            [migrations.RunSQL([RENAME, STORAGE, FUNCTIONS, CONVERT])],
            [
                migrations.DeleteModel("Rollup"),
                migrations.CreateModel(
                    "Rollup",
                    [("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False))],
                    {"db_table": "telemetry_rollup", "managed": False},
                ),
            ],
        ),
    ]
