"""Stores sample batches on the disk until the server has committed them. The total size is limited.

Batches are numbered from 1. The file of the newest batch is kept even after its commit, because its name
stores the last number. If the folder exceeds its limit, the oldest batches are removed. Their numbers are
never reused, so the server knows that these samples are missing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from agent.host.durable_files import write_text
from agent.protocol import (
    GpuCountersSeen,
    HostUseSeen,
    ProcessUseSeen,
    ProtocolError,
    RunUseSeen,
    SampleBatch,
    SampleRow,
    UnitMinuteSeen,
    parse,
)
from agent.server.server_clock import ServerClock
from agent.wire_format import LARGEST_NUMBER

MAX_SPOOL_BYTES = 64 << 20
# This value replaces a reading that is not a number or too large for a frame. The server counts it like every
# negative reading, and stores it as unknown.
IMPOSSIBLE_READING = -1
MIN_FILE_BYTES = 4096  # space that even the smallest file takes on the disk


@dataclass
class BatchUsage:
    """The entries that a batch has once a minute in addition to its rows."""

    units: list[UnitMinuteSeen] = field(default_factory=list)
    gpus: list[GpuCountersSeen] = field(default_factory=list)
    runs: list[RunUseSeen] = field(default_factory=list)
    host: list[HostUseSeen] = field(default_factory=list)
    processes: list[ProcessUseSeen] = field(default_factory=list)

    def add(self, more: BatchUsage) -> None:
        """Append the entries of ``more``."""
        for entry in dataclasses.fields(self):
            getattr(self, entry.name).extend(getattr(more, entry.name))

    @property
    def is_empty(self) -> bool:
        return not (self.units or self.gpus or self.runs or self.host or self.processes)


class SampleSpool:
    """The sample batches of one host. A restarted agent continues their numbers."""

    def __init__(
        self,
        folder: Path,
        largest_bytes: int = MAX_SPOOL_BYTES,
        *,
        boot_id: str = "",
        clock: ServerClock | None = None,
    ) -> None:
        self._folder = folder
        self._largest = largest_bytes
        self._boot_id = boot_id
        self._clock = clock or ServerClock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sizes = {int(path.stem): path.stat().st_size for path in folder.glob("[0-9]*.json")}
        self._begun = 0  # number of the batch that is being written in a thread
        self.committed = 0

    @property
    def last(self) -> int:
        """Return the number of the newest batch; 0 if there was none."""
        return max(self._sizes, default=self.committed)

    def pending(self, after: int) -> list[int]:
        """Return the numbers of uncommitted batches above ``after``, in ascending order.

        Send the batches in this order. If a number is missing, the server waits for it before it commits
        later batches.
        """
        return sorted(number for number in self._sizes if number > max(after, self.committed))

    def add(self, rows: list[SampleRow], usage: BatchUsage | None = None) -> int:
        """Write a new batch to the disk and return its number. Raises OSError if the disk is full."""
        number = max(self.last, self.committed, self._begun) + 1
        self._write(self._batch(number, rows, usage))
        self._drop_oldest()
        return number

    async def add_in_thread(self, rows: list[SampleRow], usage: BatchUsage | None = None) -> int:
        """Write a new batch like ``add``, but in a thread, because workloads may keep the disk busy.

        A caller must not start a second call before the first one has returned.
        """
        while True:
            number = self._begun = max(self.last, self.committed) + 1
            text = _batch_json(self._batch(number, rows, usage))
            try:
                # If this task is cancelled, the thread still writes the file. Keep _begun in this case, so
                # that no other batch gets this number.
                await asyncio.to_thread(write_text, self._path(number), text)
            except OSError:
                self._begun = 0
                raise
            self._begun = 0
            if number > max(self.last, self.committed):
                break
            # A commit has renumbered the batches during the write. Write this batch again with a new number.
        self._sizes[number] = len(text)
        self._drop_oldest()
        return number

    def read(self, number: int) -> SampleBatch:
        """Return a stored batch. If its file is missing or damaged, the batch has no rows.

        A batch of this boot gets the present measurement of the server's clock. A batch of an earlier boot
        keeps its own.
        """
        try:
            batch = parse(SampleBatch, json.loads(self._path(number).read_text()))
        except (OSError, ValueError, ProtocolError):
            return SampleBatch(number, [])
        return self._measured(batch) if batch.boot_id == self._boot_id else batch

    def commit(self, upto: int) -> None:
        """Remove the batches up to number ``upto``, which the server has committed.

        After a loss of the folder, numbering begins at 1 again, and ``upto`` may be above all numbers of this
        spool. Then the uncommitted batches get new numbers above ``upto``.
        """
        if upto > self.last:
            self._renumber(upto)
        self.committed = max(self.committed, upto)
        newest = self.last
        for number in [number for number in self._sizes if number <= upto and number != newest]:
            self._path(number).unlink(missing_ok=True)
            del self._sizes[number]

    def _renumber(self, upto: int) -> None:
        for position, number in enumerate(sorted(self._sizes), start=1):
            if number > self.committed:
                self._write(dataclasses.replace(self.read(number), sequence=upto + position))
            self._path(number).unlink(missing_ok=True)
            del self._sizes[number]

    def _drop_oldest(self) -> None:
        total = sum(max(size, MIN_FILE_BYTES) for size in self._sizes.values())
        for number in sorted(self._sizes):
            if total <= self._largest or number == self.last:
                return
            total -= max(self._sizes.pop(number), MIN_FILE_BYTES)
            self._path(number).unlink(missing_ok=True)

    def _batch(self, number: int, rows: list[SampleRow], usage: BatchUsage | None) -> SampleBatch:
        entries = vars(usage or BatchUsage())
        return self._measured(SampleBatch(number, rows, boot_id=self._boot_id, **entries))

    def _measured(self, batch: SampleBatch) -> SampleBatch:
        """Return the batch with the measurement of the server's clock, and its error at the batch's rows."""
        measurement = self._clock.measurement
        times = [row.uptime for row in batch.rows if row.uptime is not None]
        if measurement is None or not times:
            return batch
        error = max(measurement.error_at(min(times)), measurement.error_at(max(times)))
        return dataclasses.replace(
            batch, server_offset=round(measurement.offset, 6), server_offset_error=round(error, 6)
        )

    def _write(self, batch: SampleBatch) -> None:
        text = _batch_json(batch)
        write_text(self._path(batch.sequence), text)
        self._sizes[batch.sequence] = len(text)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.json"


def _batch_json(batch: SampleBatch) -> str:
    return json.dumps(_sendable(dataclasses.asdict(batch)), separators=(",", ":"))


def _sendable(value: object) -> object:
    """Return a value of a batch without unknown fields.

    A number that the protocol cannot carry becomes IMPOSSIBLE_READING.
    """
    if isinstance(value, dict):
        return {name: _sendable(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_sendable(entry) for entry in value]
    if isinstance(value, float) and not (math.isfinite(value) and abs(value) <= LARGEST_NUMBER):
        return IMPOSSIBLE_READING
    if isinstance(value, int) and abs(value) >= 2**63:
        return IMPOSSIBLE_READING
    return value
