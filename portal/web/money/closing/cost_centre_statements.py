"""Render the statements of cost centres: the list of a month, and the page of one statement."""

from __future__ import annotations

from datetime import date
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money import documents as reads
from portal.reads.money.charge_scope import charge_scope
from portal.web.money.charges.addresses import lines_url
from portal.web.money.closing.document_sheets import make_sheets
from portal.web.money.months import month_or_404
from portal.web.page.access import check_parameters, current_user, get_visible_or_404, sign_in_required
from portal.wording import money_texts
from portal.wording.pages.money import statement_texts
from telemetry.models import CostCentreStatement
from telemetry.money.billing_months import billing_calendar
from telemetry.money.signing.statement_verification import verify_statement
from telemetry.reads.statement_document import (
    IDLE_SHARE,
    DocumentRow,
    StatementDocument,
    corrected_lines,
    statement_document,
)

LIST_PARAMETERS = ("month",)


@sign_in_required
def statement_list(request: HttpRequest) -> HttpResponseBase:
    """List the statements of cost centres of the month ``?month=``; without it, of the last visible month."""
    user, now = current_user(request), timezone.now()
    check_parameters(request, LIST_PARAMETERS)
    months = reads.document_months(user)
    given = request.GET.get("month")
    month = month_or_404(given, now) if given else next(iter(months), None)
    rows = reads.visible_documents(user, month) if month else CostCentreStatement.objects.none()
    context = {
        "month": month,
        "months": months,
        "rows": rows,
        "totals": reads.totals_by_currency(rows),
        "scope": charge_scope(user),
        "may_change": policy.may(user, "billing.change"),
        "now": now,
    }
    return render(request, "manage/cost_centre_statements.html", context)


@sign_in_required
def statement_page(request: HttpRequest, number: str) -> HttpResponseBase:
    """Show one statement as on paper. A POST verifies the digest of its month."""
    user = current_user(request)
    row = get_visible_or_404(reads.visible_documents(user), "statement", number=number)
    if request.method == "POST":
        _verify(request, row)
        return redirect("cost-centre-statement", number=number)
    document = statement_document(row)
    month, calendar = row.statement.month, billing_calendar()
    context = {
        "row": row,
        "scope": charge_scope(user),
        "month": month,
        "document": document,
        "sheets": make_sheets(
            document.rows,
            len(document.corrections),
            len(document.adjustments),
            [_row_url(row, entry) for entry in document.rows],
        ),
        "parts": _parts(document),
        "corrections": _corrections(user, row, document),
        "hours": sum(entry.gpu_hours for entry in document.rows),
        "correction_hours": sum(entry.gpu_hours for entry in document.corrections),
        "facts": money_texts.document_facts(
            document, calendar.month_bounds(month), calendar.zone_name(month)
        ),
        "signatures": money_texts.signatures(row.statement),
        "may_adjust": policy.may(user, "adjustment.change"),
        "see_all": policy.may(user, "charges.see_all"),
        "lines_url": _export_url(row, "lines"),
        "pdf_url": _export_url(row, "pdf", currency=row.currency),
        "now": timezone.now(),
        **reads.neighbours(user, row),
    }
    return render(request, "manage/cost_centre_statement.html", context)


def _verify(request: HttpRequest, row: CostCentreStatement) -> None:
    """Verify the digest of the month, and show the result as a message."""
    policy.require(current_user(request), "charges.see_all")
    month, found = row.statement.month, verify_statement(row.statement)
    if found.problems:
        text = statement_texts.DIGEST_WRONG.format(month=month, problems="; ".join(found.problems))
        messages.error(request, text)
        return
    text = statement_texts.DIGEST_VALID if found.key_fingerprint else statement_texts.DIGEST_UNSIGNED
    messages.success(request, text.format(month=month))


def _export_url(row: CostCentreStatement, kind: str, **options: str) -> str:
    query = urlencode({"kind": kind, "cost_centre": row.cost_centre, **options})
    return f"{reverse('export', args=[f'{row.statement.month:%Y-%m}'])}?{query}"


def _parts(document: StatementDocument) -> list[dict[str, Any]]:
    """Return the parts of the charge with their labels and their places in a bar of 100 units."""
    whole = sum(abs(amount) for amount in document.parts.values())
    found, start = [], 0.0
    for part, amount in document.parts.items():
        width = float(abs(amount) / whole * 100)
        label = statement_texts.PART_LABELS[part]
        found.append({"part": part, "label": label, "amount": amount, "start": start, "width": width})
        start += width
    return found


def _corrections(user: User, row: CostCentreStatement, document: StatementDocument) -> list[dict[str, Any]]:
    """Return the corrections with the late facts behind them, and with the lines that they correct."""
    reasons: dict[date, str] = reads.correction_reasons(row) if document.corrections else {}
    found = corrected_lines(document)
    numbers = {corrected.number for corrected in found}
    seen = set(reads.visible_documents(user).filter(number__in=numbers).values_list("number", flat=True))
    return [
        {
            "row": entry,
            "why": reasons.get(corrected.month, ""),
            "corrects": money_texts.corrected_line_text(corrected),
            "url": reverse("cost-centre-statement", args=[corrected.number])
            if corrected.number in seen
            else "",
            "lines": _row_url(row, entry),
        }
        for entry, corrected in zip(document.corrections, found, strict=True)
    ]


def _row_url(row: CostCentreStatement, entry: DocumentRow) -> str:
    """Return the address of the charge lines behind a row; "" for a share of idle time, which has none."""
    if entry.part == IDLE_SHARE:
        return ""
    where: dict[str, Any] = {
        "cost_centre": row.cost_centre,
        "project": entry.project_id,
        "user": entry.user_id,
        "type": entry.workload_type,
        "model": entry.model,
        "bucket": entry.bucket,
        "corrected_month": entry.corrected_month,
    }
    if not entry.workloads or entry.workload_id is not None:
        where["workload"] = entry.workload_id
    return lines_url(row.statement.month, where)
