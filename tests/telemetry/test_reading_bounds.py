"""Test the bounds of readings, their documentation, and the clearing of values that were stored before."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection

from telemetry.core.reading_bounds import (
    COMMON_BOUNDS,
    ENERGY_FACTOR,
    GENERAL_MEMORY_MIB,
    GENERAL_POWER_LIMIT_W,
    GENERAL_SLOWDOWN_C,
    POWER_FACTOR,
    SLOWDOWN_MARGIN_C,
    UnitLimits,
    max_energy_mj,
    reading_bounds,
)
from telemetry.ingest.partitions import maintain_partitions
from telemetry.ingest.stream_format import READING_KINDS, SPARSE_READING_KINDS
from telemetry.models import ReadingFault, Rollup, RollupDue, Sample
from telemetry.rollups.roll_up import roll_up_due_buckets
from telemetry.rollups.stored_readings import READINGS
from tests.telemetry.rows import at, hold, store_rollup, workload
from tests.world import World, units_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "telemetry.md"
PERCENTS = ("utilisation", "sm_active", "tensor_active", "memory_utilisation")


def test_every_reading_has_a_bound() -> None:
    assert set(reading_bounds(UnitLimits())) == {*READING_KINDS, *SPARSE_READING_KINDS} == set(READINGS)


@pytest.mark.parametrize("limit", [None, 0.0, -5.0, 1e9])
def test_a_limit_that_is_unknown_or_impossible_is_replaced_by_the_general_limit(limit: float | None) -> None:
    assert reading_bounds(UnitLimits(None, limit, limit)) == reading_bounds(UnitLimits())


def test_the_bounds_come_from_the_limits_of_the_unit() -> None:
    bounds = reading_bounds(UnitLimits(81_559, 700.0, 89.0))
    assert (bounds["power_w"], bounds["memory_used_mib"], bounds["temperature_c"]) == (1_050, 81_559, 119)
    assert max_energy_mj(700.0, 10) == 8_400_000


def test_the_documented_bounds_are_those_of_the_code() -> None:
    table = DOCUMENT.read_text().partition("<!-- reading-bounds")[2].partition("<!-- /reading-bounds")[0]
    rows = [tuple(cell.strip() for cell in line.split("|")[1:4]) for line in table.splitlines()[3:] if line]
    power, slowdown = f"{GENERAL_POWER_LIMIT_W:.0f}", f"{GENERAL_SLOWDOWN_C:.0f}"
    assert rows == [
        (
            "power",
            f"{POWER_FACTOR} x the highest power limit that can be set",
            f"{power} W, so {GENERAL_POWER_LIMIT_W * POWER_FACTOR:.0f} W",
        ),
        ("memory used", "memory of the unit", f"{GENERAL_MEMORY_MIB} MiB"),
        (
            "temperature of GPU and memory",
            f"slowdown temperature + {SLOWDOWN_MARGIN_C:.0f} °C",
            f"{slowdown} °C, so {GENERAL_SLOWDOWN_C + SLOWDOWN_MARGIN_C:.0f} °C",
        ),
        (
            "energy between two readings",
            f"{ENERGY_FACTOR} x the power limit x the time between them",
            f"{power} W",
        ),
        ("utilisation, SM, tensor and memory activity", "100 per cent", ""),
        ("SM clock", f"{COMMON_BOUNDS['sm_clock_mhz']:.0f} MHz", ""),
        ("PCIe", f"{COMMON_BOUNDS['pcie_rx_kib']:.0f} KiB/s", ""),
        ("NVLink", f"{COMMON_BOUNDS['nvlink_kib']:.0f} KiB/s", ""),
        ("processes", f"{COMMON_BOUNDS['processes']:.0f}", ""),
    ]
    assert {COMMON_BOUNDS[name] for name in PERCENTS} == {100.0}


@pytest.mark.django_db
def test_stored_impossible_values_are_cleared_and_their_minutes_are_rolled_up_again(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, at(9), at(10), end_code="finished")
    with connection.cursor() as cursor:
        for second, power, energy, memory in ((0, 99_999.0, 900, 2_000_000), (10, 300.0, 901, 1_000)):
            cursor.execute(
                "INSERT INTO telemetry_sample (unit_id, ts, utilisation, power_w, energy_mj, memory_used_mib)"
                " VALUES (%s, %s, 50, %s, %s, %s)",
                [unit.pk, at(9, 30, second), power, energy, memory],
            )
    for resolution, bucket in ((60, at(9, 30)), (3600, at(9)), (86_400, at(0))):
        store_rollup(
            resolution,
            bucket,
            unit,
            allocation,
            held_seconds=60,
            samples=2,
            covered_seconds=10,
            energy_mj=709 * 3_600_000_000,  # 709 kWh
            memory_used_max_mib=2_000_000,
            utilisation_max=50.0,
        )
    out = StringIO()
    call_command("clear_impossible_readings", stdout=out)
    assert out.getvalue().splitlines() == [
        "2026-03-02: 1 samples, 3 rollups",
        "cleared: 1 samples, 3 rollups",
    ]
    readings = Sample.objects.order_by("ts").values_list("power_w", "memory_used_mib", "energy_mj")
    assert list(readings) == [(None, None, 900), (300.0, 1_000, 901)]
    cleared = Rollup.objects.values_list("energy_mj", "memory_used_max_mib", "utilisation_max").distinct()
    assert list(cleared) == [(None, None, 50.0)]
    faults = ReadingFault.objects.order_by("reading").values_list("reading", "count", "day", "last_at")
    day, last = at(9).date(), at(9, 30)
    assert list(faults) == [("memory_used_mib", 1, day, last), ("power_w", 1, day, last)]
    assert RollupDue.objects.get(resolution=60).bucket == at(9, 30)
    roll_up_due_buckets(at(0, 6, day=3))
    for rollup in Rollup.objects.filter(allocation=allocation):
        assert (rollup.memory_used_max_mib, rollup.energy_mj) == (1_000, 1)
    call_command("clear_impossible_readings", stdout=out)
    assert out.getvalue().splitlines()[-1] == "cleared: 0 samples, 0 rollups"


@pytest.mark.django_db
def test_counts_of_faults_are_kept_as_long_as_minute_rollups(world: World) -> None:
    host = world.hosts["alpha"]
    for day in (1, 2):
        ReadingFault.objects.create(
            host=host,
            day=at(0, day=day).date(),
            source="nvml",
            reading="power_w",
            kind="out_of_bounds",
            count=1,
            last_at=at(0, day=day),
        )
    maintain_partitions(at(0, day=1).replace(month=4))  # minutes are kept for 30 days
    assert [fault.day for fault in ReadingFault.objects.all()] == [at(0, day=2).date()]
