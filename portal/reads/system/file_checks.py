"""Check the certificates that a setting names, and the backups in the folder of backups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from django.conf import settings

from portal.reads.system.checks import HealthCheck, HealthLimit, HealthState, measured
from portal.reads.system.process_checks import seconds_since
from portal.wording import system_texts

CERTIFICATE_LIMIT = HealthLimit(30, 7, "days", falling=True)
BACKUP_LIMIT = HealthLimit(26 * 3600, 72 * 3600, "s")
VERIFIED_LIMIT = HealthLimit(8 * 86_400, 32 * 86_400, "s")
# Files in the folder of one backup, as `./run backup` writes them.
MANIFEST, VERIFIED = "manifest.json", "verified.json"
SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class LastBackup:
    """The end of the last complete backup, and of the last one that was verified by a restore."""

    finished_at: datetime | None
    verified_finished_at: datetime | None


def certificate_checks(now: datetime) -> Iterator[HealthCheck]:
    """Check the days until the end of each certificate; with several in a file, of the first to end."""
    if not settings.GPUPOOL_CERTIFICATES:
        yield measured("certificate", None, CERTIFICATE_LIMIT, text=system_texts.NOT_SET)
    for path in settings.GPUPOOL_CERTIFICATES:
        end, problem = _end_of_certificates(Path(path))
        days = None if end is None else (end - now).total_seconds() / SECONDS_PER_DAY
        text = problem
        if days is not None and days < 0:
            text = system_texts.EXPIRED.format(ago=system_texts.value_text(-days * SECONDS_PER_DAY, "s"))
        yield measured("certificate", days, CERTIFICATE_LIMIT, subject=path, text=text)


def _end_of_certificates(path: Path) -> tuple[datetime | None, str]:
    """Return the end of the certificate that ends first, or the problem."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError:
        return None, system_texts.UNREADABLE
    except ValueError:
        return None, system_texts.NO_CERTIFICATE
    return min(each.not_valid_after_utc for each in found), ""


def backup_checks(now: datetime) -> Iterator[HealthCheck]:
    """Check the age of the last backup, and of the last backup that was verified."""
    folder = settings.GPUPOOL_BACKUPS
    text, found = system_texts.NOT_SET, None
    if folder:
        found, text = last_backup(Path(folder)), system_texts.UNREADABLE
    if found is None:
        yield measured("backup", None, BACKUP_LIMIT, text=text)
        yield measured("backup_verified", None, VERIFIED_LIMIT, text=text)
        return
    for check, at, limit in (
        ("backup", found.finished_at, BACKUP_LIMIT),
        ("backup_verified", found.verified_finished_at, VERIFIED_LIMIT),
    ):
        if at is None:
            none = system_texts.NO_BACKUP
            yield HealthCheck(check, "", None, limit.unit, none, HealthState.BAD, limit.text)
        else:
            yield measured(check, seconds_since(at, now), limit)


def last_backup(folder: Path) -> LastBackup | None:
    """Return the last backups in a folder of `./run backup`; None if it or a manifest is unreadable."""
    finished: list[datetime] = []
    verified: list[datetime] = []
    try:
        for place in folder.iterdir():
            if (place / MANIFEST).is_file():
                at = datetime.fromisoformat(json.loads((place / MANIFEST).read_text())["finished_at"])
                finished.append(at)
                verified += [at] if (place / VERIFIED).is_file() else []
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return LastBackup(max(finished, default=None), max(verified, default=None))
