"""Load the Celery application in every Django process, so that all processes use the same queues."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register

from config.celery import app as queue
from config.migration_check import check_squashed_migrations

__all__ = ["ProjectAppConfig", "queue"]


class ProjectAppConfig(AppConfig):
    """The app of the configuration package. It has no models."""

    name = "config"
    label = "house"

    def ready(self) -> None:
        """Register a check that Django runs with its checks of the database (`Tags.database`)."""
        register(check_squashed_migrations, Tags.database)
