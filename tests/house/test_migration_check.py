"""Test that ``migrate`` rejects databases that are older than the squashed migrations."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from config.migration_check import check_squashed_migrations

pytestmark = pytest.mark.django_db


def test_a_database_with_all_replaced_migrations_passes() -> None:
    assert check_squashed_migrations(databases=[connection.alias]) == []
    MigrationRecorder(connection).migration_qs.filter(name__startswith="0001_squashed").delete()
    assert check_squashed_migrations(databases=[connection.alias]) == []


def test_an_empty_database_passes() -> None:
    MigrationRecorder(connection).migration_qs.all().delete()
    assert check_squashed_migrations(databases=[connection.alias]) == []


def test_migrate_rejects_a_database_with_only_a_part_of_the_replaced_migrations() -> None:
    MigrationRecorder(connection).record_unapplied("telemetry", "0010_strays_that_were_ended")
    with pytest.raises(SystemCheckError, match=r"telemetry\.0010_strays_that_were_ended is missing"):
        call_command("migrate", verbosity=0, skip_checks=False)
