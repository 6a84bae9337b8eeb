"""Load the demo's simulated past while the site runs (``manage.py demo_history``).

The pages show the progress.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from demo import past_rows, simulated_past
from demo.simulated_usage import defer_charges, load_simulated_usage
from portal.models import Organisation
from scheduler.models import Workload


class Command(BaseCommand):
    help = "Simulate the demo's past with the real engine, then its usage and charges. It can be interrupted."

    def handle(self, *args: Any, **options: Any) -> None:
        organisation = Organisation.objects.get()
        end = organisation.simulated_history_until
        if end is None:
            self.stdout.write("This organisation has no simulated history.")
            return
        _save_progress(0, 100, "simulating the past with the engine")
        defer_charges(end)
        past = simulated_past.simulate_past(end)
        if not Workload.objects.filter(simulated=True).exists():
            _save_progress(5, 100, "writing the past's workloads")
            past_rows.write_past(past)
        load_simulated_usage(
            past_rows.utilisation_by_workload(past),
            start=past.start,
            end=end,
            now=timezone.now(),
            progress=_save_progress,
        )
        Organisation.objects.update(history_progress=None)
        self.stdout.write("history is complete")


def _save_progress(done: int, total: int, words: str) -> None:
    """Store the progress in the database, so that the pages can show it."""
    Organisation.objects.update(history_progress={"done": done, "total": total, "words": words})
