"""Loads the Celery application in every process that sets up Django, so that all use the same queues."""

from __future__ import annotations

from django.apps import AppConfig

from config.celery import app as queue

__all__ = ["ProjectAppConfig", "queue"]


class ProjectAppConfig(AppConfig):
    """The app of the configuration package. It has no models."""

    name = "config"
    label = "house"
