"""Define the Django app of the demo organisation. It has management commands and no models."""

from __future__ import annotations

from django.apps import AppConfig


class DemoConfig(AppConfig):
    """The app with the commands demo_organisation, demo_work and demo_history."""

    name = "demo"
