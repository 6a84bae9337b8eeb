"""Guarantees one workload per GPU slot by locks on the host, even if a server orders two workloads.

A workload on a whole GPU takes an exclusive lock on the GPU's file. A workload on a slice takes a shared lock
on the GPU's file and an exclusive lock on the file of its slot range. The locks (flock) belong to the run's
shim and to the guard above it (``agent/shim/guard.py``), never to the workload's processes: a process can
pass an open descriptor to any other process, which could then hold the GPU for ever. The shim releases the
locks after the last process of the workload has ended. If the shim is killed, the guard releases them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path

from agent.protocol import SLOTS_PER_GPU


@dataclass(frozen=True)
class SlotClaim:
    """The slots of one GPU that a run needs: ``[first, first + slots)`` of SLOTS_PER_GPU."""

    gpu: str
    first: int
    slots: int

    @property
    def whole(self) -> bool:
        return self.slots == SLOTS_PER_GPU

    def overlaps(self, other: SlotClaim) -> bool:
        """Return True if the two claims can't be held at the same time."""
        return (
            self.gpu == other.gpu
            and self.first < other.first + other.slots
            and other.first < self.first + self.slots
        )


class SlotsLocked(Exception):
    """Another process holds one of the slots. ``claim`` names the slots, ``path`` the lock file."""

    def __init__(self, claim: SlotClaim, path: Path) -> None:
        super().__init__(f"{claim.gpu} slots {claim.first} to {claim.first + claim.slots} are still held")
        self.claim = claim
        self.path = path


class HeldLocks:
    """Open lock files.

    ``close`` closes them in this process; the locks stay while a child process has them open.
    """

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def lock_slots(folder: Path, claims: list[SlotClaim]) -> HeldLocks:
    """Take all locks or none, in sorted order, without waiting. Raises SlotsLocked."""
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
    """Return the pids of other processes that have this lock file open. Slow: reads all of /proc."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the process has ended, or this user may not read it
            links = (os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd"))
            if int(pid) != os.getpid() and str(path) in links:
                found.append(int(pid))
    return found


def _lock_file(held: HeldLocks, path: Path, kind: int, claim: SlotClaim) -> None:
    # Open read-only: otherwise a process that gets the descriptor could leave data for the next tenant.
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o400)
    held.descriptors.append(descriptor)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SlotsLocked(claim, path) from None


def _lock_file_name(gpu: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", gpu)
