"""Measures the disk usage of folders, including deleted files that processes still hold open."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.host.system_path import SYSTEM_PATH

MEASURE_TIMEOUT_SECONDS = 10.0  # time limit of one run of du; after this time the result is UNKNOWN_USAGE
UNKNOWN_USAGE = 1 << 62
KCMP_SYSCALL_NUMBERS = {"x86_64": 312, "aarch64": 272}
KCMP_FILES = 2  # kcmp(2): compare the tables of open files


def count_bytes(folders: Iterable[Path]) -> int:
    """Return the number of bytes that the folders take on the disk, or UNKNOWN_USAGE.

    The call blocks: use a thread.
    """
    count = _run_du(folders, "-k")
    return count if count >= UNKNOWN_USAGE else count << 10


def count_files(folders: Iterable[Path]) -> int:
    """Return the number of files and folders in ``folders``, or UNKNOWN_USAGE.

    The call blocks: use a thread.
    """
    return _run_du(folders, "--inodes")


def _run_du(folders: Iterable[Path], unit: str) -> int:
    """Return the total that du prints; UNKNOWN_USAGE after a timeout or if a folder can't be read.

    du follows no links and stays on one file system. Files that are deleted during the run are ignored.
    """
    try:
        done = subprocess.run(
            ["du", "-s", "-x", "-c", unit, "--", *map(str, folders)],
            capture_output=True,
            timeout=MEASURE_TIMEOUT_SECONDS,
            env={"PATH": SYSTEM_PATH, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return UNKNOWN_USAGE
    if (
        b"Permission denied" in done.stderr
    ):  # the run removed the permission to read; only an agent that is root can still read the folder
        return UNKNOWN_USAGE
    total = done.stdout.rpartition(b"\ttotal")[0].rpartition(b"\n")[2]
    return int(total) if total.isdigit() else 0


def deleted_open_files(folder: Path, pids: Iterable[int]) -> list[os.stat_result]:
    """Return the deleted files on the disk of ``folder`` that the processes hold open or mapped.

    Such files still take space on the disk.
    """
    device = os.stat(folder).st_dev
    by_inode = {
        file.st_ino: file
        for pid in pids
        for file in (*_open_files(pid), *_mapped_files(pid))
        if file.st_dev == device and file.st_nlink == 0
    }
    return list(by_inode.values())


def _open_files(pid: int) -> Iterator[os.stat_result]:
    """Yield the deleted files in all tables of open files of a process.

    Usually all threads share one table. But a thread can have its own table, and a main thread that has ended
    has none. Therefore all threads are read.
    """
    tables: list[int] = []
    for thread in sorted(map(int, _list_folder(f"/proc/{pid}/task"))):
        if any(_share_file_table(thread, other) for other in tables):
            continue
        tables.append(thread)
        yield from _confirmed_deleted(
            f"/proc/{pid}/task/{thread}/fd", _list_folder(f"/proc/{pid}/task/{thread}/fd")
        )


def _mapped_files(pid: int) -> Iterator[os.stat_result]:
    """Yield the deleted files that the process has mapped. Yields nothing unless the agent is root."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
    except OSError:
        return
    ranges = (line.split(b" ", 1)[0].decode() for line in lines if line.endswith(b" (deleted)"))
    names = ("-".join(f"{int(end, 16):x}" for end in span.split("-")) for span in ranges)
    yield from _confirmed_deleted(f"/proc/{pid}/map_files", names)


def _list_folder(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # the process has ended, or the agent may not read it


def _confirmed_deleted(folder: str, names: Iterable[str]) -> Iterator[os.stat_result]:
    """Yield the files that the kernel reports as deleted.

    Other files are not examined, because their file system may hang.
    """
    for name in names:
        with contextlib.suppress(OSError):
            if _is_deleted(f"{folder}/{name}"):
                yield os.stat(f"{folder}/{name}")


def _is_deleted(path: str) -> bool:
    """Return True if a link in /proc leads to a deleted file. Raises OSError.

    Also return True if the path is too long to read, because the file may be deleted.
    """
    try:
        return os.readlink(path).endswith(" (deleted)")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return True
        raise


def _share_file_table(first: int, second: int) -> bool:
    """Return True if two threads share one table of open files.

    Returns False if the kernel does not support the call.
    """
    number = KCMP_SYSCALL_NUMBERS.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, first, second, KCMP_FILES, 0, 0) == 0
