"""The demo organisation as a Django app: management commands only, no models."""

from __future__ import annotations

from django.apps import AppConfig


class DemoConfig(AppConfig):
    """Registers the commands demo_organisation, demo_work and demo_history."""

    name = "demo"
