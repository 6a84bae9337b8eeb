"""Locks on the host: one GPU slot, one workload, whatever any server says.

A workload on a whole GPU holds the GPU's lock file exclusively. One on a slice holds it shared, and the file of its slot range
exclusively. The locks (flock) belong to the run's shim and to the guard above it (``agent/shim/guard.py``), never to the workload's
own processes: an open descriptor can be handed to anybody who shares a folder with it, and would hold the GPU for as long as they
like. So they are free when, and only when, the shim has seen the last process of the workload go, or the guard where the shim was
killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path

SLOTS_PER_GPU = 840


@dataclass(frozen=True)
class SlotClaim:
    """Slots of one GPU that a run is to hold: ``[first, first + slots)`` of 840."""

    gpu: str
    first: int
    slots: int

    @property
    def whole(self) -> bool:
        return self.slots == SLOTS_PER_GPU

    def overlaps(self, other: SlotClaim) -> bool:
        """Can't both be held at once?"""
        return (
            self.gpu == other.gpu
            and self.first < other.first + other.slots
            and other.first < self.first + self.slots
        )


class SlotsLocked(Exception):
    """Somebody still holds one of the slots; ``claim`` says which, ``path`` by which of its lock files."""

    def __init__(self, claim: SlotClaim, path: Path) -> None:
        super().__init__(f"{claim.gpu} slots {claim.first} to {claim.first + claim.slots} are still held")
        self.claim = claim
        self.path = path


class HeldLocks:
    """Open lock files. ``close`` drops this process's hold: the locks stay while an heir has them open."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def lock_slots(folder: Path, claims: list[SlotClaim]) -> HeldLocks:
    """All of the locks or none, in sorted order, without waiting. Raises SlotsLocked."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = HeldLocks()
    try:
        for claim in sorted(claims, key=lambda claim: (claim.gpu, claim.first)):
            kind = fcntl.LOCK_EX if claim.whole else fcntl.LOCK_SH
            _lock_file(held, folder / _lock_file_name(claim.gpu), kind, claim)
            if not claim.whole:
                path = folder / f"{_lock_file_name(claim.gpu)}.{claim.first}-{claim.first + claim.slots}"
                _lock_file(held, path, fcntl.LOCK_EX, claim)
    except BaseException:
        held.close()
        raise
    return held


def pids_with_open(path: Path) -> list[int]:
    """Pids of the processes, but this one, that have this lock file open. Reads all of /proc: takes long."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is not ours to look at
            links = (os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd"))
            if int(pid) != os.getpid() and str(path) in links:
                found.append(int(pid))
    return found


def _lock_file(held: HeldLocks, path: Path, kind: int, claim: SlotClaim) -> None:
    # For reading only: nobody who comes by the descriptor can leave bytes for the next tenant.
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o400)
    held.descriptors.append(descriptor)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SlotsLocked(claim, path) from None


def _lock_file_name(gpu: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", gpu)
