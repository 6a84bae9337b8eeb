"""Reject databases that are too old to be upgraded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.checks import CheckMessage, Error
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder


def check_squashed_migrations(databases: Iterable[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return an error for each squashed migration that the database has applied only in part.

    A squashed migration replaces older migrations. There is an error if the database lacks some of the older
    ones and their files have been deleted. Without this check, `migrate` could leave out the whole app and
    still report success.
    """
    loader = MigrationLoader(None)
    errors: list[CheckMessage] = []
    for alias in databases or ():
        applied = MigrationRecorder(connections[alias]).applied_migrations()
        for key, migration in loader.replacements.items():
            missing = [name for name in migration.replaces if name not in applied]
            deleted = [name for name in missing if name not in loader.disk_migrations]
            if deleted and len(missing) < len(migration.replaces):
                errors.append(
                    Error(
                        f"The database has applied only a part of {'.'.join(key)}: "
                        f"{'.'.join(deleted[0])} is missing.",
                        hint="Migrate it with version 0.0 first (docs/operations.md, Upgrade).",
                        id="gpupool.E001",
                    )
                )
    return errors
