"""Store the counters of GPUs, and the use of runs, hosts and processes, that a batch has beside its samples.

The rows are written in the transaction of the batch, so a repeated batch is stored once. An entry of a run or
unit that the host does not have is dropped. An impossible value is stored as unknown and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import F

from agent.protocol import DeviceTrafficSeen
from scheduler.models import Gpu, Host, Run
from telemetry.core.reading_bounds import USE_BOUNDS
from telemetry.dcgm import slow_readings
from telemetry.dcgm.fields import SLOW_READINGS_OF_AGENTS
from telemetry.ingest.clock_correction import corrected_time
from telemetry.ingest.stream_format import DecodedBatch
from telemetry.models import HostUse, ProcessUse, ReadingFault, RunUse, SlowReading
from telemetry.readings.faults import FaultCount
from telemetry.readings.unit_limits import KnownUnit

MAX_ENTRIES = 20_000  # of each kind in a batch
MAX_COUNTER_TIMES = 60  # of a batch: each takes a query
MAX_DEVICES = 200  # disks and network interfaces of a host, each
MAX_NAME = 64
MAX_SLOW_VALUE = 2**62
RUN_VALUES = (
    "cpu_seconds",
    "memory_mib",
    "memory_peak_mib",
    "io_read_bytes",
    "io_written_bytes",
    "network_rx_bytes",
    "network_tx_bytes",
)
HOST_VALUES = ("cpu_seconds", "memory_used_mib", "disk_bytes", "disk_free_bytes")


@dataclass(frozen=True)
class _Owners:
    """The hosts of the batches: True if a host is simulated, and the ids of its runs and GPUs by name."""

    simulated: Mapping[int, bool]
    runs: Mapping[tuple[int, str], int]
    gpus: Mapping[tuple[int, str], int]


@dataclass
class _Rows:
    runs: list[RunUse] = field(default_factory=list)
    hosts: list[HostUse] = field(default_factory=list)
    processes: list[ProcessUse] = field(default_factory=list)


def store_usage(
    batches: Sequence[DecodedBatch],
    units: Mapping[int, Mapping[str, KnownUnit]],
    period: tuple[datetime, datetime],
) -> None:
    """Store the entries of new batches, in the caller's transaction. ``units``: by host id and uuid.

    Entries whose time is outside of ``period`` are dropped. Most batches have no entries.
    """
    given = [
        batch
        for batch in batches
        if batch.usage.gpus or batch.usage.runs or batch.usage.host or batch.usage.processes
    ]
    if not given:
        return
    owners, rows = _load_owners(given), _Rows()
    for batch in given:

        def time_of(entry: Any, batch: DecodedBatch = batch) -> datetime | None:
            return _time_of(batch, entry, period)

        _add_runs(batch, owners, time_of, rows)
        _add_hosts(batch, time_of, rows)
        _add_processes(batch, owners, units.get(batch.host, {}), time_of, rows)
        _store_gpu_counters(batch, owners, time_of)
    RunUse.objects.bulk_create(rows.runs)
    HostUse.objects.bulk_create(rows.hosts)
    ProcessUse.objects.bulk_create(rows.processes)


def _load_owners(batches: Sequence[DecodedBatch]) -> _Owners:
    hosts = {batch.host for batch in batches}
    names = {entry.run for batch in batches for entry in batch.usage.runs}
    names |= {entry.run for batch in batches for entry in batch.usage.processes}
    cards = {entry.gpu for batch in batches for entry in batch.usage.gpus}
    runs = Run.objects.filter(host__in=hosts, public_id__in=[name for name in names if _is_uuid(name)])
    # A host that moved to another pool has several rows for one GPU. The one in service comes last.
    last = F("retired_at").asc(nulls_last=True)
    gpus = Gpu.objects.filter(host__in=hosts, uuid__in=cards).order_by(last, "pk") if cards else []
    return _Owners(
        dict(Host.with_removed.filter(pk__in=hosts).values_list("pk", "simulated")),
        {(host, str(name)): pk for host, name, pk in runs.values_list("host_id", "public_id", "pk")},
        {(gpu.host_id, gpu.uuid): gpu.pk for gpu in gpus},
    )


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def _time_of(batch: DecodedBatch, entry: Any, period: tuple[datetime, datetime]) -> datetime | None:
    """Return the corrected time of an entry; None if it is outside of the period, or its clock too wrong."""
    seconds = corrected_time(entry.ts, batch.usage.true_time(entry.uptime), batch.clock_error)
    if seconds is None or not period[0].timestamp() <= seconds <= period[1].timestamp():
        return None
    return datetime.fromtimestamp(seconds, UTC)


TimeOf = Callable[[Any], datetime | None]


def _add_runs(batch: DecodedBatch, owners: _Owners, time_of: TimeOf, rows: _Rows) -> None:
    for entry in batch.usage.runs[:MAX_ENTRIES]:
        run, at = owners.runs.get((batch.host, entry.run)), time_of(entry)
        if run is not None and at is not None:
            rows.runs.append(RunUse(run_id=run, ts=at, **_values(batch, entry, RUN_VALUES, "run", at)))


def _add_hosts(batch: DecodedBatch, time_of: TimeOf, rows: _Rows) -> None:
    for entry in batch.usage.host[:MAX_ENTRIES]:
        at = time_of(entry)
        if at is None:
            continue
        rows.hosts.append(
            HostUse(
                host_id=batch.host,
                ts=at,
                disks=_traffic(entry.disks),
                networks=_traffic(entry.networks),
                **_values(batch, entry, HOST_VALUES, "host", at),
            )
        )


def _add_processes(
    batch: DecodedBatch, owners: _Owners, units: Mapping[str, KnownUnit], time_of: TimeOf, rows: _Rows
) -> None:
    for entry in batch.usage.processes[:MAX_ENTRIES]:
        run, unit, at = owners.runs.get((batch.host, entry.run)), units.get(entry.unit), time_of(entry)
        if run is None or unit is None or at is None or not 0 < entry.pid < 2**31:
            continue
        values = _values(batch, entry, ("sm_percent", "memory_mib"), "process", at)
        rows.processes.append(
            ProcessUse(
                unit_id=unit.id, ts=at, pid=entry.pid, run_id=run, name=entry.name[:MAX_NAME], **values
            )
        )


def _values(
    batch: DecodedBatch, entry: Any, names: Iterable[str], kind: str, at: datetime
) -> dict[str, float | None]:
    """Return the values of an entry by name. Impossible ones are None, and added to the batch's faults."""
    values: dict[str, float | None] = {}
    for name in names:
        value = getattr(entry, name)
        if value is not None and not 0 <= value <= USE_BOUNDS[name]:
            batch.faults.append(
                FaultCount(batch.host, f"{kind}_{name}", ReadingFault.Kind.OUT_OF_BOUNDS, 1, at, float(value))
            )
            value = None
        values[name] = value
    return values


