"""Compute rollups again: ./run manage telemetry_rebuild --from 2026-03-01 --to 2026-03-02"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from telemetry.rollups.rebuild import RebuildResult, check_period, parse_time, rebuild_rollups


class Command(BaseCommand):
    help = "Compute the rollups of a past period again from its samples, and count those that change."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--from", required=True, help="first hour: a date or a time, in UTC if it has no zone"
        )
        parser.add_argument("--to", required=True, help="end of the last hour, at most the last full hour")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        try:
            start, end = parse_time("from", options["from"]), parse_time("to", options["to"])
            check_period(start, end, now)
        except ValueError as error:
            raise CommandError(str(error)) from None
        total = RebuildResult()
        for day, done in rebuild_rollups(start, end, now):
            total.add(done)
            self.stdout.write(f"{day:%Y-%m-%d}: {done.rollups} rollups, {done.differences} differences")
        self.stdout.write(f"rebuilt: {total.rollups} rollups, {total.differences} differences")
