"""``manage.py demo_history``: load the demo's simulated past behind the running site; pages show how far it is."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from portal.demo import history
from portal.models import Organisation
from scheduler.models import Workload
from telemetry.history import hold_charges, load_history


class Command(BaseCommand):
    help = "Simulate the demo's past with the real engine, then its use and charges. May be stopped and run again."

    def handle(self, *args: Any, **options: Any) -> None:
        organisation = Organisation.objects.get()
        end = organisation.simulated_history_until
        if end is None:
            self.stdout.write("This organisation has no simulated history.")
            return
        _tell(0, 100, "simulating the past with the engine")
        hold_charges(end)
        past = history.simulate(end)
        if not Workload.objects.filter(simulated=True).exists():
            _tell(5, 100, "writing the past's workloads")
            history.write(past)
        load_history(history.utilisation(past), start=past.start, end=end, now=timezone.now(), progress=_tell)
        Organisation.objects.update(history_progress=None)
        self.stdout.write("history is complete")


def _tell(done: int, total: int, words: str) -> None:
    """Where pages read the progress from."""
    Organisation.objects.update(history_progress={"done": done, "total": total, "words": words})
