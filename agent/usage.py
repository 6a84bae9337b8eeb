"""Collects counters, and the use of the host, its runs and their processes, once a minute."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

from agent.gpu.reader import GpuReader, MinuteReadings, UnitUse
from agent.host import processes
from agent.host.host_counters import host_use, process_network_bytes
from agent.protocol import GpuCountersSeen, HostUseSeen, ProcessUseSeen, RunUseSeen, UnitMinuteSeen
from agent.runs.manager import RunManager
from agent.server.sample_spool import BatchUsage

MINUTE_SECONDS = 60.0
SAMPLES_PER_MINUTE = 12  # with shorter samples, as in tests, the minute is shorter too
RESEND_MINUTES = 60  # interval at which unchanged counters are sent again
THROTTLE_MINUTES = 5  # interval for counters of throttled time, which grow all the time
MAX_PROCESSES = 2_000  # of one minute
# Means since the last minute. They are unknown if another run held the unit then.
MEAN_READINGS = frozenset(
    {"graphics_active", "sm_occupancy", "dram_active", "fp64_active", "fp32_active", "fp16_active"}
)


class UsageCollector:
    """Collects the values of each minute. ``due`` says when the next minute begins."""

    def __init__(self, runs: RunManager, reader: GpuReader, sample_seconds: float) -> None:
        self._runs = runs
        self._reader = reader
        self._interval = min(MINUTE_SECONDS, SAMPLES_PER_MINUTE * sample_seconds)
        self._next = 0.0
        self._minutes = 0
        self._holders: dict[str, str] | None = None  # run by unit at the last minute; None: there was none
        self._sent: dict[str, dict[str, int]] = {}  # by GPU: the counters that were sent last

    def due(self, monotonic: float) -> bool:
        """Return True once in each minute."""
        if monotonic < self._next:
            return False
        self._next = monotonic + self._interval
        return True

    async def collect(self, uses: Mapping[str, UnitUse], now: float, uptime: float) -> BatchUsage:
        """Return the entries of a minute. ``now`` is also the time of the samples to which they belong."""
        readings = await self._reader.minute(now)
        host, runs = await asyncio.to_thread(self._host_and_runs, uses, now, uptime)
        found = BatchUsage(
            units=self._units(readings, uses, now),
            gpus=self._changed_counters(readings, now, uptime),
            runs=runs,
            host=[host],
            processes=self._processes(readings, uses, now, uptime),
        )
        self._minutes += 1
        return found

    def _units(
        self, readings: MinuteReadings, uses: Mapping[str, UnitUse], now: float
    ) -> list[UnitMinuteSeen]:
        holders = {unit: use.run for unit, use in uses.items()}
        before, self._holders = self._holders, holders
        found: list[UnitMinuteSeen] = []
        for unit, values in readings.units.items():
            same = before is not None and before.get(unit) == holders.get(unit)
            known = {name: value for name, value in values.items() if same or name not in MEAN_READINGS}
            if known:
                found.append(UnitMinuteSeen(unit, now, **known))
        return found

    def _changed_counters(self, readings: MinuteReadings, now: float, uptime: float) -> list[GpuCountersSeen]:
        """Return the counters that differ from the last ones that were sent, by GPU.

        All are sent once an hour, because a batch may be lost.
        """
        is_all, is_throttle = self._minutes % RESEND_MINUTES == 0, self._minutes % THROTTLE_MINUTES == 0
        found: list[GpuCountersSeen] = []
        for gpu, counters in readings.counters.items():
            sent = self._sent.setdefault(gpu, {})
            changed = {
                name: value
                for name, value in counters.items()
                if is_all or (sent.get(name) != value and (is_throttle or not name.endswith("_ns")))
            }
            if changed:
                sent.update(changed)
                found.append(GpuCountersSeen(gpu, now, changed, round(uptime, 6)))
        return found

    def _processes(
        self, readings: MinuteReadings, uses: Mapping[str, UnitUse], now: float, uptime: float
    ) -> list[ProcessUseSeen]:
        """Return the processes that belong to the run on their unit. The others are strays."""
        found: list[ProcessUseSeen] = []
        for each in readings.processes:
            use = uses.get(each.unit)
            if use is None or each.pid not in use.pids or len(found) >= MAX_PROCESSES:
                continue
            process = processes.read_process(each.pid)
            found.append(
                ProcessUseSeen(
                    unit=each.unit,
                    ts=now,
                    run=use.run,
                    pid=each.pid,
                    uptime=round(uptime, 6),
                    name=process.name[:64] if process is not None else "",
                    sm_percent=each.sm_percent,
                    memory_mib=each.memory_mib,
                )
            )
        return found

    def _host_and_runs(
        self, uses: Mapping[str, UnitUse], now: float, uptime: float
    ) -> tuple[HostUseSeen, list[RunUseSeen]]:
        pids = {use.run: set(use.pids) for use in uses.values()}
        found = []
        for run in list(self._runs.runs.values()):
            if run.ended or "started_at" not in run.shim:
                continue
            use = self._runs.cgroups.use(run.about["mark"])
            members = self._runs.cgroups.members(run.about["mark"]) or pids.get(run.id, set())
            network = process_network_bytes(members)
            received, sent = (None, None) if network is None else network
            found.append(
                RunUseSeen(
                    run=run.id,
                    ts=now,
                    uptime=round(uptime, 6),
                    **dataclasses.asdict(use),
                    network_rx_bytes=received,
                    network_tx_bytes=sent,
                )
            )
        return host_use(self._runs.state.folder, now, uptime), found

    def final_uses(self) -> list[RunUseSeen]:
        """Return the use of each run that has ended since the last call, read at its end."""
        found = []
        while self._runs.final_uses:
            found.append(self._runs.final_uses.popleft())
        return found
