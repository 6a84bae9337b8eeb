"""Run `./run backup` and `./run restore`."""

from __future__ import annotations

import argparse
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tools.backup.manifest import VERIFIED, backups_in, read_manifest
from tools.backup.restore import RestoreRequest, restore_backup
from tools.backup.source import BackupSource, find_source
from tools.backup.take import is_archiving, remove_old_backups, take_backup
from tools.backup.verify import verify_backup
from tools.console import RunError, say
from tools.environment import ensure_environment
from tools.paths import PYTHON
from tools.service_environment import MAX_BACKUP_HOURS
from tools.site.state_folders import exit_if_running

DEFAULT_KEPT = 7
RETRY_SECONDS = 600  # pause after a scheduled backup that failed


def backup_verb(arguments: list[str]) -> int:
    """Take a backup, list the backups, or take backups on a schedule."""
    parser = argparse.ArgumentParser(prog="./run backup")
    parser.add_argument("--state", type=Path, help="the state folder of the installation")
    parser.add_argument("--verify", action="store_true", help="restore the backup into a temporary database")
    parser.add_argument(
        "--keep", type=_positive, default=DEFAULT_KEPT, help="number of backups that are kept"
    )
    parser.add_argument("--list", action="store_true", help="list the backups; take none")
    parser.add_argument("--every", type=_positive, metavar="HOURS", help="take a backup every HOURS hours")
    options = parser.parse_args(arguments)
    if options.every is not None and options.every > MAX_BACKUP_HOURS:
        raise RunError(f"--every {options.every}; allowed: 1 to {MAX_BACKUP_HOURS}")
    if not PYTHON.exists():  # a service of systemd may not write beside the program
        ensure_environment(quiet=True)
    source = find_source(options.state)
    if options.list:
        _list(source)
        return 0
    if options.every is not None:
        return _take_every(source, options)
    _take(source, options)
    return 0


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:10]) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; allowed: 1 to 100000")
    return int(text)


def _take(source: BackupSource, options: argparse.Namespace) -> None:
    begin = time.monotonic()
    place = take_backup(source)
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    say(f"Backup: {place} ({size / 1e6:.1f} MB, {time.monotonic() - begin:.1f} s)")
    if options.verify:
        say(f"Verified by a restore into a temporary database ({verify_backup(place, source):.1f} s)")
    for old in remove_old_backups(source.backups, options.keep):
        say(f"Removed the old backup {old}")


def _list(source: BackupSource) -> None:
    for place in backups_in(source.backups):
        manifest = read_manifest(place)
        verified = "verified" if (place / VERIFIED).exists() else "not verified"
        say(f"{place}  {manifest.kind}  {manifest.version}  {manifest.finished_at}  {verified}")


def _take_every(source: BackupSource, options: argparse.Namespace) -> int:
    """Take backups for ever, each ``--every`` hours after the previous one.

    A cluster that does not archive its log yet, such as a restored one, needs a backup at once.
    """
    while True:
        done = backups_in(source.backups)
        due = datetime.now(UTC)
        if done and is_archiving(source.stores):
            due = read_manifest(done[-1]).finished + timedelta(hours=options.every)
        time.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
        try:
            _take(source, options)
        except RunError as error:
            say(f"gpupool: {error}")
            time.sleep(RETRY_SECONDS)


def restore_verb(arguments: list[str]) -> int:
    """Restore a backup into an empty folder."""
    parser = argparse.ArgumentParser(prog="./run restore")
    parser.add_argument("backup", type=Path, help="the folder of the backup")
    parser.add_argument("--state", type=Path, required=True, help="the empty folder for the restored state")
    parser.add_argument("--wal", type=Path, help="the archived log; default: `wal` beside the backup")
    parser.add_argument("--until", type=_aware_time, help="the time to restore, such as 2026-10-01T12:00:00Z")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    backup, target = (Path(os.path.abspath(path)) for path in (options.backup, options.state))
    if options.wal is not None and not options.wal.is_dir():
        raise RunError(f"--wal {options.wal} is not a folder; allowed: the folder of the archived log")
    exit_if_running([target])
    archive = Path(os.path.abspath(options.wal)) if options.wal is not None else backup.parent / "wal"
    ensure_environment(quiet=True)
    report = restore_backup(RestoreRequest(backup, target, archive, options.until))
    say(f"Restored {target} to {report.until} ({time.monotonic() - begin:.1f} s)")
    for note in report.notes:
        say(note)
    say(report.output.strip())
    return 0


def _aware_time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time with a time zone; allowed: such as 2026-10-01T12:00:00Z"
        )
    return at
