"""Encode and decode the counters and uses that a batch carries beside its samples."""

from __future__ import annotations

import dataclasses
import json
import logging
from dataclasses import dataclass, field
from typing import Any

from agent.protocol import (
    GpuCountersSeen,
    HostUseSeen,
    ProcessUseSeen,
    ProtocolError,
    RunUseSeen,
    SampleBatch,
    parse,
)

log = logging.getLogger(__name__)

_KINDS: dict[str, type] = {
    "gpus": GpuCountersSeen,
    "runs": RunUseSeen,
    "host": HostUseSeen,
    "processes": ProcessUseSeen,
}


@dataclass
class DecodedUsage:
    """The entries of one batch. ``offset`` is the server's clock minus CLOCK_BOOTTIME; None: not measured."""

    gpus: list[GpuCountersSeen] = field(default_factory=list)
    runs: list[RunUseSeen] = field(default_factory=list)
    host: list[HostUseSeen] = field(default_factory=list)
    processes: list[ProcessUseSeen] = field(default_factory=list)
    offset: float | None = None

    def true_time(self, uptime: float | None) -> float | None:
        """Return the time of an entry by the server's clock; None if the agent did not measure it."""
        return None if self.offset is None or uptime is None else uptime + self.offset


def encode_usage(batch: SampleBatch) -> bytes:
    """Return the entries of a batch; b"" if it has none."""
    entries = {name: [dataclasses.asdict(entry) for entry in getattr(batch, name)] for name in _KINDS}
    if not any(entries.values()):
        return b""
    return json.dumps({**entries, "offset": batch.server_offset}).encode()


def decode_usage(data: bytes) -> DecodedUsage:
    """Return the entries that ``encode_usage`` encoded. Unreadable data are logged and dropped."""
    if not data:
        return DecodedUsage()
    try:
        given: dict[str, Any] = json.loads(data)
        lists: dict[str, Any] = {
            name: [parse(kind, entry) for entry in given.get(name, ())] for name, kind in _KINDS.items()
        }
        return DecodedUsage(**lists, offset=given.get("offset"))
    except (ValueError, TypeError, AttributeError, ProtocolError) as error:
        log.warning("the uses of a batch can't be read and are dropped: %r", error)
        return DecodedUsage()
