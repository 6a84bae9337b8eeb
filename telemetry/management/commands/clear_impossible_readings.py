"""Clear impossible values of stored samples and rollups: ./run manage clear_impossible_readings"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from telemetry.rollups.stored_readings import clear_impossible_values


class Command(BaseCommand):
    help = "Set impossible values of stored samples and rollups to NULL, day by day. Can be repeated."

    def handle(self, *args: Any, **options: Any) -> None:
        samples = rollups = 0
        for day, done in clear_impossible_values(timezone.now()):
            samples, rollups = samples + done.samples, rollups + done.rollups
            if done.samples or done.rollups:
                self.stdout.write(f"{day:%Y-%m-%d}: {done.samples} samples, {done.rollups} rollups")
        self.stdout.write(f"cleared: {samples} samples, {rollups} rollups")
