"""Pack samples with the noise of real GPUs, and compare them with the single rows.

Utilisation is a whole per cent, power has milliwatts, and activity of SMs is a number of full precision, as
NVML gives them. Neighbouring samples differ in almost every reading.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from benchmarks.harness.processor_time import Timer
from benchmarks.harness.sample_fleet import EVERY_SECONDS, VALUES_PER_SAMPLE
from benchmarks.telemetry_month.sample_path import DAY_HOURS, START, SampleFleet, send

DAY = START - timedelta(days=4)
MOST_HOSTS = 16
HOURS = 4
BATCH_MINUTES = 10
TICKS = BATCH_MINUTES * 60 // EVERY_SECONDS


def pack_day(fleet: SampleFleet, rng: random.Random) -> dict[str, Any]:
    """Return the bytes of a reading, the processor time of a day, and the values that differ when packed."""
    import numpy as np
    from django.db import connection

    from scheduler.models import Unit
    from telemetry.samples.columns import COLUMN_KINDS
    from telemetry.samples.packing import pack_samples
    from telemetry.samples.stored import load_samples

    hosts = fleet.hosts[: min(MOST_HOSTS, len(fleet.hosts) // 2)]
    rows = send(list(_batches(fleet, hosts, rng)), fleet.now)
    ids = Unit.objects.filter(gpu__host__in=[host for host, _ in hosts]).order_by("pk")
    units = np.array(list(ids.values_list("pk", flat=True)), np.int64)
    names, end = tuple(COLUMN_KINDS), DAY + timedelta(days=1)
    before = load_samples(names, units, DAY, end)
    timer = Timer()
    with timer:
        done = pack_samples(end + timedelta(days=3))
    after = load_samples(names, units, DAY, end)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_total_relation_size(%s)", [f"telemetry_packedsamples_{DAY:%Y%m%d}"])
        size = cursor.fetchone()[0]
    differences = [
        int((~np.isclose(before[name], after[name], rtol=0, atol=0, equal_nan=True)).sum())
        if len(before["ts"]) == len(after["ts"])
        else len(before["ts"])
        for name in before
    ]
    a_day = fleet.gpus * DAY_HOURS * 3_600 / EVERY_SECONDS
    return {
        "bytes_per_value_packed": round(size / rows / VALUES_PER_SAMPLE, 2),
        "pack_day_cpu_s": round(timer.cpu / done.samples * a_day, 1),
        "packed_samples": done.samples,
        "packed_differences": sum(differences),
    }


def _batches(
    fleet: SampleFleet, hosts: list[tuple[int, list[str]]], rng: random.Random
) -> Iterator[tuple[int, Any]]:
    from agent.protocol import SampleBatch, SampleRow

    for host, uuids in hosts:
        energy = dict.fromkeys(uuids, 1_000_000_000)
        for number in range(HOURS * 60 // BATCH_MINUTES):
            begin = (DAY + timedelta(minutes=number * BATCH_MINUTES)).timestamp()
            load = rng.uniform(20, 90)
            rows = []
            for tick in range(TICKS):
                moment = begin + tick * EVERY_SECONDS + rng.uniform(0, 0.02)
                for uuid in uuids:
                    use = load + rng.uniform(0, 10)
                    power = round(300 + 3 * use + rng.uniform(0, 5), 3)
                    energy[uuid] += round(power * EVERY_SECONDS * 1_000)
                    rows.append(
                        SampleRow(
                            unit=uuid,
                            ts=moment,
                            utilisation=float(round(use)),
                            sm_active=use * 0.6 + rng.random(),
                            tensor_active=use * 0.3 + rng.random(),
                            memory_used_mib=40_000 + rng.randint(0, 3),
                            memory_utilisation=float(round(use * 0.5)),
                            power_w=power,
                            energy_mj=energy[uuid],
                            temperature_c=float(round(40 + use / 4)),
                            memory_temperature_c=float(round(45 + use / 4)),
                            sm_clock_mhz=rng.choice([1_740, 1_755, 1_770]),
                            throttle_reasons=rng.choice([0, 0, 4]),
                            pcie_rx_kib=rng.randint(500_000, 2_000_000),
                            pcie_tx_kib=rng.randint(500_000, 2_000_000),
                            nvlink_kib=rng.randint(50_000_000, 90_000_000),
                            processes=1,
                            stray_processes=0,
                        )
                    )
            yield host, SampleBatch(sequence=fleet.minutes + number + 1, rows=rows)
