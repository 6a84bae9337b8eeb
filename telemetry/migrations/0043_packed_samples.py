"""Samples of past days are packed: one row per unit and hour, with a compressed array per column."""

from django.db import migrations

COLUMNS = (
    "allocation_id",
    "utilisation",
    "sm_active",
    "tensor_active",
    "memory_used_mib",
    "memory_utilisation",
    "power_w",
    "energy_mj",
    "temperature_c",
    "memory_temperature_c",
    "sm_clock_mhz",
    "throttle_reasons",
    "pcie_rx_kib",
    "pcie_tx_kib",
    "nvlink_kib",
    "processes",
    "stray_processes",
    "graphics_active",
    "sm_occupancy",
    "dram_active",
    "fp64_active",
    "fp32_active",
    "fp16_active",
    "encoder_utilisation",
    "decoder_utilisation",
    "fan_percent",
    "power_limit_w",
    "memory_clock_mhz",
    "video_clock_mhz",
    "dcgm_readings",
    "pcie_rx_bytes",
    "pcie_tx_bytes",
    "nvlink_rx_bytes",
    "nvlink_tx_bytes",
)
BYTES = ("ts", *COLUMNS)
# The values are compressed already.
EXTERNAL = ", ".join(f"ALTER COLUMN {name} SET STORAGE EXTERNAL" for name in BYTES)

TABLE = f"""
CREATE TABLE telemetry_packedsamples (
    hour timestamptz NOT NULL, unit_id bigint NOT NULL, samples integer NOT NULL, ts bytea NOT NULL,
    {", ".join(f"{name} bytea" for name in COLUMNS)},
    PRIMARY KEY (unit_id, hour)
) PARTITION BY RANGE (hour);
ALTER TABLE telemetry_packedsamples {EXTERNAL};
"""
FUNCTIONS = """
CREATE FUNCTION telemetry_make_packed_partition(day date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    part text := 'telemetry_packedsamples_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF to_regclass(part) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I PARTITION OF telemetry_packedsamples FOR VALUES FROM (%L) TO (%L)',
        part, day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
    RETURN true;
END $$;

-- The days before a day that may have single rows.
CREATE FUNCTION telemetry_days_of_samples(before date) RETURNS SETOF date
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT to_date(right(part.relname, 8), 'YYYYMMDD')
    FROM pg_inherits AS child JOIN pg_class AS part ON part.oid = child.inhrelid
    WHERE child.inhparent = 'telemetry_sample'::regclass AND part.relname ~ '^telemetry_sample_[0-9]{8}$'
        AND to_date(right(part.relname, 8), 'YYYYMMDD') < before
    UNION
    SELECT (ts AT TIME ZONE 'UTC')::date FROM telemetry_sample_default
    WHERE ts < before::timestamp AT TIME ZONE 'UTC'
$$;

CREATE FUNCTION telemetry_drop_empty_samples(day date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    part text := 'telemetry_sample_' || to_char(day, 'YYYYMMDD');
    low timestamptz := day::timestamp AT TIME ZONE 'UTC';
    high timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    IF to_regclass(part) IS NULL THEN
        RETURN false;
    END IF;
    -- Readers lock the parent first, too.
    LOCK TABLE ONLY telemetry_sample IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', part);
    -- The index finds a row of each unit. A scan of the partition would read all deleted rows.
    IF EXISTS (
        SELECT FROM scheduler_unit AS unit WHERE EXISTS (
            SELECT FROM telemetry_sample WHERE unit_id = unit.id AND ts >= low AND ts < high
                AND date_bin('5 minutes', ts, 'epoch') BETWEEN low AND high))
    THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %I', part);
    RETURN true;
END $$;

CREATE FUNCTION telemetry_drop_packed_before(first_kept date) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    dropped integer := 0;
    part text;
BEGIN
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'telemetry_packedsamples'::regclass
          AND to_date(right(c.relname, 8), 'YYYYMMDD') < first_kept
    LOOP
        EXECUTE format('DROP TABLE %I', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
"""


# Packed samples cannot become single rows again in SQL. Without them, the table and its functions are dropped.
REVERSE = """
DO $$
DECLARE
    kept bigint := (SELECT count(*) FROM telemetry_packedsamples);
BEGIN
    IF kept > 0 THEN
        RAISE EXCEPTION 'telemetry_packedsamples has % rows; allowed: none. Packed samples cannot be unpacked.', kept
            USING HINT = 'Restore a backup from before the migration, or delete the rows: their samples are lost.';
    END IF;
END $$;
DROP FUNCTION telemetry_drop_packed_before(date);
DROP FUNCTION telemetry_drop_empty_samples(date);
DROP FUNCTION telemetry_days_of_samples(date);
DROP FUNCTION telemetry_make_packed_partition(date);
DROP TABLE telemetry_packedsamples;
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0042_narrow_samples")]

    operations = [migrations.RunSQL([TABLE, FUNCTIONS], REVERSE)]
