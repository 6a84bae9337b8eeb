"""Verify closed months: ./run manage verify_statement [--month 2026-10]"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from telemetry.management.commands._month_argument import month_argument
from telemetry.models import Statement, StatementState
from telemetry.money.signing.statement_verification import StatementVerification, verify_statement


class Command(BaseCommand):
    help = "Recompute the digests of closed months and check their signatures. Exit with 1 for any change."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--month", type=month_argument, help="month as YYYY-MM; without it, every closed month"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object for each month")

    def handle(self, *args: Any, **options: Any) -> None:
        closed = Statement.objects.filter(state=StatementState.CLOSED).order_by("month")
        if options["month"] is not None:
            closed = closed.filter(month=options["month"])
            if not closed:
                raise CommandError(f"month: {options['month']:%Y-%m}; allowed: a closed month")
        changed = []
        for statement in closed:
            result = verify_statement(statement)
            self.stdout.write(json.dumps(asdict(result)) if options["json"] else _sentence(result))
            changed += [result.month] if result.problems else []
        if changed:
            raise CommandError(f"changed after the close: {', '.join(changed)}")


def _sentence(result: StatementVerification) -> str:
    signed = f"signed with key {result.key_fingerprint[:16]}" if result.key_fingerprint else "not signed"
    state = "; ".join(result.problems) or "unchanged"
    return f"{result.month}: {state} (format {result.digest_format}, SHA-256 {result.digest}, {signed})"
