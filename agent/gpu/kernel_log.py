"""Reads XIDs (error codes of the NVIDIA driver) from the kernel log.

NVML reports only events that occur after a program has registered for them. The kernel log also has earlier
events.
"""

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
    """An XID record of the driver in the kernel log.

    ``number`` is the sequence number of the record. ``pci`` is the PCI address of the GPU, as the driver
    writes it. ``ts`` is in seconds since the epoch.
    """

    number: int
    pci: str
    code: int
    ts: float
    detail: str


def read_xids(path: Path = KERNEL_LOG) -> list[XidRecord]:
    """Return the XID records that are still in the kernel log; [] if the log is not readable."""
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
                continue  # the kernel has overwritten the record that was to be read next
            except OSError:
                break  # no more records at present
            if not record:
                break
            records += record.decode("utf-8", "replace").splitlines()
    finally:
        os.close(descriptor)
    return list(parse_xids(records, time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)))


def parse_xids(records: Iterable[str], started: float) -> Iterable[XidRecord]:
    """Yield the XID records among records of /dev/kmsg ("priority,number,microseconds,flags;text").

    ``started``: the time of the boot, in seconds since the epoch.
    """
    for record in records:
        head, sign, text = record.partition(";")
        fields = head.split(",")
        # Match only at the start of the text. Further text contains process names, which any user can choose.
        match = _XID.match(text) if sign else None
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
    """Return True if both PCI addresses mean the same GPU.

    ``pci`` is an address from the kernel log, such as "0000:3b:00". ``bus_id`` is an address from NVML, such
    as "00000000:3B:00.0".
    """

    def parts(text: str) -> list[int]:
        try:
            return [int(part, 16) for part in text.partition(".")[0].split(":")]
        except ValueError:
            return []

    return bool(parts(pci)) and parts(pci) == parts(bus_id)
