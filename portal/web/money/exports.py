"""Send the charges of a month as files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from portal.input_checks import display_value
from portal.models import User
from portal.reads.money.charge_filters import FILTERS, checked_filters
from portal.reads.money.charge_scope import ChargeScope
from portal.reads.money.exports import EXPORT_OPTIONS, export_download
from portal.streamed_file import StreamedFile
from portal.web.money.months import month_or_404
from portal.web.page.access import InvalidAddress, address_checks, current_user, sign_in_required
from portal.wording.pages import export_texts, money_pages
from telemetry.exports.registry import EXPORT_KINDS

PARAMETERS = (*EXPORT_OPTIONS, *FILTERS)


@sign_in_required
def export(request: HttpRequest, month: str) -> StreamedFile:
    """Send the export ``?kind=`` of a month, with the filters of the chargeback page."""
    user, first_day = current_user(request), month_or_404(month, timezone.now())
    unknown = [name for name in request.GET if name not in PARAMETERS]
    if unknown:
        given, allowed = display_value(unknown[0]), ", ".join(PARAMETERS)
        raise InvalidAddress(money_pages.PARAMETER_UNKNOWN.format(given=given, allowed=allowed))
    with address_checks():
        where = checked_filters(user, first_day, request.GET)
        return send_export(user, first_day, where, request.GET)


def send_export(user: User, month: date, where: Mapping[str, Any], given: Mapping[str, str]) -> StreamedFile:
    """Return the response with the export that ``given`` asks for. Raises Invalid and NotAllowed."""
    download = export_download(user, month, where, given)
    return StreamedFile(download.name, download.content_type, download.parts)


def export_choices(request: HttpRequest, month: str, scope: ChargeScope) -> list[dict[str, Any]]:
    """Return the exports of a month that the viewer may download, for the menu: label, note and URL.

    Each has the filters of the page. Kinds without filters are offered only if the page has none.
    """
    filters = {name: request.GET[name] for name in FILTERS if name in request.GET}
    choices = []
    for name, (label, note) in export_texts.KIND_LABELS.items():
        kind = EXPORT_KINDS[name]
        needed = {"cost_centre"} if kind.one_cost_centre else set()
        if kind.whole_only and (scope.kind != "all" or set(filters) != needed):
            continue
        query = request.GET.copy()
        query.clear()
        query.update({"kind": name, **filters})
        url = f"{reverse('export', args=[month])}?{query.urlencode()}"
        choices.append({"label": label, "note": note, "url": url})
    return choices
