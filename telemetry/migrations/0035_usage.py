"""Counters of GPUs, and the use of runs, hosts and processes."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import DO_NOTHING

from scheduler.migrations._tables import table

SAMPLE_COLUMNS = """
ALTER TABLE telemetry_sample
    ADD COLUMN pcie_rx_bytes bigint,
    ADD COLUMN pcie_tx_bytes bigint,
    ADD COLUMN nvlink_rx_bytes bigint,
    ADD COLUMN nvlink_tx_bytes bigint
"""
DROP_SAMPLE_COLUMNS = """
ALTER TABLE telemetry_sample
    DROP COLUMN pcie_rx_bytes,
    DROP COLUMN pcie_tx_bytes,
    DROP COLUMN nvlink_rx_bytes,
    DROP COLUMN nvlink_tx_bytes
"""
# ON ONLY: partitions that exist have no such readings of agents, and indexing them would take long. A partition
# that is attached later gets the index.
SAMPLE_INDEX = """
CREATE INDEX telemetry_sample_sparse ON ONLY telemetry_sample (unit_id, ts)
    WHERE dram_active IS NOT NULL OR pcie_rx_bytes IS NOT NULL OR nvlink_rx_bytes IS NOT NULL
"""
TABLES = """
CREATE TABLE telemetry_runuse (
    run_id bigint NOT NULL, ts timestamptz NOT NULL, cpu_seconds double precision, memory_mib integer,
    memory_peak_mib integer, io_read_bytes bigint, io_written_bytes bigint, network_rx_bytes bigint,
    network_tx_bytes bigint
) PARTITION BY RANGE (ts);
CREATE INDEX telemetry_runuse_run_ts ON telemetry_runuse (run_id, ts);
CREATE TABLE telemetry_runuse_default PARTITION OF telemetry_runuse DEFAULT;
CREATE TABLE telemetry_hostuse (
    host_id bigint NOT NULL, ts timestamptz NOT NULL, cpu_seconds double precision, memory_used_mib integer,
    disk_bytes bigint, disk_free_bytes bigint, disks jsonb NOT NULL, networks jsonb NOT NULL
) PARTITION BY RANGE (ts);
CREATE INDEX telemetry_hostuse_host_ts ON telemetry_hostuse (host_id, ts);
CREATE TABLE telemetry_hostuse_default PARTITION OF telemetry_hostuse DEFAULT;
CREATE TABLE telemetry_processuse (
    unit_id bigint NOT NULL, ts timestamptz NOT NULL, pid integer NOT NULL, run_id bigint NOT NULL,
    name varchar(64) NOT NULL, sm_percent real, memory_mib integer
) PARTITION BY RANGE (ts);
CREATE INDEX telemetry_processuse_run_ts ON telemetry_processuse (run_id, ts);
CREATE TABLE telemetry_processuse_default PARTITION OF telemetry_processuse DEFAULT;
"""
DROP_TABLES = "DROP TABLE telemetry_runuse, telemetry_hostuse, telemetry_processuse"
PARTITIONS = """
CREATE FUNCTION telemetry_make_usage_partitions(first_day date, days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    made integer := 0;
    day date;
    parent text;
    part text;
    low timestamptz;
    high timestamptz;
BEGIN
    IF days < 1 OR days > 400 THEN
        RAISE EXCEPTION 'days: % is not between 1 and 400', days;
    END IF;
    FOREACH parent IN ARRAY ARRAY['telemetry_runuse', 'telemetry_hostuse', 'telemetry_processuse'] LOOP
        FOR day IN SELECT first_day + n FROM generate_series(0, days - 1) AS n LOOP
            part := parent || '_' || to_char(day, 'YYYYMMDD');
            IF to_regclass(part) IS NOT NULL THEN
                CONTINUE;
            END IF;
            low := day::timestamp AT TIME ZONE 'UTC';
            high := (day + 1)::timestamp AT TIME ZONE 'UTC';
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS)', part, parent);
            EXECUTE format(
                'WITH early AS (DELETE FROM %I WHERE ts >= %L AND ts < %L RETURNING *) '
                'INSERT INTO %I SELECT * FROM early', parent || '_default', low, high, part);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part, low, high);
            made := made + 1;
        END LOOP;
    END LOOP;
    RETURN made;
END $$;
CREATE FUNCTION telemetry_drop_usage_before(first_kept date) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    dropped integer := 0;
    parent text;
    part text;
