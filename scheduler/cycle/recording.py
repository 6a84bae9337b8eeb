"""Every cycle that changed something keeps its snapshot, so that its decisions can be made again: the only writer of Recording.
It is written in the same transaction as the decisions, so that neither is there without the other.

A snapshot is kept as the texts of its tables, compressed and named by their digest: hardware that has not changed is kept
once for a thousand cycles.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from scheduler.core.model import serialization
from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.model.snapshot_delta import SNAPSHOT_TABLES
from scheduler.models import Recording, RecordingPart

ZLIB_LEVEL = 1  # zlib's level: the engine waits for it, and higher ones save little on such text
ROW_OVERHEAD_BYTES = 2_000  # bytes of a recording beside its parts, about
PART_TOUCH_INTERVAL = timedelta(hours=1)  # a part in use is marked as such no more often than this


class RecordingNotFound(Exception):
    """There is no recording with this number, or its time is over."""


@dataclass(frozen=True, slots=True)
class PreparedRecording:
    """All of a recording but its moment, worked out before any row is locked."""

    parts: dict[str, str]  # table -> digest
    bodies: dict[str, bytes]  # digest -> compressed text, of what has to be written
    new_bytes: int  # of these, what this process has not written before
    columns: dict[str, Any]


@dataclass
class CycleRecorder:
    """Writes the recordings of one process. Remembers the texts of tables that stay as they are.

    ``prepare`` works, ``write`` writes inside the transaction of the decisions themselves, and ``committed`` is told once they
    stand: what was rolled back is not remembered as written.
    """

    _known: dict[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)  # table -> rows and digest
    _kept: dict[str, datetime] = field(default_factory=dict)  # digest -> when it was last marked as in use
    _epoch: int | None = None

    def prepare(self, snapshot: Snapshot, plan: Plan, planned_at: int, now: datetime) -> PreparedRecording:
        """Of what ``plan`` was made from as of ``planned_at``, in seconds. ``snapshot`` has its rows in order.

        Raises TypeError or ValueError for what has no canonical text.
        """
        if (
            snapshot.epoch != self._epoch
        ):  # others led meanwhile, and what only this process named may be forgotten
            self._epoch, self._kept = snapshot.epoch, {}
        texts: dict[str, str] = {}
        parts = {name: self._digest(name, getattr(snapshot, name), texts) for name in SNAPSHOT_TABLES}
        due = {
            d
            for d in parts.values()
            if d in texts or d not in self._kept or now - self._kept[d] >= PART_TOUCH_INTERVAL
        }
        for table, digest in parts.items():
            if digest in due and digest not in texts:
                texts[digest] = serialization.table_text(getattr(snapshot, table))
        bodies = {digest: zlib.compress(texts[digest].encode(), ZLIB_LEVEL) for digest in sorted(due)}
        return PreparedRecording(
            parts,
            bodies,
            sum(len(body) for digest, body in bodies.items() if digest not in self._kept),
            {
                "planned_at": planned_at,
                "epoch": snapshot.epoch,
                "placed": len(plan.placements),
                "evicted": len(plan.evictions),
                "refused": len(plan.refusals),
                "plan_sha256": serialization.sha256_hex(serialization.plan_text(plan)),
            },
        )

    @transaction.atomic
    def write(self, prepared: PreparedRecording, now: datetime) -> Recording:
        """Keep it: two statements. Inside the transaction that writes the decisions."""
        fresh = [
            RecordingPart(digest=digest, body=body, used_at=now) for digest, body in prepared.bodies.items()
        ]
        if fresh:
            RecordingPart.objects.bulk_create(
                fresh, update_conflicts=True, unique_fields=["digest"], update_fields=["used_at"]
            )
        return Recording.objects.create(
            at=now,
            parts=prepared.parts,
            size_bytes=prepared.new_bytes + ROW_OVERHEAD_BYTES,
            **prepared.columns,
        )

    def committed(self, prepared: PreparedRecording, now: datetime) -> None:
        """The transaction that ``write`` was part of stands."""
        self._kept = {digest: self._kept.get(digest, now) for digest in prepared.parts.values()}
        self._kept.update(dict.fromkeys(prepared.bodies, now))

    def _digest(self, table: str, rows: tuple[Any, ...], texts: dict[str, str]) -> str:
        """The digest of a table's text; the text goes into ``texts`` when it is a new one."""
        known = self._known.get(table)
        if known is not None and known[0] == rows:
            return known[1]
        text = serialization.table_text(rows)
        digest = serialization.sha256_hex(text)
        self._known[table] = rows, digest
        texts[digest] = text
        return digest


def recording_file_text(pk: int) -> str:
    """A recording as a file that ``replay`` reads, on whatever machine. Raises RecordingNotFound."""
    found = Recording.objects.filter(pk=pk).first()
    if found is None:
        raise RecordingNotFound(pk)
    bodies = dict(RecordingPart.objects.filter(digest__in=found.parts.values()).values_list("digest", "body"))
    if set(found.parts.values()) - set(bodies):
        raise RecordingNotFound(pk)
    tables = {name: zlib.decompress(bytes(bodies[digest])).decode() for name, digest in found.parts.items()}
    return serialization.recording_text(found.epoch, found.planned_at, found.plan_sha256, tables)


def prune_recordings(before: datetime, most: int = 5_000) -> int:
    """Forget up to ``most`` recordings made before then, and the parts that only they named; how many recordings."""
    old = list(Recording.objects.filter(at__lt=before).order_by("at").values_list("pk", flat=True)[:most])
    Recording.objects.filter(pk__in=old).delete()
    if len(old) < most:
        # Who names a part marks it within TOUCH, so whatever named one of these was older than ``before`` and is gone.
        RecordingPart.objects.filter(used_at__lt=before - 2 * PART_TOUCH_INTERVAL).delete()
    return len(old)


def prune_recordings_to_size(most_bytes: int) -> int:
    """Forget the oldest recordings where all of them together are larger than that, but never the latest; how many."""
    together = 0
    first_too_many = None
    rows = Recording.objects.order_by("-pk").values_list("pk", "size_bytes").iterator()
    for newer, (pk, size) in enumerate(rows):
        together += size
        if newer and together > most_bytes:
            first_too_many = pk
            break
    if first_too_many is None:
        return 0
    with transaction.atomic():
        forgotten, _ = Recording.objects.filter(pk__lte=first_too_many).delete()
        with connection.cursor() as cursor:
            cursor.execute(
                DELETE_UNUSED_PARTS_SQL, [Recording.objects.order_by("pk").values_list("at", flat=True)[0]]
            )
    return forgotten


# A part that is written at this moment is newer than the oldest recording that is left. What a recorder does not write again
# is named by its latest recording, which is never forgotten here while it leads.
DELETE_UNUSED_PARTS_SQL = """
DELETE FROM scheduler_recordingpart WHERE used_at < %s AND digest NOT IN (
    SELECT named.value FROM scheduler_recording AS recording, jsonb_each_text(recording.parts) AS named
)
"""
