"""Audit a month of the ledger: ./run manage audit_ledger --month 2026-10"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from telemetry.audit.ledger_audit import audit_month
from telemetry.management.commands._month_argument import month_argument


class Command(BaseCommand):
    help = "Recompute a month of the ledger and list each difference. Exit with 1 if there is a difference."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--month", type=month_argument, required=True, help="month as YYYY-MM")
        parser.add_argument("--json", action="store_true", help="one JSON object for each difference")

    def handle(self, *args: Any, **options: Any) -> None:
        month, count = options["month"], 0
        for difference in audit_month(month, timezone.now()):
            count += 1
            self.stdout.write(json.dumps(difference.as_json()) if options["json"] else str(difference))
        if count:
            raise CommandError(f"{month:%Y-%m}: {count} difference{'' if count == 1 else 's'}")
        if not options["json"]:
            self.stdout.write(f"{month:%Y-%m}: every line agrees with the facts")
