"""Send the figures above the table of the chargeback page as CSV."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils import timezone

from portal import policy
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.exports import DIALECT_OPTIONS
from portal.reads.money.overview.of_viewer import overview_of_viewer
from portal.reads.money.overview.page import ChargebackOverview
from portal.streamed_file import StreamedFile
from portal.web.money.charges.addresses import requested_dialect
from portal.web.money.months import month_or_404
from portal.web.money.overview import bridge_rows, spend_chart
from portal.web.page.access import check_parameters, current_user, sign_in_required
from portal.web.page.csv_export import complete_csv_response
from telemetry.core.csv_text import CsvDialect


@sign_in_required
def days_csv(request: HttpRequest, month: str) -> StreamedFile:
    """Send the charges of each day of a month, with the month before, the budget and the forecast."""
    overview, scope, dialect = _overview(request, month)
    rows = spend_chart.spend_csv_rows(overview, scope)
    name = f"charges-{overview.month:%Y-%m}-by-day.csv"
    return complete_csv_response(name, spend_chart.CSV_COLUMNS, rows, dialect)


@sign_in_required
def changes_csv(request: HttpRequest, month: str) -> StreamedFile:
    """Send the steps from the month before to this one. Without a comparison, the file has no rows."""
    overview, scope, dialect = _overview(request, month)
    rows = bridge_rows.bridge_csv_rows(overview, scope)
    return complete_csv_response(
        f"changes-{overview.month:%Y-%m}.csv", bridge_rows.CSV_COLUMNS, rows, dialect
    )


def _overview(request: HttpRequest, text: str) -> tuple[ChargebackOverview, str, CsvDialect]:
    """Return the figures that the viewer sees, the kind of scope, and the dialect that the address asks for.

    Raises NotAllowed without charges, and InvalidAddress for an unknown parameter or value.
    """
    check_parameters(request, DIALECT_OPTIONS)
    user, now = current_user(request), timezone.now()
    month, scope = month_or_404(text, now), charge_scope(user)
    if scope.kind == "none":
        policy.require(user, "charges.see_all")
    return overview_of_viewer(user, month, now, scope), scope.kind, requested_dialect(request)
