"""Set how long samples and rollups are kept, and print the bytes that this takes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from portal.errors import Invalid
from portal.services.fleet.sample_retention import set_sample_retention
from telemetry.models import Retention
from telemetry.rollups.stored_bytes import stored_levels

WITHOUT_LIMIT = "unlimited"


class Command(BaseCommand):
    help = "Set how many days samples and rollups are kept. Without arguments, print what is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--sample-days", type=int, help="days of samples that are kept")
        parser.add_argument(
            "--minute-days", type=int, help="days of minute rollups that are kept, more than --sample-days"
        )
        for level in ("hour", "day"):
            parser.add_argument(
                f"--{level}-days", help=f"days of {level} rollups that are kept, or {WITHOUT_LIMIT}"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        kept = Retention.objects.filter(pk=1).first() or Retention()
        now = timezone.now()
        given = {name: options[name] for name in ("sample_days", "minute_days") if options[name] is not None}
        for name in ("hour_days", "day_days"):
            if options[name] is not None:
                given[name] = _days(name, options[name])
        if given:
            names = ("sample_days", "minute_days", "hour_days", "day_days")
            try:
                kept = set_sample_retention(
                    now=now, **{name: given.get(name, getattr(kept, name)) for name in names}
                )
            except Invalid as error:
                raise CommandError(" ".join(error.fields.values())) from None
        self.stdout.write(
            f"Samples are kept for {kept.sample_days} days, minutes for {kept.minute_days} days,"
            f" hours {_kept(kept.hour_days)}, days {_kept(kept.day_days)}."
        )
        for level in stored_levels(now):
            expected = "" if level.expected is None else f", about {level.expected / 1e9:.2f} GB when full"
            self.stdout.write(f"{level.level}: {level.stored / 1e9:.2f} GB stored{expected}")


def _days(name: str, text: str) -> int | None:
    if text == WITHOUT_LIMIT:
        return None
    if not text.isdecimal():
        raise CommandError(f"{name} is {text!r}; allowed: a whole number of days, or {WITHOUT_LIMIT}.")
    return int(text)


def _kept(days: int | None) -> str:
    return "without limit" if days is None else f"for {days} days"
