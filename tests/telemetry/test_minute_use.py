"""Test the reads of the values of each minute: report of a run, host, processes and counters."""

from __future__ import annotations

import datetime as dt

import pytest

from scheduler.models import Allocation, Unit, Workload
from telemetry.models import HostUse, ProcessUse, RunUse, Sample, SlowReading
from telemetry.reads.usage.gpu_counters import gpu_counters
from telemetry.reads.usage.host_use import host_use_summary
from telemetry.reads.usage.process_use import workload_processes
from telemetry.reports.build import WorkloadReport, built_report
from tests.telemetry.rows import at, hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
MIB = 2**20


def minute(allocation: Allocation, when: dt.datetime, **values: float) -> None:
    """Store a sample of the unit and time of an allocation with readings of the minute."""
    Sample.objects.create(unit=allocation.unit, ts=when, allocation_id=allocation.pk, **values)


def report(work: Workload) -> WorkloadReport:
    found = built_report(work, at(9, 10))
    assert found is not None
    return found


def held(world: World, unit: Unit | None = None) -> Allocation:
    return hold(workload(world, world.vision), unit or units_of(world.hosts["alpha"])[0], at(9, 0))


def test_the_traffic_of_a_gpu_is_the_growth_of_its_counters_and_a_reset_is_a_gap(world: World) -> None:
    allocation = held(world)
    for place, count in enumerate([0, 60, 180, 30, 90]):  # reset before the fourth
        minute(
            allocation,
            at(9, 1 + place),
            pcie_rx_bytes=count * MIB,
            pcie_tx_bytes=0,
            dram_active=10.0 * place,
        )
    series = report(allocation.workload).units[0].series
    assert series["pcie_mib_s"][:6] == [None, 1.0, 2.0, None, 1.0, None]
    assert series["dram_active"][:6] == [None, 0.0, 10.0, 20.0, 30.0, 40.0]
    assert set(series["nvlink_mib_s"]) == {None}, "not measured is unknown, not 0"


def test_no_traffic_is_counted_between_readings_of_two_holders(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    first = hold(workload(world, world.vision), unit, at(9, 0), at(9, 2, 30), end_code="finished")
    second = hold(workload(world, world.language), unit, at(9, 2, 40))
    for place, allocation in enumerate([first, first, second, second]):
        minute(allocation, at(9, 1 + place), pcie_rx_bytes=place * 60 * MIB, pcie_tx_bytes=0)
    assert report(second.workload).units[0].series["pcie_mib_s"].count(1.0) == 1
    assert report(first.workload).units[0].series["pcie_mib_s"].count(1.0) == 1


def test_traffic_with_one_unknown_direction_is_unknown(world: World) -> None:
    allocation = held(world)
    for place in range(3):
        minute(allocation, at(9, 1 + place), pcie_rx_bytes=place)
    assert set(report(allocation.workload).units[0].series["pcie_mib_s"]) == {None}


def test_the_report_has_the_use_of_the_hosts_and_its_totals(world: World) -> None:
    allocation = held(world)
    for place in range(3):
        RunUse.objects.create(
            run_id=allocation.run_id,
            ts=at(9, 1 + place),
            cpu_seconds=120.0 * place,
            memory_mib=1024,
            io_read_bytes=60 * MIB * place,
            io_written_bytes=0,
        )
    use = report(allocation.workload).host_use
    assert use.series["cpu_cores"][:4] == [None, 2.0, 2.0, None]
    assert use.series["host_memory_mib"][:4] == [None, 1024, 1024, 1024]
    assert use.series["io_mib_s"][:4] == [None, 1.0, 1.0, None]
    assert set(use.series["network_mib_s"]) == {None}
    assert use.totals == {
        "io_read_bytes": 120 * MIB,
        "io_written_bytes": 0,
        "network_rx_bytes": None,
        "network_tx_bytes": None,
    }


def test_a_total_is_unknown_if_a_run_of_the_workload_has_no_reading(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    work = workload(world, world.vision)
    first = hold(work, unit, at(9, 0), at(9, 3), end_code="preempted")
    hold(work, unit, at(9, 4))
    RunUse.objects.create(run_id=first.run_id, ts=at(9, 1), io_read_bytes=5)
    assert report(work).host_use.totals["io_read_bytes"] is None


def test_the_host_shows_rates_of_each_device_and_never_adds_their_counters(world: World) -> None:
    host = world.hosts["alpha"]
    assert host_use_summary(host, at(9, 10)) is None
    for place, disks in enumerate(
        [{"a": [0, 0]}, {"a": [60, 0], "b": [10**12, 0]}, {"b": [10**12 + 600, 0]}]
    ):
        HostUse.objects.create(
            host=host, ts=at(9, 7 + place), cpu_seconds=30.0 * place, memory_used_mib=100 * place, disks=disks
        )
    found = host_use_summary(host, at(9, 10))
    assert found is not None
    assert (found.cpu_cores.now, found.cpu_cores.mean) == (0.5, 0.5)
    assert (found.memory_mib.now, found.memory_mib.mean, found.memory_mib.peak) == (200, 100, 200)
    assert [(each.name, each.bytes_in.mean) for each in found.disks] == [("a", 1.0), ("b", 10.0)]
    assert found.networks == []
    later = host_use_summary(host, at(9, 20))
    assert later is not None and (later.cpu_cores.now, later.cpu_cores.peak) == (None, 0.5)


def test_only_processes_of_the_newest_reading_are_shown(world: World) -> None:
    allocation = held(world)
    for pid, place in ((7, 8), (8, 8), (8, 9)):
        ProcessUse.objects.create(
            unit=allocation.unit,
            ts=at(9, place),
            run_id=allocation.run_id,
            pid=pid,
            name="python",
            sm_percent=place,
        )
    found = workload_processes(allocation.workload, at(9, 10))
    assert [(each.pid, each.sm_percent, each.memory_mib) for each in found] == [(8, 9.0, None)]
    assert workload_processes(allocation.workload, at(9, 30)) == []


def test_the_last_value_of_each_counter_that_is_not_0_is_shown(world: World) -> None:
    gpu = units_of(world.hosts["alpha"])[0].gpu
    for reading, value, minute_, source in (
        ("pcie_replays", 3, 1, "dcgm"),
        ("pcie_replays", 5, 2, "nvml"),
        ("ecc_corrected", 2, 1, "nvml"),
        ("ecc_corrected", 0, 2, "nvml"),
    ):
        SlowReading.objects.create(gpu=gpu, reading=reading, value=value, at=at(9, minute_), source=source)
    found = gpu_counters(world.hosts["alpha"])
    assert [(each.gpu, each.reading, each.value, each.source) for each in found] == [
        (gpu.index, "pcie_replays", 5, "nvml")
    ]
