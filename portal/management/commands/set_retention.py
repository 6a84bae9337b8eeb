"""Set how long samples and minute rollups are kept."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from portal.errors import Invalid
from portal.services.fleet.sample_retention import set_sample_retention


class Command(BaseCommand):
    help = "Set how many days samples and minute rollups are kept. Hours and days are kept without limit."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--sample-days", type=int, required=True, help="days of samples that are kept")
        parser.add_argument(
            "--minute-days",
            type=int,
            required=True,
            help="days of minute rollups that are kept, more than --sample-days",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            done = set_sample_retention(
                sample_days=options["sample_days"], minute_days=options["minute_days"], now=timezone.now()
            )
        except Invalid as error:
            raise CommandError(" ".join(error.fields.values())) from None
        self.stdout.write(
            f"Samples are kept for {done.sample_days} days, minutes for {done.minute_days} days."
        )
