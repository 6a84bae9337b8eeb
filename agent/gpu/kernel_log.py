"""XIDs that the kernel wrote down before anybody watched: the driver keeps no events for a watcher that comes later."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KERNEL_LOG = Path("/dev/kmsg")
MAX_RECORD_BYTES = 8192
MAX_RECORDS = 100_000
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d{1,5})\b[, ]*(?P<rest>.*)")


@dataclass(frozen=True)
class XidRecord:
    """One line of the driver. ``number`` is the kernel's own of the record, ``pci`` as the driver writes it."""

    number: int
    pci: str
    code: int
    ts: float
    detail: str


def read_xids(path: Path = KERNEL_LOG) -> list[XidRecord]:
    """Those that the kernel still has; none where it may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    records = []
    try:
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(descriptor, MAX_RECORD_BYTES)
            except BrokenPipeError:
                continue  # it was overwritten while we read: the next one
            except OSError:
                break  # nothing more at present
            if not record:
                break
            records += record.decode("utf-8", "replace").splitlines()
    finally:
        os.close(descriptor)
    return list(parse_xids(records, time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)))


def parse_xids(records: Iterable[str], started: float) -> Iterable[XidRecord]:
    """From records as /dev/kmsg has them ("priority,number,microseconds,flags;text"). ``started``: when its clock was zero."""
    for record in records:
        head, sign, text = record.partition(";")
        fields = head.split(",")
        match = (
            _XID.match(text) if sign else None
        )  # further on stand names of programs and files, which are anybody's to choose
        if match is None or len(fields) < 3 or not (fields[1].isdigit() and fields[2].isdigit()):
            continue
        yield XidRecord(
            int(fields[1]),
            match["pci"],
            int(match["code"]),
            started + int(fields[2]) / 1e6,
            match["rest"][:200],
        )


def same_device(pci: str, bus_id: str) -> bool:
    """Whether "0000:3b:00" of the log is "00000000:3B:00.0" of NVML."""

    def parts(text: str) -> list[int]:
        try:
            return [int(part, 16) for part in text.partition(".")[0].split(":")]
        except ValueError:
            return []

    return bool(parts(pci)) and parts(pci) == parts(bus_id)
