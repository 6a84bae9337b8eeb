"""Stores sample batches on the disk until the server has committed them. The total size is limited.

Batches are numbered from 1. The file of the newest batch is kept even after its commit, because its name
stores the last number. If the folder exceeds its limit, the oldest batches are removed. Their numbers are
never reused, so the server knows that these samples are missing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

from agent.host.durable_files import write_text
from agent.protocol import ProtocolError, SampleBatch, SampleRow, parse

MAX_SPOOL_BYTES = 64 << 20
MIN_FILE_BYTES = 4096  # a smaller file takes this much space on the disk too


class SampleSpool:
    """The sample batches of one host. A restarted agent continues their numbers."""

    def __init__(self, folder: Path, largest_bytes: int = MAX_SPOOL_BYTES) -> None:
        self._folder = folder
        self._largest = largest_bytes
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

    def add(self, rows: list[SampleRow]) -> int:
        """Write a new batch to the disk and return its number. Raises OSError if the disk is full."""
        number = max(self.last, self.committed, self._begun) + 1
        self._write(number, rows)
        self._drop_oldest()
        return number

    async def add_in_thread(self, rows: list[SampleRow]) -> int:
        """Write a new batch like ``add``, but in a thread, because workloads may keep the disk busy.

        A caller must not start a second call before the first one has returned.
        """
        while True:
            number = self._begun = max(self.last, self.committed) + 1
            text = _batch_json(number, rows)
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
        """Return a stored batch. If its file is missing or damaged, the batch has no rows."""
        try:
            return parse(SampleBatch, json.loads(self._path(number).read_text()))
        except (OSError, ValueError, ProtocolError):
            return SampleBatch(number, [])

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
                self._write(upto + position, self.read(number).rows)
            self._path(number).unlink(missing_ok=True)
            del self._sizes[number]

    def _drop_oldest(self) -> None:
        total = sum(max(size, MIN_FILE_BYTES) for size in self._sizes.values())
        for number in sorted(self._sizes):
            if total <= self._largest or number == self.last:
                return
            total -= max(self._sizes.pop(number), MIN_FILE_BYTES)
            self._path(number).unlink(missing_ok=True)

    def _write(self, number: int, rows: list[SampleRow]) -> None:
        text = _batch_json(number, rows)
        write_text(self._path(number), text)
        self._sizes[number] = len(text)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.json"


def _batch_json(number: int, rows: list[SampleRow]) -> str:
    return json.dumps(dataclasses.asdict(SampleBatch(number, rows)), separators=(",", ":"))
