"""Test the reader of real GPUs and its NVML process with a fake NVML library."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.gpu import conditions, kernel_log, nvml_reader
from agent.gpu.mig import ReshapeOutcome
from agent.gpu.nvml.device import model_name
from agent.gpu.nvml_reader import NvmlGpuReader
from agent.gpu.reader import GpuProcessUse, GpuReadError, UnitUse
from agent.host import gpu_locks
from agent.protocol import GeometryPart
from tests.agent.conftest import ROOT, MakeAgent, job
from tests.agent.fake_edge import FakeEdge
from tests.seeds import first_cases
from tests.waiting import until

SOURCE = Path(__file__).with_name("fake_nvml.c")


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a freshly compiled libnvidia-ml.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail("a C compiler is missing, and in CI nothing may be skipped", pytrace=False)
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        "-o",
        str(folder / "libnvidia-ml.so.1"),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def faults(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file through which a test sets the faults of the fake library."""
    path = tmp_path / "says"
    monkeypatch.setenv("FAKE_NVML", str(path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    return path


async def test_inventory_and_sample_are_read_and_unsupported_values_are_unknown(faults: Path) -> None:
    reader = NvmlGpuReader()
    hardware = await reader.hardware()
    assert [gpu.uuid for gpu in hardware.gpus] == ["GPU-fake-0", "GPU-fake-1"]
    gpu = hardware.gpus[0]
    assert (gpu.model, gpu.memory_mib, gpu.compute_capability) == ("H100-80GB", 81559, 90)
    assert [(unit.first_slot, unit.slots, unit.profile) for unit in gpu.units] == [(0, 840, "")]
    assert (hardware.driver_version, hardware.cuda_version) == ("999.01", "12.4")
    assert [gpu.nvlink_group for gpu in hardware.gpus] == [0, 0]
    assert gpu.links == {"GPU-fake-1": "NVLink"}
    assert (gpu.nvlinks, gpu.pcie, gpu.pci_bus_id) == (2, "x8 of x16, up to generation 5", "00000000:1A:00.0")
    assert (gpu.power_limit_w, gpu.slowdown_temperature_c) == (700.0, 89)
    assert hardware.devices["GPU-fake-1"] == ["/dev/nvidia1"]
    assert hardware.notes == ["GPU 1 does not report hardware events."]
    row = (await reader.sample({}, 100.0))[0]
    assert (row.unit, row.ts, row.utilisation, row.memory_used_mib) == ("GPU-fake-0", 100.0, 55, 1000)
    assert (row.power_w, row.energy_mj, row.temperature_c) == (123.456, 777, 44)
    assert (row.sm_active, row.tensor_active, row.sm_clock_mhz, row.nvlink_kib) == (None, None, None, None)
    assert (row.processes, row.stray_processes) == (0, 0)
    later = (await reader.sample({}, 105.0))[0]
    assert later.nvlink_kib is not None and later.nvlink_kib > 0, "a rate is known from the second sample on"
    between, processes = await reader.occupancy(2.0)
    assert between[0].memory_used_mib == later.memory_used_mib and processes == reader.processes()
    assert between[0].nvlink_kib is None, (
        "reading the occupancy for a start does not consume the counters of the samples"
    )
    await reader.close()


async def test_gpus_without_nvlink_report_their_pcie_connection(faults: Path) -> None:
    faults.write_text("no links")
    reader = NvmlGpuReader()
    gpus = (await reader.hardware()).gpus
    assert [(gpu.nvlink_group, gpu.nvlinks, list(gpu.links.values())) for gpu in gpus] == [
        (None, None, ["one NUMA node"])
    ] * 2
    await reader.close()


async def test_mig_instances_are_units_with_slots_and_without_board_values(faults: Path) -> None:
    faults.write_text("mig")
    reader = NvmlGpuReader()
    hardware = await reader.hardware()
    units = [
        (unit.uuid, unit.profile, unit.first_slot, unit.slots, unit.memory_mib)
        for unit in hardware.gpus[1].units
    ]
    assert units == [("MIG-fake-1-0", "3g.40gb", 0, 360, 40448), ("MIG-fake-1-1", "3g.40gb", 360, 360, 40448)]
    numbers = [[unit.instance for unit in gpu.units] for gpu in hardware.gpus]
    assert numbers == [[None], [1, 2]]  # by these numbers, dcgm-exporter names the instances
    rows = {row.unit: row for row in await reader.sample({}, 100.0)}
    assert set(rows) == {"GPU-fake-0", "MIG-fake-1-0", "MIG-fake-1-1"}
    slice_ = rows["MIG-fake-1-0"]
    assert (slice_.utilisation, slice_.power_w, slice_.memory_used_mib) == (None, None, 1000)
    await reader.close()


async def test_the_minute_has_activity_traffic_and_counters_of_a_whole_gpu(faults: Path) -> None:
    faults.write_text("gpm counters 5")
    reader = NvmlGpuReader()
    await reader.hardware()
    first = await reader.minute(100.0)
    assert "dram_active" not in first.units["GPU-fake-0"], "a mean is known from the second reading on"
    faults.write_text("gpm nan counters 6")
    found = await reader.minute(160.0)
    values = found.units["GPU-fake-0"]
    assert {
        name: values[name] for name in ("graphics_active", "sm_occupancy", "dram_active", "fp32_active")
    } == {
        "graphics_active": 1,
        "sm_occupancy": 3,
        "dram_active": 10,
        "fp32_active": 12,
    }
    assert "fp64_active" not in values, "NaN is unknown"
    assert (values["power_limit_w"], values["pcie_tx_bytes"], values["pcie_rx_bytes"]) == (650.0, 6197, 6198)
    assert values["nvlink_rx_bytes"] - first.units["GPU-fake-0"]["nvlink_rx_bytes"] == 4 * 1000 * 1024
    assert found.counters["GPU-fake-0"] == {
        "pcie_replays": 6094,
        "throttle_power_ns": 6074,
        "remapped_rows_corrected": 6142,
        "ecc_corrected_volatile": 0,
        "ecc_uncorrected_volatile": 0,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
    }
    await reader.close()


async def test_a_value_that_the_gpu_lacks_is_tried_only_once(faults: Path) -> None:
    reader = NvmlGpuReader()
    await reader.hardware()
    assert "fan_percent" not in (await reader.minute(100.0)).units["GPU-fake-0"]
    faults.write_text("fan 30 counters 1")
    again = await reader.minute(160.0)
    assert "fan_percent" not in again.units["GPU-fake-0"], "it would have been read, had it been asked for"
    assert "pcie_replays" not in again.counters["GPU-fake-0"]
    await reader.close()


async def test_an_error_that_passes_does_not_count_as_lacking(faults: Path) -> None:
    faults.write_text("lost")
    reader = NvmlGpuReader()
    faults.write_text("")
    await reader.hardware()
    faults.write_text("lost")
    assert "power_limit_w" not in (await reader.minute(100.0)).units["GPU-fake-0"]
    faults.write_text("")
    assert (await reader.minute(160.0)).units["GPU-fake-0"]["power_limit_w"] == 650.0
    await reader.close()


async def test_a_mig_instance_has_its_own_activity_and_no_value_of_the_whole_gpu(faults: Path) -> None:
    faults.write_text("mig gpm counters 5 pid 77 busy 40")
    reader = NvmlGpuReader()
    await reader.hardware()
    await reader.minute(100.0)
    found = await reader.minute(160.0)
    assert set(found.units) == {"GPU-fake-0", "MIG-fake-1-0", "MIG-fake-1-1"}
    assert set(found.units["MIG-fake-1-0"]) == {
        "graphics_active",
        "sm_occupancy",
        "dram_active",
        "fp64_active",
        "fp32_active",
        "fp16_active",
    }
    assert found.counters["GPU-fake-1"]["pcie_replays"] == 5094, "the counters of the board are still read"
    await reader.close()


async def test_the_sm_share_of_each_process_is_read(faults: Path) -> None:
    faults.write_text("pid 77 busy 40")
    reader = NvmlGpuReader()
    await reader.hardware()
    assert (await reader.minute(100.0)).processes == [GpuProcessUse("GPU-fake-0", 77, 1, 41.0)]
    faults.write_text("pid 77")
    assert (await reader.minute(160.0)).processes == [GpuProcessUse("GPU-fake-0", 77, 1, None)]
    await reader.close()


HALVES = [GeometryPart("3g.40gb", 0), GeometryPart("3g.40gb", 4)]
SEVENTHS = [GeometryPart("1g.10gb", start) for start in range(7)]


async def reshape_gpu(
    reader: NvmlGpuReader, tmp_path: Path, parts: list[GeometryPart], before: list[str] | None = None
) -> ReshapeOutcome:
    outcome = await reader.reshape("GPU-fake-1", parts, before, tmp_path / "locks", 20.0)
    assert outcome is not None
    return outcome


async def units(reader: NvmlGpuReader) -> list[tuple[str, int, int]]:
    gpu = (await reader.hardware()).gpus[1]
    return [(unit.profile, unit.first_slot, unit.slots) for unit in gpu.units]


async def test_a_gpu_is_split_into_instances_and_merged_again(faults: Path, tmp_path: Path) -> None:
    reader = NvmlGpuReader()
    offered = (await reader.hardware()).mig_profiles["H100-80GB"]
    assert [(item.name, item.slices, item.most, item.memory_mib) for item in offered] == [
        ("1g.10gb", 1, 7, 9856),
        ("2g.20gb", 2, 3, 19968),
        ("3g.40gb", 3, 2, 40448),
    ]
    assert [item.starts for item in offered] == [[], [], []], (
        "while MIG is off the driver reports no placements"
    )
    assert (await reshape_gpu(reader, tmp_path, HALVES)).state == "done"
    assert await units(reader) == [("3g.40gb", 0, 360), ("3g.40gb", 360, 360)]
    assert [item.starts for item in (await reader.hardware()).mig_profiles["H100-80GB"]][2] == [0, 4]
    assert {row.unit for row in await reader.sample({}, 100.0)} == {
        "GPU-fake-0",
        "MIG-fake-1-0",
        "MIG-fake-1-1",
    }
    assert (await reshape_gpu(reader, tmp_path, SEVENTHS, ["3g.40gb"] * 2)).state == "done"
    assert [slots for _, _, slots in await units(reader)] == [120] * 7
    # If a part has no start, the driver chooses the placement.
    mixed = [GeometryPart("3g.40gb"), *[GeometryPart("1g.10gb")] * 4]
    assert (await reshape_gpu(reader, tmp_path, mixed, ["1g.10gb"] * 7)).state == "done"
    assert sorted(profile for profile, _, _ in await units(reader)) == ["1g.10gb"] * 4 + ["3g.40gb"]
    assert (await reshape_gpu(reader, tmp_path, [], ["3g.40gb"] * 2)).state == "done"
    assert await units(reader) == [("", 0, 840)]
    await reader.close()


@pytest.mark.parametrize(
    ("fault_text", "message"),
    [
        ("reshape in use", "MIG mode: a process still uses the GPU"),
        ("reshape needs a reset", "MIG mode: the GPU needs a reset first"),
        ("reshape not permitted", "MIG mode: the agent may not do that: it has to run as root"),
        ("room for 1", "making 3g.40gb: it does not fit on the GPU"),
    ],
)
async def test_a_reshape_that_the_driver_rejects_leaves_the_gpu_unchanged(
    faults: Path, tmp_path: Path, fault_text: str, message: str
) -> None:
    reader = NvmlGpuReader()
    await reader.hardware()
    faults.write_text(fault_text)
    outcome = await reshape_gpu(reader, tmp_path, HALVES)
    assert (outcome.state, outcome.detail) == ("failed", message)
    assert await units(reader) == [("", 0, 840)]
    await reader.close()


async def test_the_old_instances_are_restored_if_the_new_ones_do_not_fit(
    faults: Path, tmp_path: Path
) -> None:
    faults.write_text("mig")
    reader = NvmlGpuReader()
    await reader.hardware()
    faults.write_text("mig room for 3")
    outcome = await reshape_gpu(reader, tmp_path, SEVENTHS, ["3g.40gb"] * 2)
    assert (outcome.state, outcome.detail) == ("failed", "making 1g.10gb: it does not fit on the GPU")
    assert [profile for profile, _, _ in await units(reader)] == ["3g.40gb"] * 2
    faults.write_text("mig room for 0")
    outcome = await reshape_gpu(reader, tmp_path, SEVENTHS, ["3g.40gb"] * 2)
    assert outcome.state == "unsure" and "could not be restored" in outcome.detail
    await reader.close()


async def test_a_gpu_unreadable_after_a_split_is_lost_without_its_old_units(
    faults: Path, tmp_path: Path
) -> None:
    reader = NvmlGpuReader()
    notes = (await reader.hardware()).notes
    faults.write_text("gone 1")
    assert (await reshape_gpu(reader, tmp_path, HALVES)).state == "done"
    lost = await reader.hardware()
    assert set(lost.lost) == {"GPU-fake-1"} and "GPU 1 can't be read" in lost.notes[-1]
    assert "GPU-fake-1" not in {row.unit for row in await reader.sample({}, 100.0)}
    again = await reshape_gpu(reader, tmp_path, HALVES)
    assert (again.state, again.detail) == ("unsure", "it can't be read (GPU 1: GPU is lost)")
    faults.unlink()
    assert (await reshape_gpu(reader, tmp_path, HALVES)).state == "done", (
        "a change first tries to read the GPU again"
    )
    assert await units(reader) == [("3g.40gb", 0, 360), ("3g.40gb", 360, 360)]
    assert (await reader.hardware()).notes == notes, "its events are registered once"
    await reader.close()


async def test_a_gpu_without_mig_reports_that_it_cannot_be_split(faults: Path, tmp_path: Path) -> None:
    reader = NvmlGpuReader()
    await reader.hardware()
    outcome = await reader.reshape("GPU-fake-0", HALVES, None, tmp_path / "locks", 20.0)
    assert outcome == ReshapeOutcome("failed", "MIG mode: the GPU or its driver does not support that")
    await reader.close()


async def test_a_gpu_that_is_held_is_not_split(faults: Path, tmp_path: Path) -> None:
    reader = NvmlGpuReader()
    await reader.hardware()
    held = gpu_locks.lock_slots(tmp_path / "locks", [gpu_locks.SlotClaim("GPU-fake-1", 0, 120)])
    assert await reader.reshape("GPU-fake-1", HALVES, None, tmp_path / "locks", 20.0) is None
    held.close()
    assert (await reshape_gpu(reader, tmp_path, HALVES)).state == "done", "the lock is free again"
    gpu_locks.lock_slots(tmp_path / "locks", [gpu_locks.SlotClaim("GPU-fake-1", 0, 840)]).close()
    await reader.close()


async def test_a_hanging_reshape_blocks_no_samples_and_completes_later(faults: Path, tmp_path: Path) -> None:
    reader = NvmlGpuReader()
    await reader.hardware()
    faults.write_text("reshape hangs")
    splitting = asyncio.create_task(reader.reshape("GPU-fake-1", HALVES, None, tmp_path / "locks", 5.0))
    await until(lambda: reader._asked == "reshape")
    rows = await reader.sample({}, 100.0)
    assert not splitting.done() and {row.utilisation for row in rows} == {None}
    with pytest.raises(GpuReadError, match="within 5 s"):
        await splitting
    faults.unlink()
    for _ in range(100):
        try:
            outcome = await reader.reshape("GPU-fake-1", HALVES, None, tmp_path / "locks", 20.0)
            break
        except GpuReadError:
            await asyncio.sleep(0.1)
    assert outcome == ReshapeOutcome("done")
    assert await units(reader) == [("3g.40gb", 0, 360), ("3g.40gb", 360, 360)]
    await reader.close()


async def test_a_process_of_no_run_is_a_stray(faults: Path) -> None:
    faults.write_text("pid 4242")
    reader = NvmlGpuReader()
    await reader.hardware()
    stray = (await reader.sample({}, 100.0))[0]
    assert (stray.processes, stray.stray_processes, stray.run) == (1, 1, None)
    assert [(each.gpu, each.pid, each.memory_mib) for each in reader.processes()] == [("GPU-fake-0", 4242, 1)]
    own = (await reader.sample({"GPU-fake-0": UnitUse("run-1", frozenset({4242}), 0.0, 1)}, 100.0))[0]
    assert (own.processes, own.stray_processes, own.run) == (1, 0, "run-1")
    await reader.close()


async def test_a_hanging_driver_makes_samples_unknown_but_does_not_block(faults: Path) -> None:
    reader = NvmlGpuReader(deadline_seconds=0.5)
    await reader.hardware()
    faults.write_text("hang")
    for _ in range(2):
        rows = await reader.sample({}, 100.0)  # the driver hangs from this call until the end of the test
        assert [(row.unit, row.utilisation, row.processes) for row in rows] == [
            ("GPU-fake-0", None, None),
            ("GPU-fake-1", None, None),
        ]
    process = reader._process
    faults.unlink()
    for _ in range(100):
        if (await reader.sample({}, 100.0))[0].utilisation == 55:
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("readings did not return")
    assert reader._process is process, "the NVML process was awaited, not killed"
    await reader.close()


async def test_values_of_a_lost_gpu_are_unknown_and_never_zero(faults: Path) -> None:
    reader = NvmlGpuReader()
    await reader.hardware()
    faults.write_text("lost")
    row = (await reader.sample({}, 100.0))[0]
    assert (row.utilisation, row.memory_used_mib, row.power_w, row.temperature_c) == (None, None, None, None)
    await reader.close()


async def test_each_occurrence_of_an_xid_is_an_event(faults: Path) -> None:
    reader = NvmlGpuReader()
    await reader.hardware()
    found = []
    for _ in range(2):
        faults.write_text("xid")
        found += await reader.events(100.0)
    assert [(event.gpu, event.code, event.source) for event in found] == [("GPU-fake-0", "xid:79", "xid")] * 2
    assert found[0].event_id != found[1].event_id
    assert await reader.events(100.0) == []
    await reader.close()


@pytest.mark.parametrize("next_question", ["events", "sample"])
async def test_an_xid_in_a_late_answer_is_reported_once(faults: Path, next_question: str) -> None:
    reader = NvmlGpuReader(deadline_seconds=0.3)
    await reader.hardware()
    await reader.events(100.0)
    faults.write_text("xid, events hang")
    assert [event.code for event in await reader.events(101.0)] == ["nvml:hung"]
    faults.unlink()
    for _ in range(100):
        if next_question == "sample" and (await reader.sample({}, 102.0))[0].utilisation is None:
            await asyncio.sleep(0.05)
            continue
        found = await reader.events(103.0)
        if found:
            break
        await asyncio.sleep(0.05)
    assert [(event.gpu, event.code, event.source) for event in found] == [("GPU-fake-0", "xid:79", "xid")]
    assert await reader.events(104.0) == []
    await reader.close()


async def test_an_xid_is_reported_if_the_gpu_hangs_after_it(
    faults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = NvmlGpuReader(deadline_seconds=0.5)
    await reader.hardware()
    await reader.events(100.0)
    faults.write_text("xid")
    ask = reader._ask

    async def then_hangs(what: str, *about: Any) -> Any:
        if what == "conditions":
            raise GpuReadError("NVML did not answer within 0.5 s")
        return await ask(what, *about)

    monkeypatch.setattr(reader, "_ask", then_hangs)
    monkeypatch.setattr(nvml_reader, "CONDITIONS_SECONDS", 0.0)
    monkeypatch.setattr(nvml_reader, "STORM_CONDITIONS_SECONDS", 0.0)
    assert [event.code for event in await reader.events(101.0)] == ["xid:79"]
    await reader.close()


@pytest.fixture
def conditions_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the reader check the GPUs for lasting conditions, e.g. throttling, at each read of events."""
    monkeypatch.setattr(nvml_reader, "CONDITIONS_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("fault_text", "code"),
    first_cases(
        4,
        [
            ("recovery 1", "recovery:gpu_reset"),
            ("recovery 2", "recovery:node_reboot"),
            ("remap pending", "remap:pending"),
            ("remap failed", "remap:failed"),
            ("ecc 3", "ecc:uncorrectable"),
            ("crc 7", "nvlink:errors"),
            ("clocks 64", "throttle:thermal"),
            ("clocks 136", "throttle:power_brake"),
            ("clocks 8", "throttle:hardware"),
            ("link down", "nvlink:down"),
            ("lost", "nvml:lost"),
        ],
    ),
)
async def test_a_worsened_condition_is_reported_once_while_it_lasts(
    faults: Path, conditions_every_time: None, fault_text: str, code: str
) -> None:
    reader = NvmlGpuReader()
    await reader.hardware()
    assert await reader.events(100.0) == []
    faults.write_text(fault_text)
    found = await reader.events(101.0)
    assert [(event.gpu, event.code, event.source) for event in found if event.gpu == "GPU-fake-0"] == [
        ("GPU-fake-0", code, "nvml")
    ]
    assert await reader.events(102.0) == []
    await reader.close()


async def test_a_condition_keeps_its_event_id_after_a_restart_of_nvml(
    faults: Path, conditions_every_time: None
) -> None:
    faults.write_text("recovery 1")
    names = []
    for _ in range(2):
        reader = NvmlGpuReader()
        await reader.hardware()
        names.append({event.event_id for event in await reader.events(100.0)})
        await reader.close()
    assert names[0] == names[1] and len(names[0]) == 1


async def test_errors_from_before_the_agent_are_not_reported_as_new(
    faults: Path, conditions_every_time: None
) -> None:
    faults.write_text("ecc 5")
    reader = NvmlGpuReader()
    await reader.hardware()
    assert await reader.events(100.0) == []
    faults.write_text("ecc 7")
    (event,) = await reader.events(101.0)
    assert event.detail == "7 memory errors since the driver was loaded, 2 of them new"
    await reader.close()


async def test_a_driver_that_does_not_answer_is_one_event(faults: Path, conditions_every_time: None) -> None:
    reader = NvmlGpuReader(deadline_seconds=0.5)
    await reader.hardware()
    faults.write_text("hang")
    found = await reader.events(100.0) + await reader.events(101.0)
    assert [(event.gpu, event.code) for event in found] == [("", "nvml:hung")]
    faults.unlink()
    for _ in range(200):  # until the late answer arrives, which must not create another event
        assert await reader.events(102.0) == []
        if reader._silent_since is None:
            break
        await asyncio.sleep(0.05)
    await reader.close()


def test_a_lost_gpu_reports_one_event_and_its_return_reports_none() -> None:
    healthy: dict[str, Any] = {"lost": False, "uncorrectable": 3, "recovery": 0}
    lost: dict[str, Any] = {"lost": True, "uncorrectable": None, "recovery": None}
    (event,) = conditions.worsened_conditions("GPU-1", healthy, lost, boot="b", now=1.0)
    assert event.code == "nvml:lost"
    assert conditions.worsened_conditions("GPU-1", lost, healthy, boot="b", now=2.0) == []


async def test_xids_from_before_the_agent_are_read_from_the_kernel_log(
    faults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        (
            "4,812,5000000,-;NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>,"
            " GPU has fallen off the bus."
        ),
        "4,813,6000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4242",
        "6,814,7000000,-;usb 1-1: new device; NVRM: no Xid",
        " SUBSYSTEM=pci",
        "garbage",
    ]
    found = list(kernel_log.parse_xids(lines, 1000.0))
    assert [(xid.number, xid.code, xid.ts) for xid in found] == [(812, 79, 1005.0), (813, 31, 1006.0)]
    monkeypatch.setattr(kernel_log, "read_xids", lambda: found)
    reader = NvmlGpuReader()
    await reader.hardware()
    events = await reader.earlier(2000.0)
    assert [(event.gpu, event.code, event.ts) for event in events] == [("GPU-fake-0", "xid:79", 1005.0)]
    assert [event.event_id for event in await reader.earlier(2000.0)] == [events[0].event_id]
    found += kernel_log.parse_xids(["4,900,9000000,-;NVRM: Xid (PCI:0000:1a:00): 79, again"], 1000.0)
    driver = [{"gpu": "GPU-fake-0", "code": "xid:79"}, {"gpu": "GPU-fake-0", "code": "xid:79"}]
    reported, unmatched = await reader._events_with_ids(
        driver, 5_000_000.0
    )  # the clock was changed between the two reads
    later = NvmlGpuReader()
    await later.hardware()
    read = await later.earlier(2000.0)
    assert [event.event_id for event in read] == [events[0].event_id, reported.event_id], (
        "the next agent knows that the event was reported"
    )
    assert unmatched.event_id not in {event.event_id for event in read}
    await later.close()
    await reader.close()


async def test_a_killed_nvml_process_is_restarted(faults: Path) -> None:
    reader = NvmlGpuReader()
    await reader.hardware()
    assert reader._process is not None
    reader._process.kill()
    reader._process.wait()
    assert (await reader.sample({}, 100.0))[0].utilisation == 55
    await reader.close()


async def test_an_agent_with_real_gpus_runs_jobs_and_reports_no_simulation(
    edge: FakeEdge, make_agent: MakeAgent, faults: Path
) -> None:
    agent = await make_agent("--simulate", "", "--simulate-mig", "")
    assert not edge.observed[-1].inventory.simulated
    await edge.want(job("echo $CUDA_VISIBLE_DEVICES", units=["GPU-fake-1"]))
    await edge.until_state("run-1", "ended")
    await edge.until(lambda: edge.log("run-1") == "GPU-fake-1\n")
    await edge.until(lambda: any(row.utilisation == 56 for batch in edge.batches for row in batch.rows))
    assert agent.process is not None


def test_probe_prints_the_hardware_and_fails_without_a_gpu(faults: Path) -> None:
    command = [sys.executable, "-m", "agent", "probe"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    printed = json.loads(found.stdout)
    assert not printed["simulated"] and printed["hardware"]["gpus"][0]["model"] == "H100-80GB"
    nothing = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    if subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"],
        env=nothing,
        capture_output=True,
    ).returncode:
        refused = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=nothing)
        assert refused.returncode == 1 and "no GPU can be read here" in refused.stderr


SMI = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>999.01</driver_version><cuda_version>12.4</cuda_version><attached_gpus>2</attached_gpus>
  <gpu id="00000000:1A:00.0">
    <uuid>GPU-fake-0</uuid><mig_mode><current_mig>N/A</current_mig></mig_mode>
    <pci><pci_bus_id>00000000:1A:00.0</pci_bus_id>
      <pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width></link_widths></pci_gpu_link_info></pci>
    <fb_memory_usage><total>81559 MiB</total><used>1000 MiB</used></fb_memory_usage>
    <utilization><gpu_util>55 %</gpu_util></utilization><temperature><gpu_temp>44 C</gpu_temp></temperature>
    <gpu_power_readings><power_draw>123.46 W</power_draw></gpu_power_readings><processes></processes>
  </gpu>
  <gpu id="00000000:1B:00.0">
    <uuid>GPU-fake-1</uuid><mig_mode><current_mig>Disabled</current_mig></mig_mode>
    <pci><pci_bus_id>00000000:1B:00.0</pci_bus_id></pci>
    <fb_memory_usage><total>40000 MiB</total><used>1000 MiB</used></fb_memory_usage>
    <temperature><gpu_temp>N/A</gpu_temp></temperature>
    <processes><process_info><pid>7</pid><type>C</type></process_info></processes>
  </gpu>
</nvidia_smi_log>
"""


def test_probe_compares_its_values_with_nvidia_smi(
    faults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = '-q -x' ] || exit 2\ncat <<'END'\n{SMI}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = subprocess.run(
        [sys.executable, "-m", "agent", "probe"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    printed = json.loads(found.stdout)
    comparison = printed["nvidia_smi"]
    assert comparison["compared"] and comparison["differ"] == [
        "memory MiB of GPU-fake-1",
        "processes of GPU-fake-1",
    ]
    facts = {(each["gpu"], each["fact"]): each["same"] for each in comparison["facts"]}
    assert facts["", "driver version"] and facts["", "CUDA version"] and facts["", "GPUs"]
    assert facts["GPU-fake-0", "PCI address"] and facts["GPU-fake-0", "PCIe lanes at most"]
    assert facts["GPU-fake-0", "power W"] and facts["GPU-fake-0", "split into instances"] is None
    assert facts["GPU-fake-1", "temperature °C"] is None, "an unknown value on one side is no difference"
    assert printed["conditions"]["GPU-fake-0"]["remapped"] == 2


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 9", "nvidia-smi ended with 9"),
        ("echo hello", "not XML"),
        ("echo '<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>'", "declares entities"),
    ],
)
def test_probe_reports_why_nvidia_smi_could_not_be_compared(
    faults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = subprocess.run(
        [sys.executable, "-m", "agent", "probe"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    comparison = json.loads(found.stdout)["nvidia_smi"]
    assert not comparison["compared"] and why in comparison["why"]


@pytest.mark.parametrize(
    ("name", "memory_mib", "model"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100-80GB"),
        ("NVIDIA H100 NVL", 95830, "H100-94GB"),
        ("NVIDIA H200", 143771, "H200-141GB"),
        ("NVIDIA A100-SXM4-40GB", 40536, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80GB"),
        ("Tesla V100-SXM2-32GB", 32768, "V100-32GB"),
        ("Tesla T4", 15360, "T4-16GB"),
        ("NVIDIA L40S", 46068, "L40S-48GB"),
        ("NVIDIA L4", 23034, "L4-24GB"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX-4090-24GB"),
        ("NVIDIA RTX A6000", 49140, "RTX-A6000-48GB"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX-6000-Ada-48GB"),
    ],
)
def test_models_are_named_by_family_and_nominal_memory(name: str, memory_mib: int, model: str) -> None:
    assert model_name(name, memory_mib) == model
