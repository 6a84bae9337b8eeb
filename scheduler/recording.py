"""Every cycle that changed something keeps its snapshot, so that its decisions can be made again: the only writer of Recording.

A snapshot is kept as the texts of its tables, compressed and named by their digest: hardware that has not changed is kept
once for a thousand cycles.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from scheduler.core import canonical
from scheduler.core.model import Plan, Snapshot
from scheduler.core.warm import TABLES
from scheduler.models import Recording, RecordingPart

QUICK = 1  # zlib's level: the engine waits for it, and higher ones save little on such text
TOUCH = timedelta(hours=1)  # a part in use is marked as such no more often than this


class NoSuchRecording(Exception):
    """There is no recording with this number, or its time is over."""


@dataclass
class Recorder:
    """Writes the recordings of one process. Remembers the texts of tables that stay as they are."""

    _known: dict[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)  # table -> rows and digest
    _kept: dict[str, datetime] = field(default_factory=dict)  # digest -> when it was last marked as in use

    def record(self, snapshot: Snapshot, plan: Plan, planned_at: int, now: datetime) -> Recording:
        """Keep what ``plan`` was made from as of ``planned_at``, in seconds. ``snapshot`` has its rows in order."""
        texts: dict[str, str] = {}
        parts = {name: self._digest(name, getattr(snapshot, name), texts) for name in TABLES}
        due = [d for d in parts.values() if d in texts or d not in self._kept or now - self._kept[d] >= TOUCH]
        for table, digest in parts.items():
            if digest in due and digest not in texts:
                texts[digest] = canonical.table_text(getattr(snapshot, table))
        fresh = [
            RecordingPart(digest=digest, body=zlib.compress(texts[digest].encode(), QUICK), used_at=now)
            for digest in sorted(set(due))
        ]
        with transaction.atomic():
            if fresh:
                RecordingPart.objects.bulk_create(
                    fresh, update_conflicts=True, unique_fields=["digest"], update_fields=["used_at"]
                )
            made = Recording.objects.create(
                at=now, planned_at=planned_at, epoch=snapshot.epoch, parts=parts,
                plan_sha256=canonical.digest(canonical.plan_text(plan)), placed=len(plan.placements),
                evicted=len(plan.evictions), refused=len(plan.refusals),
            )  # fmt: skip
        self._kept = {digest: self._kept.get(digest, now) for digest in parts.values()}
        self._kept.update(dict.fromkeys(due, now))
        return made

    def _digest(self, table: str, rows: tuple[Any, ...], texts: dict[str, str]) -> str:
        """The digest of a table's text; the text goes into ``texts`` when it is a new one."""
        known = self._known.get(table)
        if known is not None and known[0] == rows:
            return known[1]
        text = canonical.table_text(rows)
        digest = canonical.digest(text)
        self._known[table] = rows, digest
        texts[digest] = text
        return digest


def text_of(pk: int) -> str:
    """A recording as a file that ``replay`` reads, on whatever machine. Raises NoSuchRecording."""
    found = Recording.objects.filter(pk=pk).first()
    if found is None:
        raise NoSuchRecording(pk)
    bodies = dict(RecordingPart.objects.filter(digest__in=found.parts.values()).values_list("digest", "body"))
    if set(found.parts.values()) - set(bodies):
        raise NoSuchRecording(pk)
    tables = {name: zlib.decompress(bytes(bodies[digest])).decode() for name, digest in found.parts.items()}
    return canonical.recording_text(found.epoch, found.planned_at, found.plan_sha256, tables)


def prune(before: datetime, most: int = 5_000) -> int:
    """Forget up to ``most`` recordings made before then, and the parts that only they named; how many recordings."""
    old = list(Recording.objects.filter(at__lt=before).order_by("at").values_list("pk", flat=True)[:most])
    Recording.objects.filter(pk__in=old).delete()
    if len(old) < most:
        # Who names a part marks it within TOUCH, so whatever named one of these was older than ``before`` and is gone.
        RecordingPart.objects.filter(used_at__lt=before - 2 * TOUCH).delete()
    return len(old)
