"""Send the charges of a month as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from portal.models import User
from portal.reads.money.charge_filters import FILTERS, checked_filters
from portal.reads.money.charge_scope import ChargeScope
from portal.reads.money.export_counts import MAX_COUNTED_LINES, ExportCounts, export_counts
from portal.reads.money.exports import EXPORT_OPTIONS, document_currencies, export_download
from portal.streamed_file import StreamedFile
from portal.web.money.filter_query import filter_query
from portal.web.money.months import month_or_404
from portal.web.page.access import address_checks, check_parameters, current_user, sign_in_required
from portal.wording.pages.money import export_texts
from telemetry.exports.focus.kinds import FOCUS_KINDS
from telemetry.exports.registry import EXPORT_KINDS
from telemetry.reads.chargeback import filter_text
from telemetry.reads.overview.line_counts import LineCounts

PARAMETERS = (*EXPORT_OPTIONS, *FILTERS)
FOCUS_KIND_NAMES = tuple(kind.name for kind in FOCUS_KINDS)


@sign_in_required
def export(request: HttpRequest, month: str) -> StreamedFile:
    """Send the export ``?kind=`` of a month, with the filters of the chargeback page."""
    user, first_day = current_user(request), month_or_404(month, timezone.now())
    check_parameters(request, PARAMETERS)
    with address_checks():
        where = checked_filters(user, first_day, request.GET)
        return send_export(user, first_day, where, request.GET)


def send_export(user: User, month: date, where: Mapping[str, Any], given: Mapping[str, str]) -> StreamedFile:
    """Return the response with the export that ``given`` asks for. Raises Invalid and NotAllowed."""
    download = export_download(user, month, where, given)
    return StreamedFile(download.name, download.content_type, download.parts)


@dataclass(frozen=True)
class ExportMenu:
    """The menu of exports: a title, and the choices with kind, label, note, icon and URL.

    ``csv_files`` are the choices whose separator and decimal sign can be chosen. They are buttons of a form
    with the address ``action`` and the hidden ``fields``. ``checksums`` are the addresses of the digests of
    files without a last line. ``provisional`` marks the files of an open month; it is empty for a closed one.
    """

    title: str
    provisional: str
    action: str
    fields: list[tuple[str, str]]
    csv_files: list[dict[str, str]]
    choices: list[dict[str, str]]
    checksums: list[dict[str, str]]
    footer: str
    selects: list[dict[str, Any]]


def export_menu(
    user: User,
    month: date,
    where: Mapping[str, Any],
    scope: ChargeScope,
    *,
    is_closed: bool,
    whole: LineCounts | None = None,
    lines: int | None = None,
) -> ExportMenu:
    """Return the exports of a month that the viewer may download, with the filters of the page.

    Kinds without filters are offered only if the page has none. If a cost centre has statements in several
    currencies, each is offered. ``whole`` are the numbers of the month's lines, and ``lines`` is the number
    of the charge lines with these filters, if the caller has them.
    """
    action = reverse("export", args=[f"{month:%Y-%m}"])
    choices = _choices(user, month, where, scope, action, export_counts(user, month, where, whole, lines))
    return ExportMenu(
        title=export_texts.menu_title(month, is_closed),
        provisional="" if is_closed else export_texts.PROVISIONAL,
        action=action,
        fields=[(name, filter_text(name, value)) for name, value in where.items()],
        csv_files=[choice for choice in choices if EXPORT_KINDS[choice["kind"]].has_dialect],
        choices=[choice for choice in choices if not EXPORT_KINDS[choice["kind"]].has_dialect],
        checksums=[
            {"label": choice["label"], "url": f"{choice['url']}&checksum=sha256"}
            for choice in choices
            if choice["kind"] in FOCUS_KIND_NAMES
        ],
        selects=[
            {"name": "separator", "label": export_texts.SEPARATOR_LABEL, "choices": export_texts.SEPARATORS},
            {"name": "decimal", "label": export_texts.DECIMAL_LABEL, "choices": export_texts.DECIMAL_SIGNS},
        ],
        footer=export_texts.CHECKED,
    )


def _choices(
    user: User,
    month: date,
    where: Mapping[str, Any],
    scope: ChargeScope,
    action: str,
    counts: ExportCounts,
) -> list[dict[str, str]]:
    """Return the files that the viewer may download, in the order of the menu."""
    lines = export_texts.rows_text(counts.charge_lines, MAX_COUNTED_LINES)
    notes = {
        "statement": export_texts.rows_text(counts.statement_lines, counts.statement_lines),
        "lines": lines,
        "xlsx": lines,
        "pdf-zip": export_texts.files_text(counts.cost_centres),
    }
    choices = []
    for name, (label, note) in export_texts.KIND_LABELS.items():
        kind = EXPORT_KINDS[name]
        needed = {"cost_centre"} if kind.one_cost_centre else set()
        if kind.whole_only and (scope.kind != "all" or set(where) != needed):
            continue
        icon = "file" if name.startswith("pdf") else "download"
        for currency in _statement_currencies(user, month, where) if kind.one_cost_centre else [""]:
            options = {"kind": name} | ({"currency": currency} if currency else {})
            choice_note = export_texts.in_currency(notes.get(name, note), currency)
            url = f"{action}?{filter_query(None, where, **options)}"
            choices.append({"kind": name, "label": label, "note": choice_note, "url": url, "icon": icon})
    return choices


def _statement_currencies(user: User, month: date, where: Mapping[str, Any]) -> list[str]:
    """Return the currency of each statement of the cost centre; an empty text if there is only one."""
    found = document_currencies(user, month, str(where["cost_centre"]))
    return found if len(found) > 1 else [""] * len(found)
