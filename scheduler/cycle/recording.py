"""Record the snapshot of every cycle that changed something, so that its plan can be replayed.

Only this module writes Recording. A recording is written in the transaction of its decisions, so there is no
recording of decisions that were rolled back. A snapshot is stored as one compressed text per table. The key
of each text is its digest, so unchanged hardware is stored only once, even for a thousand cycles.
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

ZLIB_LEVEL = 1  # the engine waits for the compression, and higher levels save little on such text
ROW_OVERHEAD_BYTES = 2_000  # approximate size of a Recording row without its parts
PART_TOUCH_INTERVAL = timedelta(hours=1)  # a part's last use is updated at most this often


class RecordingNotFound(Exception):
    """No recording has this number, or it was pruned."""


@dataclass(frozen=True, slots=True)
class PreparedRecording:
    """The columns and parts of a recording, computed before any row is locked."""

    parts: dict[str, str]  # table -> digest
    bodies: dict[str, bytes]  # digest -> compressed text; only parts that have to be written
    new_bytes: int  # total size of those bodies that this process's previous recording did not have
    columns: dict[str, Any]


@dataclass
class CycleRecorder:
    """The writer of one process's recordings. It remembers the digests of unchanged tables.

    ``prepare`` computes a recording, and ``write`` writes it inside the transaction of the decisions.
    ``committed`` is called after the commit, so that parts of a rolled-back transaction are not remembered as
    written.
    """

    _known: dict[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)  # table -> rows and digest
    _kept: dict[str, datetime] = field(
        default_factory=dict
    )  # digest -> the time at which the part was last marked as in use
    _epoch: int | None = None

    def prepare(self, snapshot: Snapshot, plan: Plan, planned_at: int, now: datetime) -> PreparedRecording:
        """Compute the recording of ``plan``, which was made for ``planned_at`` (seconds since the epoch).

        The rows of ``snapshot`` must be sorted by key. Raises TypeError or ValueError if a value has no
        canonical text.
        """
        if snapshot.epoch != self._epoch:
            # Another process was the leader in between. It may have pruned parts that this process remembers.
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
        """Write the recording in a savepoint of the transaction of the decisions.

        A failure rolls back only the recording. Besides the savepoint, this takes at most two statements.
        """
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
        """Remember the parts of a recording whose transaction was committed."""
        self._kept = {digest: self._kept.get(digest, now) for digest in prepared.parts.values()}
        self._kept.update(dict.fromkeys(prepared.bodies, now))

    def _digest(self, table: str, rows: tuple[Any, ...], texts: dict[str, str]) -> str:
        """Return the digest of a table's text.

        If the rows have changed since the last call, also store the text in ``texts`` under its digest.
        """
        known = self._known.get(table)
        if known is not None and known[0] == rows:
            return known[1]
        text = serialization.table_text(rows)
        digest = serialization.sha256_hex(text)
        self._known[table] = rows, digest
        texts[digest] = text
        return digest


def recording_file_text(pk: int) -> str:
    """Return a recording as the text of a file that ``replay_snapshot`` can read on any machine.

    Raises RecordingNotFound if the recording does not exist or its parts were pruned.
    """
    found = Recording.objects.filter(pk=pk).first()
    if found is None:
        raise RecordingNotFound(pk)
    bodies = dict(RecordingPart.objects.filter(digest__in=found.parts.values()).values_list("digest", "body"))
    if set(found.parts.values()) - set(bodies):
        raise RecordingNotFound(pk)
    tables = {name: zlib.decompress(bytes(bodies[digest])).decode() for name, digest in found.parts.items()}
    return serialization.recording_text(found.epoch, found.planned_at, found.plan_sha256, tables)


def prune_recordings(before: datetime, most: int = 5_000) -> int:
    """Delete up to ``most`` recordings made before ``before``. Return the number of deleted recordings.

    If fewer than ``most`` recordings were found, all recordings before ``before`` are deleted. Then the parts
    that no remaining recording uses are deleted as well. A part that was used shortly before ``before`` is
    kept until a later call.
    """
    old = list(Recording.objects.filter(at__lt=before).order_by("at").values_list("pk", flat=True)[:most])
    Recording.objects.filter(pk__in=old).delete()
    if len(old) < most:
        # ``used_at`` of a part is at most PART_TOUCH_INTERVAL older than the last recording that uses the
        # part. So every recording that used one of these parts is older than ``before`` and was deleted.
        RecordingPart.objects.filter(used_at__lt=before - 2 * PART_TOUCH_INTERVAL).delete()
    return len(old)


def prune_recordings_to_size(most_bytes: int) -> int:
    """Delete the oldest recordings until the others have at most ``most_bytes`` bytes.

    Return the number of deleted rows. The latest recording is always kept.
    """
    total_bytes = 0
    newest_to_delete = None
    rows = Recording.objects.order_by("-pk").values_list("pk", "size_bytes").iterator()
    for newer, (pk, size) in enumerate(rows):
        total_bytes += size
        if newer and total_bytes > most_bytes:
            newest_to_delete = pk
            break
    if newest_to_delete is None:
        return 0
    with transaction.atomic():
        deleted, _ = Recording.objects.filter(pk__lte=newest_to_delete).delete()
        with connection.cursor() as cursor:
            cursor.execute(
                DELETE_UNUSED_PARTS_SQL, [Recording.objects.order_by("pk").values_list("at", flat=True)[0]]
            )
    return deleted


# This statement deletes no part that a recording still needs. A part that another transaction is writing now
# has a ``used_at`` after the time of the oldest remaining recording (the parameter). A part that the recorder
# remembers as written is used by the latest recording, which is never deleted here.
DELETE_UNUSED_PARTS_SQL = """
DELETE FROM scheduler_recordingpart WHERE used_at < %s AND digest NOT IN (
    SELECT named.value FROM scheduler_recording AS recording, jsonb_each_text(recording.parts) AS named
)
"""
