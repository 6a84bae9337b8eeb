"""Changes the owner of folders that a workload has filled, and removes such folders.

The agent may be root, so it does not trust the names in these folders. Every step uses descriptors and
follows no link. A file that also has a name outside of the folder keeps its owner. The work can take long
(millions of files, deep folders), so it runs in threads or processes, never on the event loop.
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

MAX_DEPTH = 200  # deepest nesting of folders; each level needs a file descriptor
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHANGEABLE_FILE_TYPES = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK)


@dataclass
class _OwnershipChange:
    """The progress of one ownership change, from uid ``old`` to uid ``new`` on one file system."""

    old: int
    new: int
    device: int
    skipped: int = 0  # see ``chown_tree``
    # The number of names below the folder, by inode. Only files with several names are counted.
    names: Counter[int] = field(default_factory=Counter)


def chown_tree(folder: Path, *, old: int, new: int) -> int:
    """Change the owner of all entries of uid ``old`` in ``folder``, and of ``folder`` itself, to ``new``.

    ``new`` is the new uid and the new gid. Links are changed, not followed. Entries of other users, entries
    of other file systems and device nodes keep their owner. A file that also has a name outside of ``folder``
    keeps its owner too.

    Return the number of skipped entries: files of ``old`` that also have a name outside of ``folder``, and
    folders below MAX_DEPTH. A skipped folder counts as one entry, and its content is skipped too. Raises
    OSError.
    """
    descriptor = os.open(folder, OPEN_FOLDER)
    try:
        change = _OwnershipChange(old, new, os.fstat(descriptor).st_dev)
        _chown_folder(descriptor, 0, change, only_count=True)
        _chown_folder(descriptor, 0, change, only_count=False)
        os.fchown(descriptor, new, new)
    finally:
        os.close(descriptor)
    return change.skipped


# Not split: its branches are the kinds of entries, and each entry takes one branch.
def _chown_folder(folder: int, depth: int, change: _OwnershipChange, *, only_count: bool) -> None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if status.st_dev != change.device:
            continue
        if stat.S_ISDIR(status.st_mode):
            if depth < MAX_DEPTH:
                below = os.open(name, OPEN_FOLDER, dir_fd=folder)
                try:
                    _chown_folder(below, depth + 1, change, only_count=only_count)
                    if not only_count and os.fstat(below).st_uid == change.old:
                        os.fchown(below, change.new, change.new)
                finally:
                    os.close(below)
            elif not only_count:
                change.skipped += 1
        elif only_count:
            change.names[status.st_ino] += 1 if status.st_nlink > 1 else 0
        elif stat.S_IFMT(status.st_mode) in CHANGEABLE_FILE_TYPES and status.st_uid == change.old:
            if status.st_nlink in (1, change.names[status.st_ino]):
                os.chown(name, change.new, change.new, dir_fd=folder, follow_symlinks=False)
            else:
                change.skipped += 1


class Trash:
    """A folder that collects folders to remove. ``rm`` empties it in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._changing = threading.Lock()
        self._at_work = self._more = False
        folder.mkdir(exist_ok=True, mode=0o700)
        self.empty()

    @property
    def is_emptied(self) -> bool:
        """Return True while the content of the trash is being removed."""
        return self._at_work

    def throw(self, path: Path) -> None:
        """Move a folder to the trash. Its disk space is freed later. A missing folder is ignored."""
        try:
            os.rename(path, self.folder / f"{path.name}-{secrets.token_hex(4)}")
        except FileNotFoundError:
            return
        self.empty()

    def empty(self) -> None:
        """Remove the content of the trash in a thread.

        There is at most one such thread. It repeats the removal until no further folder was added.
        """
        with self._changing:
            self._more = True
            if self._at_work:
                return
            self._at_work = True
        try:
            threading.Thread(target=self._work, daemon=True, name="trash").start()
        except RuntimeError as error:  # no thread available
            self._at_work = False
            log.warning("files can't be removed at present: %s", error)

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
            # For example, no process is available. The next call of ``empty`` tries again.
            except OSError as error:
                log.warning("not all files could be removed: %s", error)


def _remove_folders(paths: list[str]) -> None:
    wrong = _run_program("rm", "-rf", "--one-file-system", "--", *paths)
    if wrong and os.geteuid():
        # The workload may have run as the agent's user and taken away the permissions of this user.
        _run_program("chmod", "-R", "u+rwX", "--", *(path for path in paths if os.path.lexists(path)))
        wrong = _run_program("rm", "-rf", "--one-file-system", "--", *paths)
    if wrong:
        log.warning("not all files could be removed: %s", wrong[-1:])


def _run_program(*command: str) -> list[str]:
    """Run the program and return the lines of its error output; [] on success."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stderr.strip().splitlines() if done.returncode else []


def resolved_home(path: Path) -> Path | None:
    """Return the folder of a home: ``path``, or its target if it is a link that root created.

    Returns None for any other link.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return path
    if not stat.S_ISLNK(status.st_mode):
        return path
    return path.resolve() if status.st_uid == 0 else None
