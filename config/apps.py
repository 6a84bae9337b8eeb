"""Makes the queue known to every process that sets Django up: web, edge, commands and workers send to the same one."""

from __future__ import annotations

from django.apps import AppConfig

from config.celery import app as queue

__all__ = ["ProjectAppConfig", "queue"]


class ProjectAppConfig(AppConfig):
    """No models; being loaded is its whole purpose."""

    name = "config"
    label = "house"
