"""Measures the homes of a host:  python -m agent.homes FOLDER   and prints what it found as one JSON object.

A process of its own, at the lowest priority, so that a slow or hanging file system holds up nothing of the agent. Hosts that
share the folder share its work: what one of them measured lately is taken by the others. In the folder, out of reach of workloads:

.volumes/storage          a random name: hosts that report the same one have the same homes
.volumes/lock             held by the one that measures
.volumes/measured.json    what was found last
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.protocol import LARGEST_SIZE, LONGEST_HOME_NAME, MOST_HOMES
from agent.state import read_json, write_json, write_text
from agent.tenants import followed

HOME_SECONDS = 60.0  # for one home: a larger one is known as "at least"
ROUND_SECONDS = 600.0  # for all of them: those not reached keep what was found before, and go first the next time
SHORTEST_PAUSE = 60.0
LONGEST_PAUSE = 7200.0
PAUSE_FACTOR = 20  # between two rounds: measuring takes at most a twentieth of one core's spare time
DEEPEST = 200  # folders in folders: each open one takes a file descriptor
MOST_LINKED = 200_000  # files with several names that are remembered, so that each counts once
BLOCK = 512  # bytes; what st_blocks counts in, whatever the file system's own blocks are
MARK_FOLDER = ".volumes"
FORMAT = 2  # of what is kept there


@dataclass
class _Sum:
    """What was counted in one home so far. ``complete`` is False once something could not be counted."""

    bytes: int = 0
    files: int = 0
    changed_at: float = 0.0
    complete: bool = True
    linked: set[tuple[int, int]] = field(default_factory=set)


class _TimeIsUp(Exception):
    """The home is larger than its time allows."""


def measure(home: Path, out_of_time: Callable[[], bool], now: float) -> dict[str, Any] | None:
    """What a home takes on its disk: bytes, files, changed_at, complete, measured_at; None when it can't be opened.

    Links are not followed (but for a home that root has put elsewhere by one: a workload may have made any other) and other file
    systems not entered. ``out_of_time`` is asked again and again; what was counted until then is a lower bound (``complete``).
    """
    found = _Sum()
    place = followed(home)
    try:
        if place is None:
            return None
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        own = os.fstat(descriptor)
        found.bytes, found.changed_at = own.st_blocks * BLOCK, own.st_mtime
        _count(descriptor, own.st_dev, 0, found, out_of_time)
    except _TimeIsUp:
        found.complete = False
    finally:
        os.close(descriptor)
    return {
        "bytes": min(found.bytes, LARGEST_SIZE),
        "files": found.files,
        "changed_at": min(found.changed_at, now),  # a file may claim any time
        "complete": found.complete,
        "measured_at": now,
    }


def _count(folder: int, device: int, depth: int, found: _Sum, out_of_time: Callable[[], bool]) -> None:
    """Everything below the open folder. By descriptors, so that a folder swapped for a link leads nowhere."""
    below: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if out_of_time():
                    raise _TimeIsUp
                _count_entry(entry, device, found, below)
    except OSError:
        found.complete = False
    if below and depth >= DEEPEST:
        found.complete = False
        return
    for name in below:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            continue  # gone meanwhile
        except OSError:
            found.complete = False
            continue
        try:
            _count(descriptor, device, depth + 1, found, out_of_time)
        finally:
            os.close(descriptor)


def _count_entry(entry: os.DirEntry[str], device: int, found: _Sum, below: list[str]) -> None:
    try:
        seen = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # gone meanwhile
    except OSError:
        found.complete = False
        return
    if seen.st_dev != device:
        return
    if stat.S_ISDIR(seen.st_mode):
        below.append(entry.name)
    else:
        if seen.st_nlink > 1 and not _first_name(seen, found):
            return
        found.files += 1
    found.bytes += seen.st_blocks * BLOCK
    found.changed_at = max(found.changed_at, seen.st_mtime)


def _first_name(seen: os.stat_result, found: _Sum) -> bool:
    key = (seen.st_dev, seen.st_ino)
    if key in found.linked:
        return False
    if len(found.linked) >= MOST_LINKED:
        found.complete = False
        return False
    found.linked.add(key)
    return True


def names_in(folder: Path) -> tuple[list[str], int]:
    """The names of the homes in order, at most MOST_HOMES, and how many more there are. Hidden ones are the agent's own."""
    names = sorted(
        entry.name
        for entry in os.scandir(folder)
        if not entry.name.startswith(".") and _can_be_said(entry.name) and entry.is_dir() and followed(folder / entry.name)
    )
    return names[:MOST_HOMES], max(0, len(names) - MOST_HOMES)


