"""Render the page of one charge line: how its amount is computed, and the facts behind it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.reads.money.charge_line import ChargeLineDetail, charge_line
from portal.reads.money.charge_scope import charge_scope
from portal.web.components.quantities import gpu_model, grouped, short_duration
from portal.web.page.access import current_user, sign_in_required
from portal.wording import money_texts
from portal.wording.chargeback import charge_line_texts
from portal.wording.pages import home_pages
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Workload
from telemetry.cost_centres.names import cost_centre_labels
from telemetry.models import Charge


@sign_in_required
def charge_line_page(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Show one charge line. A line that the viewer may not see is not found."""
    user = current_user(request)
    detail = charge_line(user, pk)
    if detail is None:
        raise Http404(home_pages.OBJECT_NOT_FOUND.format(what="charge line"))
    line = detail.line
    context = {
        "detail": detail,
        "line": line,
        "scope": charge_scope(user),
        "currency": detail.currency,
        "may_adjust": detail.is_charged and policy.may(user, "adjustment.change"),
        "bucket": charge_line_texts.bucket_label(line),
        "gpus": Decimal(line.slots) / SLOTS_PER_GPU,
        "share": charge_line_texts.share_text(line.share_percent),
        "formula": charge_line_texts.formula(line, detail.seconds, detail.amount),
        "sentences": charge_line_texts.amount_sentences(detail.is_charged, line.bucket, detail.rounding),
        "facts": _facts(detail),
        "related": [
            {
                "line": other,
                "relation": charge_line_texts.relation(other.corrects_id, reversal=other.reversal),
            }
            for other in detail.related
        ],
        "list_url": f"{reverse('chargeback')}?month={line.month:%Y-%m}",
        "now": timezone.now(),
    }
    return render(request, "manage/charge_line.html", context)


def _facts(detail: ChargeLineDetail) -> list[dict[str, Any]]:
    """Return the labels and values of the line. A value has a link if the viewer may open its page."""
    line = detail.line
    run = f"{line.workload_name}, {charge_line_texts.attempt(detail.attempt)}" if detail.attempt else ""
    reservation = (
        detail.reservation.name if detail.reservation else charge_line_texts.reserved(line.reservation_id)
    )
    facts: list[tuple[str, Any, str]] = [
        ("Cost centre", _cost_centre_text(line), ""),
        ("Team", line.team_name, ""),
        ("Project", line.project_name, ""),
        ("Person", line.user_name, ""),
        ("Workload", run, _workload_url(detail.workload)),
        ("Allocation", line.allocation_id, _attempt_url(detail)),
        ("Reservation", reservation, _reservation_url(detail)),
        ("Pool", line.pool.name, ""),
        ("GPU", _gpu_text(detail), reverse("host", args=[detail.host.name]) if detail.host else ""),
        ("Price", charge_line_texts.price_in_force(line.price), _rate_url("price", line.price_id)),
        *(
            (money_texts.factor_label(row), f"{row.factor:f}", _rate_url("factor", row.pk))
            for row in detail.factors
        ),
        ("Time", f"{grouped(detail.seconds)} s, {short_duration(detail.seconds)}", ""),
        ("Use", charge_line_texts.use_text(detail.usage), "#usage"),
    ]
    if detail.sees_cost:
        facts.append(("Owner's cost", f"{line.cost:f}", ""))
    return [{"label": label, "value": value, "url": url} for label, value, url in facts if value]


def _cost_centre_text(line: Charge) -> str:
    label = cost_centre_labels([line.cost_centre]).get(line.cost_centre, "")
    return charge_line_texts.cost_centre_text(label, line.share_percent)


def _gpu_text(detail: ChargeLineDetail) -> str:
    model = gpu_model(detail.line.model)
    return f"{model}, {detail.host.name} GPU {detail.line.gpu.index}" if detail.host else model


def _workload_url(workload: Workload | None) -> str:
    if workload is None:
        return ""
    return reverse("notebook" if workload.kind == "notebook" else "job", args=[workload.public_id])


def _attempt_url(detail: ChargeLineDetail) -> str:
    """Return the address of the attempt of the allocation on the page of its workload."""
    url = _workload_url(detail.workload)
    return f"{url}?tab=attempts#attempt-{detail.attempt}" if url and detail.attempt else ""


def _rate_url(kind: str, pk: int | None) -> str:
    """Return the address of a price or a factor on the rate card."""
    return reverse("rate-card") + (f"#{kind}-{pk}" if pk else "")


def _reservation_url(detail: ChargeLineDetail) -> str:
    return reverse("reservation", args=[detail.reservation.public_id]) if detail.reservation else ""
