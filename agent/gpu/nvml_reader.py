"""Reads real GPUs through the NVML process (``agent.gpu.nvml``), which calls the driver.

A call into a hung driver may block forever, so every wait for an answer has a deadline. The process is never
killed, because killing a process during an NVML call can hang a GPU.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.gpu import conditions, kernel_log, mig
from agent.gpu.known_hardware import HardwareCache, with_lost_gpus
from agent.gpu.mig import ReshapeOutcome
from agent.gpu.reader import (
    GpuInventory,
    GpuProcess,
    GpuProcessUse,
    GpuReadError,
    HardwareEvent,
    MinuteReadings,
    UnitUse,
)
from agent.host.clock import boot_id
from agent.protocol import GeometryPart, GpuSeen, MigProfileSeen, SampleRow, parse

__all__ = ["GpuReadError", "NvmlGpuReader"]

log = logging.getLogger("agent.gpu.nvml")

CALL_TIMEOUT_SECONDS = 10.0
START_TIMEOUT_SECONDS = 60.0  # long, because without the persistence daemon the first call loads the driver
# Timeout of the first answer if an earlier inventory is known. During a longer wait, the leases of running
# workloads would expire.
KNOWN_HARDWARE_TIMEOUT_SECONDS = 5.0
UNREADABLE_AFTER_SECONDS = 20.0  # after this time with only errors from NVML, an event is reported
MAX_ANSWER_BYTES = 1 << 22
CLOSE_SECONDS = 2.0
CONDITIONS_SECONDS = 5.0  # shortest time between two reads of the GPUs' conditions
STORM_CONDITIONS_SECONDS = 15.0  # longest time between two reads of the conditions while events keep coming
RESTART_SECONDS = 10.0  # shortest time between two starts of a process that ends without any answer


class NvmlGpuReader:
    """The connection to the NVML process. While an answer is overdue, no new question is sent."""

    simulated = False

    def __init__(self, deadline_seconds: float = CALL_TIMEOUT_SECONDS, kept: Path | None = None) -> None:
        """Create a reader. ``kept``: the file in which the inventory is stored for a restarted agent."""
        self._deadline = deadline_seconds
        self._known = HardwareCache(kept)
        self._lost: dict[str, str] = {}  # uuid of each GPU that NVML can't read -> reason
        # Popen, because asyncio kills its subprocesses when the loop ends.
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: asyncio.StreamReader | None = None
        self._number = 0
        self._overdue = 0  # id of the question whose answer timed out
        self._asked = ""  # the last question
        self._asked_at = 0.0  # time.monotonic
        self._late_events: list[dict[str, Any]] = []  # events from answers that came after their timeout
        self._asking = asyncio.Lock()
        self._gpus: list[GpuSeen] = []
        self._gpu_of: dict[str, str] = {}  # unit -> GPU
        self._processes: list[GpuProcess] = []
        self._conditions: dict[str, conditions.Condition] = {}
        self._conditions_at = -CONDITIONS_SECONDS
        self._silent_since: float | None = None  # time.monotonic of the first unanswered question
        self._silence_reported = False
        self._boot = boot_id()
        self._started_at = -RESTART_SECONDS
        self._has_answered = False
        self._matched: set[int] = set()  # numbers of kernel log records whose event was already returned
        self._reshaping = False  # True: the process changes a geometry, which may take minutes

    async def hardware(self) -> GpuInventory:
        known = self._known.hardware
        deadline = START_TIMEOUT_SECONDS
        if known is not None:  # wait only briefly: the caller can use the known inventory and ask again
            deadline = self._deadline if self._has_answered else KNOWN_HARDWARE_TIMEOUT_SECONDS
        answer = await self._ask("hardware", deadline)
        gpus = [parse(GpuSeen, gpu) for gpu in answer["gpus"]]
        versions = answer["driver_version"], answer["cuda_version"]
        offers = {
            model: [parse(MigProfileSeen, profile) for profile in profiles]
            for model, profiles in answer["mig_profiles"].items()
        }
        read = GpuInventory(gpus, versions[0], answer["notes"], answer["devices"], versions[1], offers)
        found = with_lost_gpus(read, answer["unread"], known)
        if answer["unread"] and not found.gpus:
            raise GpuReadError(answer["unread"][0]["why"])
        self._accept(found)
        self._known.keep(found)
        return found

    def last_known(self, problem: str) -> GpuInventory | None:
        found = self._known.without_nvml(problem)
        if found is not None:
            self._accept(found)
        return found

    def _accept(self, hardware: GpuInventory) -> None:
        self._gpus, self._lost = hardware.gpus, hardware.lost
        self._gpu_of = {unit.uuid: gpu.uuid for gpu in hardware.gpus for unit in gpu.units}

    async def sample(self, uses: dict[str, UnitUse], now: float) -> list[SampleRow]:
        try:
            answer = await self._read("sample")
        except GpuReadError as problem:
            log.warning("GPUs are not read: %s", problem)
            answer = [{"unit": unit, "pids": None} for unit in self._gpu_of]
        self._processes = self._processes_in(answer)
        return [_sample_row(reading, uses.get(reading["unit"]), now) for reading in answer]

    async def minute(self, now: float) -> MinuteReadings:
        try:
            answer = await self._read("minute")
        except GpuReadError as problem:
            log.warning("the values of the minute are not read: %s", problem)
            return MinuteReadings()
        return MinuteReadings(
            units={
                unit: {name: value for name, value in values.items() if value is not None}
                for gpu in answer
                for unit, values in gpu["units"].items()
            },
            counters={gpu["gpu"]: gpu["counters"] for gpu in answer},
            processes=[GpuProcessUse(**process) for gpu in answer for process in gpu["processes"]],
        )

    async def occupancy(self, now: float) -> tuple[list[SampleRow], list[GpuProcess]]:
        answer = await self._read("occupancy")
        return [_sample_row(reading, None, now) for reading in answer], self._processes_in(answer)

    async def _read(self, what: str) -> list[dict[str, Any]]:
        """Return the answer to "sample", "minute" or "occupancy". Raises GpuReadError."""
        if self._reshaping:
            raise GpuReadError("the MIG geometry of a GPU is being changed")
        answer: list[dict[str, Any]] = await self._ask(what, self._deadline)
        return answer

    def _processes_in(self, answer: list[dict[str, Any]]) -> list[GpuProcess]:
        return [
            GpuProcess(self._gpu_of[reading["unit"]], reading["unit"], pid, memory)
            for reading in answer
            if reading["unit"] in self._gpu_of
            for pid, memory in reading["pids"] or ()
        ]

    def processes(self) -> list[GpuProcess]:
        return self._processes

    async def earlier(self, now: float) -> list[HardwareEvent]:
        """Return the XIDs in the kernel log as events.

        NVML itself reports only the events since the start of the NVML process.
        """
        found = []
        for xid in await asyncio.to_thread(kernel_log.read_xids):
            gpu = self._gpu_at(xid.pci)
            if gpu is not None and xid.ts <= now:
                self._matched.add(xid.number)
                found.append(
                    HardwareEvent(
                        self._event_id(xid), gpu, "kernel log", f"xid:{xid.code}", xid.ts, xid.detail
                    )
                )
        return found

    def _gpu_at(self, pci: str) -> str | None:
        return next((gpu.uuid for gpu in self._gpus if kernel_log.same_device(pci, gpu.pci_bus_id)), None)

    def _event_id(self, xid: kernel_log.XidRecord) -> str:
        """Return the event id of a kernel log record. It stays the same until the host is rebooted."""
        return uuid.uuid5(conditions.EVENT_ID_NAMESPACE, f"{self._boot}/kernel log/{xid.number}").hex

    async def _events_with_ids(self, answer: list[dict[str, Any]], now: float) -> list[HardwareEvent]:
        """Return the driver's events, each with an id.

        If an event has a record in the kernel log, its id derives from this record. A restarted agent reads
        the record again, and detects by the id that the event was already reported.
        """
        logged = await asyncio.to_thread(kernel_log.read_xids) if answer else []
        found = []
        for event in answer:
            record = next(
                (
                    xid
                    for xid in logged
                    if xid.number not in self._matched
                    and (self._gpu_at(xid.pci), f"xid:{xid.code}") == (event["gpu"], event["code"])
                ),
                None,
            )
            if record is not None:
                self._matched.add(record.number)
            event_id = self._event_id(record) if record is not None else uuid.uuid4().hex
            found.append(HardwareEvent(event_id, event["gpu"], "xid", event["code"], now))
        return found

    async def events(self, now: float) -> list[HardwareEvent]:
        if self._reshaping:
            return []  # the driver queues the events until the next call
        answer: list[dict[str, Any]] = []
        problem = ""
        try:
            answer = await self._ask("events", self._deadline)
        except GpuReadError as error:
            problem = str(error)
        # The driver reports each event only once. An earlier answer may have arrived after its timeout.
        # Return its events even if the present question fails.
        late, self._late_events = self._late_events, []
        found = await self._events_with_ids([*late, *answer], now)
        if problem:
            return found + self._silence_events(problem, now)
        if found and time.monotonic() - self._conditions_at < STORM_CONDITIONS_SECONDS:
            # Return these events now, without reading the conditions. A GPU that has just failed may not
            # answer another question.
            return found
        try:
            found += await self._changed_conditions(now)
        except GpuReadError as error:
            return found + self._silence_events(str(error), now)
        return found

    async def conditions(self) -> dict[str, conditions.Condition]:
        """Return the values that ``agent.gpu.conditions`` compares, by GPU uuid. Raises GpuReadError."""
        if self._reshaping:
            raise GpuReadError("the MIG geometry of a GPU is being changed")
        answer: dict[str, conditions.Condition] = await self._ask("conditions", self._deadline)
        return {**{gpu: {"lost": True, "why": why} for gpu, why in self._lost.items()}, **answer}

    async def _changed_conditions(self, now: float) -> list[HardwareEvent]:
        if time.monotonic() - self._conditions_at < CONDITIONS_SECONDS:
            return []
        self._conditions_at = time.monotonic()
        found = []
        for gpu, condition in (await self.conditions()).items():
            found += conditions.worsened_conditions(
                gpu, self._conditions.get(gpu), condition, boot=self._boot, now=now
            )
            self._conditions[gpu] = condition
        return found

    def _silence_events(self, problem: str, now: float) -> list[HardwareEvent]:
        """Return one event if the driver hangs or NVML has returned only errors for a while.

        Returns [] if it is too early for an event, or if the present failure was already reported.
        """
        silent_since = self._silent_since
        if self._silence_reported or silent_since is None:
            return []
        at = time.monotonic()
        if self._overdue:
            code, due = (
                "nvml:hung",
                self._asked_at + (self._deadline if self._has_answered else START_TIMEOUT_SECONDS),
            )
        else:
            code, due = "nvml:unreadable", silent_since + UNREADABLE_AFTER_SECONDS
        if at < due:
            return []
        self._silence_reported = True
        return [HardwareEvent(uuid.uuid4().hex, "", "nvml", code, now, problem)]

    async def reshape(
        self,
        gpu: str,
        parts: Sequence[GeometryPart],
        before: Sequence[str] | None,
        locks_folder: Path,
        deadline: float,
    ) -> ReshapeOutcome | None:
        """Change a geometry in the NVML process.

        No other process can change the geometry: the NVML process keeps the driver open, so the driver would
        reject a change by another process and report the GPU as in use.
        """
        self._reshaping = True
        try:
            answer = await self._ask(
                "reshape", deadline, mig.request_to_json(locks_folder, gpu, parts, before)
            )
        finally:
            self._reshaping = False
        return None if answer is None else ReshapeOutcome(**answer)

    async def close(self) -> None:
        """Close the standard input of the NVML process, so that it ends. If it hangs, leave it running."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        until = time.monotonic() + CLOSE_SECONDS
        while self._process.poll() is None and time.monotonic() < until:
            await asyncio.sleep(0.02)

    async def _ask(self, what: str, deadline: float, about: Any = None) -> Any:
        """Return the answer to a question. Raises GpuReadError."""
        try:
            answer = await self._exchange(what, deadline, about)
        except GpuReadError:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
            raise
        self._silent_since, self._silence_reported = None, False
        return answer

    async def _exchange(self, what: str, deadline: float, about: Any) -> Any:
        async with self._asking:
            if self._process is None or self._process.poll() is not None:
                if not self._has_answered and time.monotonic() - self._started_at < RESTART_SECONDS:
                    raise GpuReadError("the NVML process ended before its first answer")
                await self._start()
            if self._overdue:
                late = await self._read_until(self._overdue, 0.01)
                if self._asked == "events":  # a late answer to "events" contains events that must not be lost
                    self._late_events += late
            assert self._process is not None and self._process.stdin is not None and self._answers is not None
            if self._answers.at_eof():
                raise GpuReadError("the NVML process has closed its output and does not end")
            self._number += 1
            self._asked, self._asked_at = what, time.monotonic()
            try:
                self._process.stdin.write(
                    json.dumps({"id": self._number, "ask": what, "about": about}).encode() + b"\n"
                )
                self._process.stdin.flush()
            except OSError as error:
                raise GpuReadError(f"the NVML process ended ({error})") from None
            return await self._read_until(self._number, deadline)

    async def _start(self) -> None:
        self._overdue = 0
        self._has_answered = False
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agent.gpu.nvml"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        answers = asyncio.StreamReader(limit=MAX_ANSWER_BYTES)
        protocol = asyncio.StreamReaderProtocol(answers)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, self._process.stdout)
        self._answers = answers

    async def _read_until(self, number: int, deadline: float) -> Any:
        """Return the answer to question ``number``. Raises GpuReadError."""
        assert self._process is not None and self._answers is not None
        try:
            async with asyncio.timeout(deadline):
                while True:
                    try:
                        line = await self._answers.readline()
                    except ValueError:
                        continue  # readline has discarded a line that was longer than any answer
                    # The process has closed its output. It may still hang in the driver while it exits.
                    if not line:
                        raise GpuReadError("the NVML process ended")
                    answer = _parse_answer(line)
                    if answer["id"] == 0:
                        raise GpuReadError(answer["error"])
                    if answer["id"] == number:
                        break
        except TimeoutError:
            self._overdue = number
            raise GpuReadError(f"NVML did not answer within {deadline:g} s") from None
        self._overdue = 0
        if "error" in answer:
            raise GpuReadError(answer["error"])
        self._has_answered = True
        return answer["answer"]


def _parse_answer(line: bytes) -> dict[str, Any]:
    """Return the answer in a line that the NVML process printed.

    A line that is not an answer, such as a message of a library, becomes {"id": -1}. No question has this id.
    """
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("id"), int):
        return answer
    log.warning("the NVML process printed a line that is not an answer: %r", line[:200])
    return {"id": -1}


def _sample_row(reading: dict[str, Any], use: UnitUse | None, now: float) -> SampleRow:
    """Return a reading as a SampleRow, with the run that holds the unit and the number of stray processes.

    A process on the unit is a stray if it does not belong to this run.
    """
    pids = reading["pids"]
    stray = None
    if pids is not None:
        own = use.pids if use is not None else frozenset()
        stray = sum(1 for pid, _ in pids if pid not in own)
    readings = {key: value for key, value in reading.items() if value is not None and key != "pids"}
    return SampleRow(
        ts=now,
        run=use.run if use is not None else None,
        processes=len(pids) if pids is not None else None,
        stray_processes=stray,
        **readings,
    )
