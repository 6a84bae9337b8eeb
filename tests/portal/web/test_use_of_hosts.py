"""Test the values of each minute on the pages: use of a host, counters of its GPUs, processes, and charts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from portal.web.work import use_charts
from portal.web.work.workload_tabs import _process_table
from portal.wording.pages import run_report_pages
from scheduler.models import Allocation
from telemetry.models import HostUse, ProcessUse, RunUse, Sample, SlowReading
from telemetry.reports.build import built_report
from tests.portal.web.work_samples import signed_in
from tests.telemetry.rows import hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
MIB = 2**20


def start_work(world: World) -> tuple[Allocation, datetime]:
    """Return work that has held the first GPU of alpha for five minutes, and the present."""
    now = timezone.now()
    work = workload(world, world.vision, state="running", submitted_at=now - timedelta(minutes=6))
    return hold(work, units_of(world.hosts["alpha"])[0], now - timedelta(minutes=5)), now


def page(world: World, role: str, name: str, argument: Any, **query: str) -> str:
    answer = signed_in(world.people[role]).get(reverse(name, args=[argument]), query)
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_the_page_of_a_host_shows_its_use_and_the_counters_of_its_gpus(world: World) -> None:
    host, now = world.hosts["alpha"], timezone.now()
    assert "Use of the host" not in page(world, "operator", "host", "alpha")
    for minutes in (2, 1, 0):
        count = (2 - minutes) * 60
        HostUse.objects.create(
            host=host,
            ts=now - timedelta(minutes=minutes, seconds=1),
            cpu_seconds=count * 3.0,
            memory_used_mib=2048,
            disk_bytes=10**12,
            disk_free_bytes=10**11,
            disks={"nvme0n1": [count * 10**6, 0]},
        )
    gpu = units_of(host)[0].gpu
    for reading, value in (("pcie_replays", 7), ("throttle_hw_thermal_ns", 5 * 10**9), ("ecc_corrected", 0)):
        SlowReading.objects.create(gpu=gpu, reading=reading, value=value, at=now, source="nvml")
    shown = page(world, "operator", "host", "alpha")
    for text in (
        "Use of the host",
        "3.0",
        "2.0 GiB",
        "nvme0n1, read",
        "1.0 MB/s",
        "100 GB of 1.0 TB are free",
    ):
        assert text in shown
    assert "PCIe replays" in shown and "5.0 s" in shown and "Corrected ECC errors" not in shown


def test_the_tab_use_lists_the_processes_to_people_who_may_read_the_log(world: World) -> None:
    held, now = start_work(world)
    ProcessUse.objects.create(
        unit=held.unit, ts=now, run_id=held.run_id, pid=4321, name="secret-model", sm_percent=40.0
    )
    job = held.workload.public_id
    assert "secret-model" in page(world, "member", "job", job, tab="use")
    assert _process_table(held.workload, world.vision.member, now) is not None
    assert _process_table(held.workload, world.language.member, now) is None


def test_the_chart_has_a_track_for_each_series_that_was_measured(world: World) -> None:
    held, now = start_work(world)
    without = built_report(held.workload, now)
    assert without is not None
    assert use_charts._height(without) == ""
    for minutes in (3, 2, 1):
        at, count = now - timedelta(minutes=minutes), (3 - minutes) * 60 * MIB
        Sample.objects.create(
            unit=held.unit,
            ts=at,
            allocation_id=held.pk,
            dram_active=30.0,
            pcie_rx_bytes=count,
            pcie_tx_bytes=0,
        )
        RunUse.objects.create(
            run_id=held.run_id, ts=at, cpu_seconds=1.0, io_read_bytes=count, io_written_bytes=0
        )
    report = built_report(held.workload, now)
    assert report is not None
    drawn = [entry["text"] for entry in use_charts.use_figure(report, [])["layout"]["annotations"]]
    tracks = run_report_pages.TRACKS
    measured = [tracks[name] for name in ("dram_active", "pcie_mib_s", "cpu_cores", "io_mib_s")]
    assert drawn[-4:] == measured, "the network and NVLink were not measured"
    rows = list(use_charts.host_csv_rows(report))
    assert [row[4] for row in rows].count(1.0) == 2
    assert {row[5] for row in rows} == {None}
    domains = [
        axis["domain"]
        for name, axis in use_charts.use_figure(report, [])["layout"].items()
        if "yaxis" in name
    ]
    assert all(0 <= low < high <= 1 for low, high in domains)
