"""Changes the MIG geometry of one GPU, real or simulated, and restores the old geometry on failure.

Each call compares the present geometry of the GPU with the wanted geometry, and stores no progress. Therefore
a repeated call reaches the same result, even if the first call was interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent.host import gpu_locks
from agent.host.gpu_locks import SlotClaim
from agent.protocol import SLOTS_PER_GPU, GeometryPart


class MigError(Exception):
    """The GPU or its driver refused a step of a geometry change. The message is shown to operators."""


class MigGpu(Protocol):
    """One GPU whose MIG geometry can be changed. Each method may raise MigError."""

    def parts(self) -> list[str] | None:
        """Return the profile of each instance; None if MIG mode is off.

        An instance without a compute instance is incomplete and has the profile ''.
        """

    def split(self, on: bool) -> None:
        """Switch MIG mode on or off. Call this method only while the GPU has no instances."""

    def clear(self) -> None:
        """Destroy every instance."""

    def make(self, part: GeometryPart) -> None:
        """Create one instance, including its compute instance."""


@dataclass(frozen=True)
class ReshapeOutcome:
    """The result of a geometry change.

    ``state``: done, failed (the GPU has its old geometry) or unsure (the geometry of the GPU is unknown).
    """

    state: str
    detail: str = ""


def reshape_gpu(
    board: MigGpu, wanted: Sequence[GeometryPart], before: Sequence[str] | None
) -> ReshapeOutcome:
    """Give a GPU the ``wanted`` geometry. If ``wanted`` is empty, switch MIG mode off.

    ``before`` contains the profiles to restore on failure; empty or None means MIG mode off.
    """
    try:
        board.parts()
    except MigError as error:
        return ReshapeOutcome("failed", str(error))  # the GPU was not changed
    try:
        _apply_geometry(board, wanted)
        return ReshapeOutcome("done")
    except MigError as error:
        reason = str(error)
    try:
        _apply_geometry(board, [GeometryPart(profile) for profile in before or ()])
    except MigError as error:
        return ReshapeOutcome("unsure", f"{reason}; and the previous geometry could not be restored: {error}")
    return ReshapeOutcome("failed", reason)


def _apply_geometry(board: MigGpu, wanted: Sequence[GeometryPart]) -> None:
    current = board.parts()
    if current is None and not wanted:
        return
    if current is not None and wanted and Counter(current) == Counter(part.profile for part in wanted):
        return
    if current:
        board.clear()
    if (current is not None) != bool(wanted):
        board.split(bool(wanted))
    for part in wanted:
        board.make(part)


def reshape_under_lock(
    folder: Path, gpu: str, board: MigGpu, wanted: Sequence[GeometryPart], before: Sequence[str] | None
) -> ReshapeOutcome | None:
    """Call ``reshape_gpu`` while holding the same locks as a workload on the whole GPU.

    Return None if another process holds a part of the GPU.
    """
    try:
        held = gpu_locks.lock_slots(folder, [SlotClaim(gpu, 0, SLOTS_PER_GPU)])
    except gpu_locks.SlotsLocked:
        return None
    try:
        return reshape_gpu(board, wanted, before)
    finally:
        held.close()


def request_from_json(question: dict[str, Any]) -> tuple[Path, str, list[GeometryPart], list[str] | None]:
    """Return the locks folder, the GPU uuid, the wanted parts and the profiles to restore on failure.

    ``question`` is the result of ``request_to_json``.
    """
    parts = [GeometryPart(profile, start) for profile, start in question["parts"]]
    return Path(question["locks"]), question["gpu"], parts, question["before"]


def request_to_json(
    folder: Path, gpu: str, parts: Sequence[GeometryPart], before: Sequence[str] | None
) -> dict[str, Any]:
    """Return a geometry change as a JSON object, for the key "about" of a question to the NVML process."""
    return {
        "locks": str(folder),
        "gpu": gpu,
        "parts": [[part.profile, part.start] for part in parts],
        "before": None if before is None else list(before),
    }