BEGIN
    FOREACH parent IN ARRAY ARRAY['telemetry_runuse', 'telemetry_hostuse', 'telemetry_processuse'] LOOP
        FOR part IN
            SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = parent::regclass AND c.relname ~ ('^' || parent || '_[0-9]{8}$')
              AND to_date(right(c.relname, 8), 'YYYYMMDD') < first_kept
        LOOP
            EXECUTE format('DROP TABLE %I', part);
            dropped := dropped + 1;
        END LOOP;
        EXECUTE format('DELETE FROM %I WHERE ts < %L', parent || '_default', first_kept::timestamp AT TIME ZONE 'UTC');
    END LOOP;
    RETURN dropped;
END $$
"""
DROP_PARTITIONS = """
DROP FUNCTION telemetry_make_usage_partitions(date, integer);
DROP FUNCTION telemetry_drop_usage_before(date)
"""


def reading(kind, **arguments):
    """Return a column that is NULL where nothing was measured."""
    return kind(null=True, **arguments)


def link(to):
    """Return a reference without a constraint, as in samples."""
    return models.ForeignKey(to, DO_NOTHING, db_constraint=False, related_name="+")


def series(help_text):
    """Return a column with one value for each point of a report."""
    return ArrayField(models.FloatField(null=True), default=list, help_text=help_text)


SLOW_SOURCES = [("nvml", "NVML"), ("simulated", "simulated"), ("dcgm", "dcgm-exporter")]


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0031_cubes_of_days_read_their_hours")]

    operations = [
        migrations.RunSQL(SAMPLE_COLUMNS, DROP_SAMPLE_COLUMNS),
        migrations.RunSQL(SAMPLE_INDEX, "DROP INDEX telemetry_sample_sparse"),
        migrations.RunSQL(TABLES, DROP_TABLES),
        migrations.RunSQL(PARTITIONS, DROP_PARTITIONS),
        table(
            "RunUse",
            options={"managed": False, "db_table": "telemetry_runuse"},
            pk=models.CompositePrimaryKey(
                "run", "ts", blank=True, editable=False, primary_key=True, serialize=False
            ),
            run=link("scheduler.run"),
            ts=models.DateTimeField(),
            cpu_seconds=reading(models.FloatField),
            memory_mib=reading(models.IntegerField),
            memory_peak_mib=reading(models.IntegerField),
            io_read_bytes=reading(models.BigIntegerField),
            io_written_bytes=reading(models.BigIntegerField),
            network_rx_bytes=reading(models.BigIntegerField),
            network_tx_bytes=reading(models.BigIntegerField),
        ),
        table(
            "HostUse",
            options={"managed": False, "db_table": "telemetry_hostuse"},
            pk=models.CompositePrimaryKey(
                "host", "ts", blank=True, editable=False, primary_key=True, serialize=False
            ),
            host=link("scheduler.host"),
            ts=models.DateTimeField(),
            cpu_seconds=reading(models.FloatField),
            memory_used_mib=reading(models.IntegerField),
            disk_bytes=reading(models.BigIntegerField),
            disk_free_bytes=reading(models.BigIntegerField),
            disks=models.JSONField(default=dict),
            networks=models.JSONField(default=dict),
        ),
        table(
            "ProcessUse",
            options={"managed": False, "db_table": "telemetry_processuse"},
            pk=models.CompositePrimaryKey(
                "unit", "ts", "pid", blank=True, editable=False, primary_key=True, serialize=False
            ),
            unit=link("scheduler.unit"),
            ts=models.DateTimeField(),
            pid=models.IntegerField(),
            run=link("scheduler.run"),
            name=models.CharField(max_length=64),
            sm_percent=reading(models.FloatField),
            memory_mib=reading(models.IntegerField),
        ),
        migrations.AlterField("slowreading", "source", models.CharField(max_length=10, choices=SLOW_SOURCES)),
        migrations.AddField("runreportunit", "dram_active", series("mean, in percent")),
        migrations.AddField("runreportunit", "pcie_mib_s", series("mean of both directions, in MiB/s")),
        migrations.AddField("runreportunit", "nvlink_mib_s", series("mean of both directions, in MiB/s")),
        migrations.AddField(
            "runreport",
            "host_use",
            models.JSONField(
                default=dict, help_text="use of CPU, memory, disks and network: series and totals"
            ),
        ),
    ]
