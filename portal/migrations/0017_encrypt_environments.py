"""Encrypt the environment variables of workloads, which may be secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import migrations

from scheduler.models.encrypted_fields import decrypted, encrypted

ROWS_AT_ONCE = 500


def _convert(apps: Any, change: Callable[[Any], Any]) -> None:
    rows = apps.get_model("scheduler", "Workload").objects
    last = 0
    while True:
        found = list(
            rows.filter(pk__gt=last)
            .exclude(environment={})
            .order_by("pk")
            .only("pk", "environment")[:ROWS_AT_ONCE]
        )
        if not found:
            return
        for row in found:
            row.environment = change(row.environment)
        rows.bulk_update(found, ["environment"])
        last = found[-1].pk


def encrypt(apps: Any, schema_editor: Any) -> None:
    _convert(apps, lambda stored: encrypted(decrypted(stored)))


def decrypt(apps: Any, schema_editor: Any) -> None:
    _convert(apps, decrypted)


class Migration(migrations.Migration):
    dependencies = [("portal", "0016_audit_seals"), ("scheduler", "0032_run_cpu_and_memory")]

    operations = [migrations.RunPython(encrypt, decrypt)]
