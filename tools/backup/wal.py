"""Archive the files of PostgreSQL's write-ahead log (WAL), and read the archive.

The archive is a folder with one compressed file for each WAL file. Archiving begins with the first backup,
because older files are useless without a backup: until the mark ARCHIVING_MARK exists in the folder of the
database, the archiver discards the files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

ARCHIVING_MARK = "archiving.on"
WAL_NAME = re.compile(r"[0-9A-F]{24}")
SEGMENTS_PER_LOG = 256  # WAL files have 16 MiB, so 256 of them have consecutive numbers


def archive_command(archive: Path) -> str:
    """Return the shell command with which PostgreSQL archives one WAL file.

    A file that is in the archive already is accepted only if it has the same content. So two clusters cannot
    mix their files. PostgreSQL runs the command again after a failure, and keeps the file meanwhile.
    """
    target = f"{shlex.quote(str(archive)).replace('%', '%%')}/%f.gz"
    return (
        f'test -e {ARCHIVING_MARK} || exit 0; if test -e {target}; then gzip -dc {target} | cmp -s - "%p"; '
        f'else gzip -1 <"%p" >{target}.part && sync {target}.part && mv {target}.part {target}; fi'
    )


def restore_command(archive: Path) -> str:
    """Return the shell command with which PostgreSQL reads one WAL file during a recovery."""
    source = f"{shlex.quote(str(archive)).replace('%', '%%')}/%f.gz"
    return f'test -e {source} && gzip -dc {source} >"%p"'


def segment_number(name: str) -> int:
    """Return the position of a WAL file in the log. Files of two timelines may share a position."""
    return int(name[8:16], 16) * SEGMENTS_PER_LOG + int(name[16:24], 16)


def archived_segments(archive: Path | None) -> list[str]:
    """Return the names of the archived WAL files, oldest first; [] without an archive."""
    if archive is None or not archive.is_dir():
        return []
    names = (path.name.removesuffix(".gz") for path in archive.glob("*.gz"))
    return sorted((name for name in names if WAL_NAME.fullmatch(name)), key=lambda name: (name[8:], name[:8]))


def missing_segments(names: Iterable[str], first: str) -> list[int]:
    """Return the positions that the archive lacks between the WAL file ``first`` and its newest file."""
    start = segment_number(first)
    found = {segment_number(name) for name in names if segment_number(name) >= start}
    return [number for number in range(start, max(found, default=start)) if number not in found]


def remove_segments_before(archive: Path, first: str) -> int:
    """Remove the WAL files that no kept backup needs. Return their number.

    ``first`` is the first WAL file that the oldest kept backup needs.
    """
    old = [name for name in archived_segments(archive) if segment_number(name) < segment_number(first)]
    for name in old:
        (archive / f"{name}.gz").unlink()
    return len(old)
