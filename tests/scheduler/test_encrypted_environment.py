"""Test that the environment of a workload is encrypted in the database, and that its key can be replaced."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from scheduler.models import Workload
from scheduler.models.encrypted_fields import DecryptionError
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SECRET = {"TOKEN": "hunter2 hunter2"}
OLD, NEW = "an old key of the installation 0001", "a new key of the installation 00002"


def stored(workload: Workload) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT environment::text FROM scheduler_workload WHERE id = %s", [workload.pk])
        return str(cursor.fetchone()[0])


def secret_job(world: World) -> Workload:
    made = job(world, world.vision, 1, world.now)
    made.environment = SECRET
    made.save(update_fields=["environment"])
    return made


def test_the_database_has_no_plain_value_and_the_program_reads_it(world: World) -> None:
    made = secret_job(world)
    assert "hunter2" not in stored(made) and "TOKEN" not in stored(made)
    assert Workload.objects.get(pk=made.pk).environment == SECRET
    assert Workload.objects.filter(pk=made.pk).values_list("environment", flat=True).get() == SECRET
    plain = job(world, world.vision, 1, world.now)
    assert stored(plain) == "{}"


def test_a_key_is_replaced_without_a_loss(world: World, settings: Any) -> None:
    settings.GPUPOOL_ENCRYPTION_KEYS = (OLD,)
    made = secret_job(world)
    settings.GPUPOOL_ENCRYPTION_KEYS = (NEW, OLD)
    assert Workload.objects.get(pk=made.pk).environment == SECRET
    call_command("rotate_encryption")
    settings.GPUPOOL_ENCRYPTION_KEYS = (NEW,)
    assert Workload.objects.get(pk=made.pk).environment == SECRET
    settings.GPUPOOL_ENCRYPTION_KEYS = (OLD,)
    with pytest.raises(DecryptionError, match="GPUPOOL_ENCRYPTION_KEYS"):
        Workload.objects.get(pk=made.pk)
    with pytest.raises(CommandError, match="GPUPOOL_ENCRYPTION_KEYS"):
        call_command("rotate_encryption")


def test_values_under_the_secret_key_stay_readable_after_a_key_is_set(world: World, settings: Any) -> None:
    settings.GPUPOOL_ENCRYPTION_KEYS = ()
    made = secret_job(world)
    settings.GPUPOOL_ENCRYPTION_KEYS = (NEW,)
    assert Workload.objects.get(pk=made.pk).environment == SECRET


def test_the_migration_encrypts_values_of_earlier_versions_and_can_be_undone(world: World) -> None:
    made = job(world, world.vision, 1, world.now)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE scheduler_workload SET environment = %s WHERE id = %s", [json.dumps(SECRET), made.pk]
        )
    assert Workload.objects.get(pk=made.pk).environment == SECRET, (
        "plain values are read before the migration"
    )
    migration = import_module("portal.migrations.0017_encrypt_environments")
    state = MigrationLoader(connection).project_state([("portal", "0017_encrypt_environments")])
    for _ in range(2):
        migration.encrypt(state.apps, None)
        assert "hunter2" not in stored(made)
        assert Workload.objects.get(pk=made.pk).environment == SECRET
    migration.decrypt(state.apps, None)
    assert json.loads(stored(made)) == SECRET
