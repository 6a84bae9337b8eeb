"""Read what a backup records about the database."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.apps import apps
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from scheduler.models import Host, Volume

# Tables whose rows nobody deletes. A restored database has at least as many rows as there were at the backup.
COUNTED_MODELS = ("portal.AuditEvent", "portal.User", "telemetry.Statement")


def backup_facts() -> dict[str, Any]:
    """Return the migrations, the number of rows of some tables, the size, and the index of volumes.

    The index has each home folder with its hosts, because the files of homes are not in the backup.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database()), current_setting('server_version_num')")
        size, postgres = cursor.fetchone()
    applied = MigrationRecorder.Migration.objects.order_by("app", "name").values_list("app", "name")
    return {
        "migrations": [f"{app}.{name}" for app, name in applied],
        "rows": {label: apps.get_model(label)._default_manager.count() for label in COUNTED_MODELS},
        "database_bytes": size,
        "postgres": int(postgres) // 10_000,
        "volumes": _volume_index(),
    }


def _volume_index() -> list[dict[str, Any]]:
    hosts: dict[int, list[str]] = defaultdict(list)
    for storage, name in (
        Host.objects.filter(storage__isnull=False).order_by("name").values_list("storage_id", "name")
    ):
        hosts[storage or 0].append(name)
    return [
        {
            "name": volume.name,
            "storage": volume.storage.key,
            "hosts": hosts[volume.storage_id],
            "size_bytes": volume.size_bytes,
            "changed_at": volume.changed_at.isoformat() if volume.changed_at else None,
        }
        for volume in Volume.objects.select_related("storage").order_by("storage__key", "name")
    ]
