"""Splitting one GPU into MIG instances, whatever the GPU is: from what is there to what is wanted, and back where that fails.

It compares with what is there and remembers nothing, so whoever is killed at any line does the same again and ends at the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent import locks
from agent.locks import SLOTS_OF_A_GPU, Claim
from agent.protocol import GeometryPart


class Trouble(Exception):
    """The board said no; the message says why, for people."""


class Board(Protocol):
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
class Outcome:
    """``state``: done, failed (it is as it was before) or unsure (it is neither)."""

    state: str
    detail: str = ""


def reshape(board: Board, wanted: Sequence[GeometryPart], before: Sequence[str] | None) -> Outcome:
    """Split a board as wanted; ``before``: how it was, None for not split. No parts wanted: not split."""
    try:
        board.parts()
    except Trouble as trouble:
        return Outcome("failed", str(trouble))  # nothing was touched
    try:
        _bring(board, wanted)
        return Outcome("done")
    except Trouble as trouble:
        why = str(trouble)
    try:
        _bring(board, [GeometryPart(profile) for profile in before or ()])
    except Trouble as trouble:
        return Outcome("unsure", f"{why}; and what was there could not be put back: {trouble}")
    return Outcome("failed", why)


def _bring(board: Board, wanted: Sequence[GeometryPart]) -> None:
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


def under_lock(
    folder: Path, gpu: str, board: Board, wanted: Sequence[GeometryPart], before: Sequence[str] | None
) -> Outcome | None:
    """``reshape`` while this process holds the GPU's lock, as a workload on all of it would. None: somebody holds a part of it."""
    try:
        held = locks.take(folder, [Claim(gpu, 0, SLOTS_OF_A_GPU)])
    except locks.Busy:
        return None
    try:
        return reshape(board, wanted, before)
    finally:
        held.close()


def from_json(question: dict[str, Any]) -> tuple[Path, str, list[GeometryPart], list[str] | None]:
    """What the NVML process is asked, as ``to_json`` wrote it: the locks, the GPU, the parts, what was before."""
    parts = [GeometryPart(profile, start) for profile, start in question["parts"]]
    return Path(question["locks"]), question["gpu"], parts, question["before"]


def to_json(folder: Path, gpu: str, parts: Sequence[GeometryPart], before: Sequence[str] | None) -> dict[str, Any]:
    """The question for the NVML process."""
    return {
        "locks": str(folder), "gpu": gpu, "parts": [[part.profile, part.start] for part in parts],
        "before": None if before is None else list(before),
    }  # fmt: skip
