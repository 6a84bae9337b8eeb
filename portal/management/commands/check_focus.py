"""Check the FOCUS files of a month: ./run manage check_focus --month 2026-10"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.models import Organisation
from telemetry.exports.export_model import ExportOptions, ExportScope
from telemetry.exports.focus.check import check_focus_month
from telemetry.exports.focus.columns import FOCUS_VERSIONS
from telemetry.management.commands._month_argument import month_argument
from telemetry.models import Charge
from telemetry.money.pricing.billing_currencies import currency_of_month


class Command(BaseCommand):
    help = "Check the FOCUS files of a month against the specification. Exit with 1 for a broken rule."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--month", type=month_argument, required=True, help="month as YYYY-MM")
        parser.add_argument("--focus-version", choices=FOCUS_VERSIONS, default="1.4", help="version of FOCUS")

    def handle(self, *args: Any, **options: Any) -> None:
        organisation = Organisation.objects.first() or Organisation()
        report = check_focus_month(
            options["month"],
            ExportScope("all", Charge.objects.all(), with_cost=True),
            ExportOptions(currency=currency_of_month(options["month"]), issuer=organisation.name),
            options["focus_version"],
        )
        for failure in report.failures:
            self.stdout.write(str(failure))
        if report.failures:
            raise CommandError(f"{options['month']:%Y-%m}: {len(report.failures)} broken rules")
        for dataset, rows in report.rows.items():
            self.stdout.write(f"{dataset.value}: {rows} rows obey every rule of FOCUS {report.version}")
