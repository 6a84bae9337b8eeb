"""Set how long samples and rollups are kept, and print the bytes that this takes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from portal.errors import Invalid
from portal.services.fleet.sample_retention import UNLIMITED, parsed_days, set_sample_retention
from telemetry.rollups.stored_bytes import RETENTION_FIELDS, present_retention, stored_levels


class Command(BaseCommand):
    help = "Set how many days samples and rollups are kept. Without arguments, print what is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--sample-days", help="days of samples that are kept")
        parser.add_argument(
            "--minute-days", help="days of minute rollups that are kept, more than --sample-days"
        )
        for level in ("hour", "day"):
            parser.add_argument(
                f"--{level}-days", help=f"days of {level} rollups that are kept, or {UNLIMITED}"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        kept, now = present_retention(), timezone.now()
        given: dict[str, Any] = {
            name: parsed_days(options[name]) for name in RETENTION_FIELDS if options[name] is not None
        }
        if given:
            try:
                kept = set_sample_retention(actor=None, now=now, via="program", **given)
            except Invalid as error:
                raise CommandError(" ".join(error.fields.values())) from None
        self.stdout.write(
            f"Samples are kept for {kept.sample_days} days, minutes for {kept.minute_days} days,"
            f" hours {_kept(kept.hour_days)}, days {_kept(kept.day_days)}."
        )
        for level in stored_levels(now):
            expected = "" if level.expected is None else f", about {level.expected / 1e9:.2f} GB when full"
            self.stdout.write(f"{level.level}: {level.stored / 1e9:.2f} GB stored{expected}")


def _kept(days: int | None) -> str:
    return "without limit" if days is None else f"for {days} days"