def _traffic(devices: Sequence[DeviceTrafficSeen]) -> dict[str, list[int]]:
    return {
        each.name[:MAX_NAME]: [each.bytes_in, each.bytes_out]
        for each in devices[:MAX_DEVICES]
        if 0 <= each.bytes_in <= USE_BOUNDS["io_read_bytes"]
        and 0 <= each.bytes_out <= USE_BOUNDS["io_read_bytes"]
    }


def _store_gpu_counters(batch: DecodedBatch, owners: _Owners, time_of: TimeOf) -> None:
    source = SlowReading.Source.SIMULATED if owners.simulated.get(batch.host) else SlowReading.Source.NVML
    by_time: dict[datetime, dict[int, dict[str, int]]] = {}
    for entry in batch.usage.gpus[:MAX_ENTRIES]:
        gpu, at = owners.gpus.get((batch.host, entry.gpu)), time_of(entry)
        if gpu is None or at is None:
            continue
        known = {name: value for name, value in entry.values.items() if name in SLOW_READINGS_OF_AGENTS}
        possible = {name: value for name, value in known.items() if 0 <= value <= MAX_SLOW_VALUE}
        batch.faults += [
            FaultCount(batch.host, name, ReadingFault.Kind.OUT_OF_BOUNDS, 1, at, float(known[name]))
            for name in known.keys() - possible.keys()
        ]
        by_time.setdefault(at, {})[gpu] = possible
    for at, readings in sorted(by_time.items())[-MAX_COUNTER_TIMES:]:
        slow_readings.store_changes(readings, at, source)