def _can_be_said(name: str) -> bool:
    """Names of users are; a folder that somebody else put there may be called anything."""
    return name.isprintable() and len(name) <= LONGEST_HOME_NAME


def pause_after(took_seconds: float) -> float:
    """How long measuring rests after a round that took so long."""
    return min(LONGEST_PAUSE, max(SHORTEST_PAUSE, PAUSE_FACTOR * took_seconds))


def look(folder: Path, now: Callable[[], float], clock: Callable[[], float]) -> dict[str, Any] | None:
    """What is known of the homes in ``folder``, measured now unless that was done lately; None while another one measures for the
    first time. ``clock`` counts seconds for the deadlines, ``now`` is seconds since the epoch. Raises OSError."""
    marks = folder / MARK_FOLDER
    marks.mkdir(exist_ok=True, mode=0o700)
    known = _whole(read_json(marks / "measured.json"))
    resting = known is not None and 0 <= now() - known["measured_at"] < pause_after(known["took_seconds"])
    if known and resting and [home["name"] for home in known["homes"]] == names_in(folder)[0]:
        return known
    lock = os.open(marks / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return known  # another host is at it
    except OSError:
        print("the homes' file system has no locks: hosts that share it all measure it", file=sys.stderr)
    try:
        found = _round(folder, marks, known or {}, resting, now, clock)
        write_json(marks / "measured.json", found)
        return found
    finally:
        os.close(lock)


def _whole(known: Any) -> dict[str, Any] | None:
    """What an agent of this version wrote; another one's is measured anew."""
    return known if isinstance(known, dict) and known.get("format") == FORMAT else None


def _round(
    folder: Path,
    marks: Path,
    known: dict[str, Any],
    resting: bool,
    now: Callable[[], float],
    clock: Callable[[], float],
) -> dict[str, Any]:
    """One look at all homes; ``resting``: only at those that are new, which may come at any time."""
    began, listed_at = clock(), now()
    names, left_out = names_in(folder)
    before = {home["name"]: home for home in known.get("homes", [])}
    unmeasured = {"bytes": None, "files": None, "changed_at": None, "complete": True, "measured_at": None}
    homes = {name: before.get(name, {"name": name, **unmeasured}) for name in names}
    due = [name for name in names if not resting or name not in before]
    for name in sorted(due, key=lambda each: homes[each]["measured_at"] or 0.0):
        if clock() - began > ROUND_SECONDS:
            break
        ends = clock() + HOME_SECONDS
        found = measure(folder / name, lambda ends=ends: clock() > ends, now())  # type: ignore[misc]
        homes[name] = {"name": name, **(found or unmeasured)}
    disk = shutil.disk_usage(folder)
    return {
        "format": FORMAT,
        "storage": _storage(marks),
        "listed_at": listed_at,
        "measured_at": known["measured_at"] if resting else listed_at,
        "took_seconds": known["took_seconds"] if resting else clock() - began,
        "total_bytes": min(disk.total, LARGEST_SIZE),
        "free_bytes": min(disk.free, LARGEST_SIZE),
        "homes": list(homes.values()),
        "left_out": left_out,
    }


def _storage(marks: Path) -> str:
    """The name by which hosts that share this folder are known to do so: made once."""
    path = marks / "storage"
    if not path.exists():
        write_text(path, os.urandom(16).hex())
    return path.read_text().strip()


def lie_low() -> None:
    """Run only when nothing else wants the processor or the disk."""
    os.nice(19)
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # Linux takes the priority of reading from it too
    except OSError as error:
        print(f"measuring homes with an ordinary priority: {error}", file=sys.stderr)


if __name__ == "__main__":
    lie_low()
    print(json.dumps(look(Path(sys.argv[1]), time.time, time.monotonic)))
