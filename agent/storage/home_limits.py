"""Limits the size of homes by project quotas of their file system, where it has them (XFS, ext4).

A home with a limit is a project: its folder has the number of the project and gives it to all new files. The
file system then counts the project's space, and refuses writes above the limit. A home gets its project when
it is made, because the files of a full home would have to be changed one by one. Needs root.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from agent.host.durable_files import read_json_or_raise, write_json
from agent.storage.locked_record import locked_record

METADATA_FOLDER = ".volumes"
PROJECTS_FILE = "projects.json"
FIRST_PROJECT = 1_500_000_000  # far from the numbers that operators enter in /etc/projid
QUOTACTL_FD = 443  # number of the system call quotactl_fd, equal on all architectures; Linux 5.14
PROJECT_QUOTA = 2  # PRJQUOTA, linux/quota.h
# Commands of quotactl(2), linux/quota.h and linux/dqblk_xfs.h.
Q_GETQUOTA, Q_SETQUOTA, Q_XGETQSTAT = 0x800007, 0x800008, 0x5805
BLOCK_LIMITS_ARE_SET = 1  # QIF_BLIMITS
QUOTA_STRUCT = struct.Struct("=8QI4x")  # struct if_dqblk; its first number is the hard limit of space
QUOTA_BLOCK_BYTES = 1024
STATE_BUFFER_BYTES = 256  # larger than struct fs_quota_stat, whose flags are at offset 2
PROJECTS_COUNTED, PROJECTS_ENFORCED = 1 << 4, 1 << 5  # FS_QUOTA_PDQ_ACCT, FS_QUOTA_PDQ_ENFD
FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR = 0x801C581F, 0x401C5820  # linux/fs.h
ATTRIBUTES_STRUCT = struct.Struct("=5I8x")  # struct fsxattr
PROJECT_IS_INHERITED = 0x200  # FS_XFLAG_PROJINHERIT
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class HomeLimits:
    """The limits of the homes in one folder. ``problem``: why they can't be limited; '' if they can."""

    homes: Path
    problem: str

    def apply(self, home: Path, limit_mib: int) -> None:
        """Limit a home that is new, or change the limit of a home that has one. 0 means no limit.

        A home that was made without a limit keeps having none. Nothing happens if homes can't be limited.
        Raises OSError, StateFolderError, and RecordLocked while another host uses the record of projects.
        """
        if self.problem:
            return
        descriptor = os.open(home, OPEN_FOLDER)
        try:
            project = _project_of(descriptor)
            if project < FIRST_PROJECT:
                if not limit_mib or project or os.listdir(descriptor):
                    return
                project = self._new_project(home.name)
                _set_limit(descriptor, project, limit_mib)
                _set_project(descriptor, project)
            elif _limit_of_project(descriptor, project) != limit_mib << 20:
                _set_limit(descriptor, project, limit_mib)
        finally:
            os.close(descriptor)

    def _new_project(self, name: str) -> int:
        """Return the number of the project of a home. A number is never given to another home."""
        folder = self.homes / METADATA_FOLDER
        folder.mkdir(exist_ok=True, mode=0o700)
        waiting = "waiting for another host that limits a home"
        with locked_record(folder / f"{PROJECTS_FILE}.lock", waiting):
            projects: dict[str, int] = read_json_or_raise(folder / PROJECTS_FILE) or {}
            number = max(projects.values(), default=FIRST_PROJECT - 1) + 1
            write_json(folder / PROJECTS_FILE, {**projects, name: number})
        return number


def open_home_limits(homes: Path) -> HomeLimits:
    """Return the limits of the homes in this folder, after a test whether they are possible."""
    return HomeLimits(homes, _limits_problem(homes))


def limit_of_home(home: Path) -> int | None:
    """Return the largest size of a home in bytes. None: it has no limit, or none can be read."""
    try:
        descriptor = os.open(home, OPEN_FOLDER)
    except OSError:
        return None
    try:
        project = _project_of(descriptor)
        return (_limit_of_project(descriptor, project) or None) if project else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _limits_problem(folder: Path) -> str:
    """Return why the file system of a folder can't limit homes; '' if it can."""
    if os.geteuid() != 0:
        return "the agent is not root"
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"the folder of the homes can't be opened ({error.strerror})"
    try:
        _project_of(descriptor)
        answer = _quota_call(descriptor, Q_XGETQSTAT, 0, bytes(STATE_BUFFER_BYTES))
    except OSError as error:
        why = os.strerror(error.errno or errno.EIO)
        return f"the file system {_file_system_type(folder)} has no project quotas ({why})"
    finally:
        os.close(descriptor)
    (flags,) = struct.unpack_from("=H", answer, 2)
    if flags & PROJECTS_COUNTED and flags & PROJECTS_ENFORCED:
        return ""
    return f"project quotas of the file system {_file_system_type(folder)} are off (mount option prjquota)"


def _project_of(descriptor: int) -> int:
    """Return the project of an open folder; 0: none. Raises OSError if the file system has no projects."""
    attributes = bytearray(ATTRIBUTES_STRUCT.size)
    fcntl.ioctl(descriptor, FS_IOC_FSGETXATTR, attributes)
    return int(ATTRIBUTES_STRUCT.unpack(attributes)[3])


def _set_project(descriptor: int, project: int) -> None:
    attributes = bytearray(ATTRIBUTES_STRUCT.size)
    fcntl.ioctl(descriptor, FS_IOC_FSGETXATTR, attributes)
    flags, extent_size, extents, _, copy_size = ATTRIBUTES_STRUCT.unpack(attributes)
    changed = ATTRIBUTES_STRUCT.pack(flags | PROJECT_IS_INHERITED, extent_size, extents, project, copy_size)
    fcntl.ioctl(descriptor, FS_IOC_FSSETXATTR, changed)


def _set_limit(descriptor: int, project: int, limit_mib: int) -> None:
    blocks = (limit_mib << 20) // QUOTA_BLOCK_BYTES
    limits = QUOTA_STRUCT.pack(blocks, blocks, 0, 0, 0, 0, 0, 0, BLOCK_LIMITS_ARE_SET)
    _quota_call(descriptor, Q_SETQUOTA, project, limits)


def _limit_of_project(descriptor: int, project: int) -> int:
    """Return the limit of a project in bytes; 0: none."""
    try:
        answer = _quota_call(descriptor, Q_GETQUOTA, project, bytes(QUOTA_STRUCT.size))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):  # the project has neither a limit nor files
            return 0
        raise
    return int(QUOTA_STRUCT.unpack(answer)[0]) * QUOTA_BLOCK_BYTES


def _quota_call(descriptor: int, command: int, project: int, data: bytes) -> bytes:
    """Call quotactl_fd for project quotas. ``data`` is the structure; return it as the kernel left it."""
    buffer = ctypes.create_string_buffer(data, len(data))
    libc = ctypes.CDLL(None, use_errno=True)
    command = command << 8 | PROJECT_QUOTA
    if libc.syscall(QUOTACTL_FD, descriptor, ctypes.c_uint(command), ctypes.c_uint(project), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw


def _file_system_type(folder: Path) -> str:
    """Return the type of the file system of a folder, such as ext4; 'unknown' if it can't be found."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return "unknown"
