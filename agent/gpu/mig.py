"""Splitting one GPU into MIG instances, whatever the GPU is: from what is there to what is wanted, and back where that fails.

It compares with what is there and remembers nothing, so whoever is killed at any line does the same again and ends at the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent.host import gpu_locks
from agent.host.gpu_locks import SLOTS_PER_GPU, SlotClaim
from agent.protocol import GeometryPart


class MigError(Exception):
    """The board said no; the message says why, for people."""


class MigGpu(Protocol):
    """One GPU, as far as splitting it goes. Each call may raise Trouble."""

    def parts(self) -> list[str] | None:
        """Profiles of its instances, '' for one that is not complete. None: it is not split."""

    def split(self, on: bool) -> None:
        """MIG mode on or off. Only without instances."""

    def clear(self) -> None:
        """Take every instance away."""

    def make(self, part: GeometryPart) -> None:
        """One instance, complete."""


@dataclass(frozen=True)
class ReshapeOutcome:
    """``state``: done, failed (it is as it was before) or unsure (it is neither)."""

    state: str
    detail: str = ""


def reshape_gpu(
    board: MigGpu, wanted: Sequence[GeometryPart], before: Sequence[str] | None
) -> ReshapeOutcome:
    """Split a board as wanted; ``before``: how it was, None for not split. No parts wanted: not split."""
    try:
        board.parts()
    except MigError as trouble:
        return ReshapeOutcome("failed", str(trouble))  # nothing was touched
    try:
        _apply_geometry(board, wanted)
        return ReshapeOutcome("done")
    except MigError as trouble:
        why = str(trouble)
    try:
        _apply_geometry(board, [GeometryPart(profile) for profile in before or ()])
    except MigError as trouble:
        return ReshapeOutcome("unsure", f"{why}; and what was there could not be put back: {trouble}")
    return ReshapeOutcome("failed", why)


def _apply_geometry(board: MigGpu, wanted: Sequence[GeometryPart]) -> None:
    there = board.parts()
    if there is None and not wanted:
        return
    if there is not None and wanted and Counter(there) == Counter(part.profile for part in wanted):
        return
    if there:
        board.clear()
    if (there is not None) != bool(wanted):
        board.split(bool(wanted))
    for part in wanted:
        board.make(part)


def reshape_under_lock(
    folder: Path, gpu: str, board: MigGpu, wanted: Sequence[GeometryPart], before: Sequence[str] | None
) -> ReshapeOutcome | None:
    """``reshape_gpu`` while this process holds the GPU's lock, as a workload on all of it would. None: somebody holds a part of it."""
    try:
        held = gpu_locks.lock_slots(folder, [SlotClaim(gpu, 0, SLOTS_PER_GPU)])
    except gpu_locks.SlotsLocked:
        return None
    try:
        return reshape_gpu(board, wanted, before)
    finally:
        held.close()


def request_from_json(question: dict[str, Any]) -> tuple[Path, str, list[GeometryPart], list[str] | None]:
    """What the NVML process is asked, as ``request_to_json`` wrote it: the locks, the GPU, the parts, what was before."""
    parts = [GeometryPart(profile, start) for profile, start in question["parts"]]
    return Path(question["locks"]), question["gpu"], parts, question["before"]


def request_to_json(
    folder: Path, gpu: str, parts: Sequence[GeometryPart], before: Sequence[str] | None
) -> dict[str, Any]:
    """The question for the NVML process."""
    return {
        "locks": str(folder),
        "gpu": gpu,
        "parts": [[part.profile, part.start] for part in parts],
        "before": None if before is None else list(before),
    }
