"""Samples have readings of four bytes, and an index with one key for the samples of five minutes.

All samples are written again, partition by partition. Impossible values of earlier versions become NULL.
"""

from django.db import migrations

REAL = (
    "utilisation",
    "sm_active",
    "tensor_active",
    "memory_utilisation",
    "power_w",
    "temperature_c",
    "memory_temperature_c",
)
INTEGER = ("throttle_reasons", "pcie_rx_kib", "pcie_tx_kib")


def real(name):
    """Return the change of one column. NaN is greater than every number."""
    return (
        f"ALTER COLUMN {name} TYPE real USING CASE WHEN {name} BETWEEN 1e-30 AND 1e30 THEN {name}::real"
        f" WHEN {name} BETWEEN 0 AND 1e-30 THEN 0 END"
    )


def integer(name):
    return f"ALTER COLUMN {name} TYPE integer USING CASE WHEN {name} BETWEEN 0 AND 2147483647 THEN {name}::integer END"


CHANGES = ", ".join([*map(real, REAL), *map(integer, INTEGER)])
BEFORE = ", ".join(
    [f"ALTER COLUMN {name} TYPE double precision" for name in REAL]
    + [f"ALTER COLUMN {name} TYPE bigint" for name in INTEGER]
)


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0041_cubes_of_teams")]

    operations = [
        migrations.RunSQL(
            f"""
            DROP INDEX telemetry_sample_unit_ts;
            ALTER TABLE telemetry_sample {CHANGES};
            CREATE INDEX telemetry_sample_unit_bin ON telemetry_sample
                (unit_id, date_bin('5 minutes', ts, 'epoch'));
            """,
            f"""
            DROP INDEX telemetry_sample_unit_bin;
            ALTER TABLE telemetry_sample {BEFORE};
            CREATE INDEX telemetry_sample_unit_ts ON telemetry_sample (unit_id, ts);
            """,
        )
    ]
