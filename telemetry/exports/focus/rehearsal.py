"""Check the FOCUS files of a month when its close is rehearsed, and store the result."""

from __future__ import annotations

from telemetry.exports.export_model import ExportOptions, ExportScope
from telemetry.exports.focus.check import check_focus_month
from telemetry.exports.focus.focus_month import UNNAMED_ISSUER
from telemetry.models import Charge, MonthRehearsal
from telemetry.money.pricing.billing_currencies import currency_of_month


def check_rehearsed_files(rehearsal: MonthRehearsal) -> MonthRehearsal:
    """Check the FOCUS 1.4 files of a rehearsed month with all charges, and store the result in ``focus``.

    ``focus`` has the number of ``rows`` and the ``broken`` rules as sentences. A broken rule does not keep
    the month open: it is a fault of the files, and other checks prove the ledger.
    """
    month = rehearsal.statement.month
    # No rule depends on the name of the issuer.
    options = ExportOptions(currency=currency_of_month(month), issuer=UNNAMED_ISSUER)
    report = check_focus_month(month, ExportScope("all", Charge.objects.all(), with_cost=True), options)
    rehearsal.focus = {
        "rows": sum(report.rows.values()),
        "broken": [str(failure) for failure in report.failures],
    }
    rehearsal.save(update_fields=["focus"])
    return rehearsal
