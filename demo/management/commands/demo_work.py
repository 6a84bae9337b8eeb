"""Wait for the demo's hosts, then submit the initial work (``manage.py demo_work``)."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from demo import initial_work


class Command(BaseCommand):
    help = (
        "Submit the demo's first jobs and reservations, once, as soon as its hosts have reported their GPUs."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--wait", type=float, default=60.0, help="seconds to wait for the hosts")

    def handle(self, *args: Any, **options: Any) -> None:
        deadline = time.monotonic() + options["wait"]
        while not initial_work.all_hosts_reported():
            if time.monotonic() > deadline:
                raise CommandError(
                    f"the demo's hosts did not report their GPUs within {options['wait']:.0f} s"
                )
            time.sleep(0.3)
        count = initial_work.submit_initial_work(now=timezone.now())
        self.stdout.write(f"{count} submitted")
