"""Folders that a workload has filled: given to its team, and taken away. Nothing in them is trusted to be what its name says.

The agent may be root here, so every step is by descriptor and follows no link, a file with a name elsewhere keeps its owner, and
what takes long (millions of files, folders thousands deep) is done beside the event loop, never in it.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import subprocess
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger("agent.storage.file_trees")

MAX_DEPTH = 200  # folders in folders: each open one takes a file descriptor
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHANGEABLE_FILE_TYPES = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK)


@dataclass
class _OwnershipChange:
    """What is given away: the entries of ``old`` on one file system."""

    old: int
    new: int
    device: int
    left: int = 0  # entries that keep their owner
    names: Counter[int] = field(
        default_factory=Counter
    )  # per inode of a file with several names: those seen here


def chown_tree(folder: Path, *, old: int, new: int) -> int:
    """Give everything in ``folder`` that belongs to user ``old`` to user and group ``new``, the folder itself last.

    Links are changed, not followed; other file systems, devices and whatever belongs to a third user are left alone, and so is a
    file that has a name outside of the folder: it is not this folder's. Gives how many entries were left. Raises OSError.
    """
    descriptor = os.open(folder, OPEN_FOLDER)
    try:
        given = _OwnershipChange(old, new, os.fstat(descriptor).st_dev)
        _chown_folder(descriptor, 0, given, only_count=True)
        _chown_folder(descriptor, 0, given, only_count=False)
        os.fchown(descriptor, new, new)
    finally:
        os.close(descriptor)
    return given.left


def _chown_folder(folder: int, depth: int, given: _OwnershipChange, *, only_count: bool) -> None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if seen.st_dev != given.device:
            continue
        if stat.S_ISDIR(seen.st_mode):
            if depth < MAX_DEPTH:
                below = os.open(name, OPEN_FOLDER, dir_fd=folder)
                try:
                    _chown_folder(below, depth + 1, given, only_count=only_count)
                    if not only_count and os.fstat(below).st_uid == given.old:
                        os.fchown(below, given.new, given.new)
                finally:
                    os.close(below)
            elif not only_count:
                given.left += 1
        elif only_count:
            given.names[seen.st_ino] += 1 if seen.st_nlink > 1 else 0
        elif stat.S_IFMT(seen.st_mode) in CHANGEABLE_FILE_TYPES and seen.st_uid == given.old:
            if seen.st_nlink in (1, given.names[seen.st_ino]):
                os.chown(name, given.new, given.new, dir_fd=folder, follow_symlinks=False)
            else:
                given.left += 1


class Trash:
    """Where folders go that nobody needs any more; ``rm`` empties it beside the agent, however deep and wide they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._changing = threading.Lock()
        self._at_work = self._more = False
        folder.mkdir(exist_ok=True, mode=0o700)
        self.empty()

    @property
    def is_emptied(self) -> bool:
        """Is what lies there being removed now?"""
        return self._at_work

    def throw(self, path: Path) -> None:
        """Take a folder out of the way at once; its space is free some time later. One that is not there is no mistake."""
        try:
            os.rename(path, self.folder / f"{path.name}-{secrets.token_hex(4)}")
        except FileNotFoundError:
            return
        self.empty()

    def empty(self) -> None:
        """Remove what was thrown away, in the background: by one worker, which looks again for what came meanwhile."""
        with self._changing:
            self._more = True
            if self._at_work:
                return
            self._at_work = True
        try:
            threading.Thread(target=self._work, daemon=True, name="trash").start()
        except RuntimeError as error:  # no thread is to be had
            self._at_work = False
            log.warning("nothing can be removed just now: %s", error)

    def _work(self) -> None:
        while True:
            with self._changing:
                if not self._more:
                    self._at_work = False
                    return
                self._more = False
            try:
                names = [str(self.folder / name) for name in os.listdir(self.folder)]
                if names:
                    _remove_folders(names)
            except (
                OSError
            ) as error:  # no process is to be had, say; what is left goes with what is thrown away next
                log.warning("not everything could be removed: %s", error)


def _remove_folders(paths: list[str]) -> None:
    wrong = _run_program("rm", "-rf", "--one-file-system", "--", *paths)
    if wrong and os.geteuid():
        # The workload was the agent's own user and closed folders to itself: nothing of it is left that could close them again.
        _run_program("chmod", "-R", "u+rwX", "--", *(path for path in paths if os.path.lexists(path)))
        wrong = _run_program("rm", "-rf", "--one-file-system", "--", *paths)
    if wrong:
        log.warning("not everything could be removed: %s", wrong[-1:])


def _run_program(*command: str) -> list[str]:
    """What the program complains of."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stderr.strip().splitlines() if done.returncode else []


def resolved_home(path: Path) -> Path | None:
    """Where the home ``path`` leads: itself, or the target of a link that root made; None for anybody else's link."""
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return path
    if not stat.S_ISLNK(seen.st_mode):
        return path
    return path.resolve() if seen.st_uid == 0 else None
