"""Locks the GPU slots of workloads on the host, so that two workloads never use the same slot.

The locks protect a slot even if the server orders two workloads on it.

A GPU has SLOTS_PER_GPU slots. A whole GPU takes all of them, and a MIG instance takes a range of them. A
workload on a whole GPU takes an exclusive lock on the GPU's file. A workload on a range of slots takes a
shared lock on the GPU's file and an exclusive lock on the file of its range.

The locks (flock) belong to the shim, which supervises the run, and to the guard, the parent of the shim
(``agent/shim/guard.py``). They never belong to the workload's processes. Such a process could pass the open
descriptor to any other process, which could then hold the GPU forever. The shim releases the locks after the
last process of the workload has ended. If the shim is killed, the guard releases the locks.
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
    """The slots of one GPU that a run needs: from ``first`` to ``first + slots - 1``.

    Example: a whole GPU is ``first=0, slots=SLOTS_PER_GPU``.
    """

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
    """Another process holds some of the wanted slots.

    ``claim`` contains the wanted slots. ``path`` is the lock file that could not be locked.
    """

    def __init__(self, claim: SlotClaim, path: Path) -> None:
        super().__init__(f"{claim.gpu} slots {claim.first} to {claim.first + claim.slots - 1} are still held")
        self.claim = claim
        self.path = path


class HeldLocks:
    """The descriptors of the lock files that this process has locked.

    ``close`` closes them in this process. The locks are kept as long as a child process has the files open.
    """

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def lock_slots(folder: Path, claims: list[SlotClaim]) -> HeldLocks:
    """Lock the slots of all claims, or none of them, without waiting. Raises SlotsLocked."""
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
    """Return the pids of other processes that have this lock file open.

    The call is slow, because it reads the open files of every process.
    """
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the process has ended, or this user may not read it
            links = (os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd"))
            if int(pid) != os.getpid() and str(path) in links:
                found.append(int(pid))
    return found


def _lock_file(held: HeldLocks, path: Path, kind: int, claim: SlotClaim) -> None:
    # Open the file read-only. Otherwise, a process that gets the descriptor could write data into the file
    # for the next workload on the GPU.
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o400)
    held.descriptors.append(descriptor)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SlotsLocked(claim, path) from None


def _lock_file_name(gpu: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", gpu)
