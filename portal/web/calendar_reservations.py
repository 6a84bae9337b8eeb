"""One reservation: what it promises, what runs in it; cancelling and shortening it."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from portal import policy, wording
from portal.models import User
from portal.selectors import work
from portal.services import reservations as verbs
from portal.templatetags.gpupool import duration
from portal.web import home_cards, jobs, live
from portal.web.access import carry_out, found, signed_in, viewer
from portal.web.context import currency_of
from portal.web.verb_form import VerbForm
from scheduler.models import Reservation
from scheduler.states import ReservationState

OPEN = (ReservationState.CONFIRMED, ReservationState.ACTIVE)


class ShortenForm(VerbForm):
    end = forms.DateTimeField(
        label="New end",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"],
        error_messages={"invalid": "This is not a date and time; allowed: such as 2026-03-02 17:00."},
    )


@signed_in
def reservation(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """The reservation's page; a POST shortens it."""
    user, now = viewer(request), timezone.now()
    row = _found(user, public_id)
    form = ShortenForm(request.POST or None, initial={"end": timezone.localtime(row.end)})
    if request.method == "POST" and form.is_valid():
        done = form.carry_out(
            verbs.shorten_reservation, actor=user, reservation=row, end=form.cleaned_data["end"], now=now
        )
        if done is not None:
            return redirect("reservation", public_id=public_id)
    context = _context(request, row, user, now) | {"form": form}
    if form.errors:
        return render(request, "work/reservation_shorten.html", {**context, "now": now}, status=400)
    return live.page(
        request, "work/reservation.html", "work/reservation_part.html", context, topics=["calendar", "queue"], now=now
    )


@signed_in
@require_POST
def cancel(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Give it up; without JavaScript the question is a page of its own."""
    user = viewer(request)
    row = _found(user, public_id)
    address = reverse("reservation", args=[public_id])
    if not request.POST.get("confirmed"):
        context = {"title": f"Cancel {row.name}?", "text": _loss(row), "label": "Cancel it", "back": address}
        return render(request, "work/question.html", context)
    return carry_out(
        request,
        lambda: verbs.cancel_reservation(actor=user, reservation=row, now=timezone.now()),
        done=f"{row.name} was given up. Its GPUs are free for others.",
        to=address,
    )


def _found(user: User, public_id: uuid.UUID) -> Reservation:
    rows = policy.visible_reservations(user).select_related("project__team", "pool", "owner")
    return found(rows, "reservation", public_id=public_id)


def _loss(row: Reservation) -> str:
    if row.state == ReservationState.ACTIVE:
        return "What runs inside it is told to go. The time until now stays charged."
    return "The window is given up at once; somebody else may take it."


def _context(request: HttpRequest, row: Reservation, user: User, now: datetime) -> dict[str, Any]:
    inside = row.workloads.select_related(*work.RELATED).order_by("-submitted_at", "-pk")[:50]
    bound = row.bound_units.select_related("unit__gpu__host").order_by("unit__gpu__host__name", "unit__gpu__index")
    may_change = row.state in OPEN and policy.may(user, "reservation.change", row)
    return {
        "reservation": row,
        "asked": home_cards.asked(row),
        "reason": wording.reason(row.reason_code, row.reason_numbers, user) if row.reason_code else "",
        "facts": _facts(row),
        "rows": jobs.rows_of(work.pieces(inside, now), user, currency_of(request), now),
        "units": [
            {"host": b.unit.gpu.host.name, "gpu": b.unit.gpu.index, "uuid": b.unit.uuid}
            for b in bound
            if b.period.upper is None or b.period.upper > now
        ],
        "may_change": may_change,
        "loss": _loss(row),
        "is_open": row.state in OPEN,
        "cancel_url": reverse("reservation-cancel", args=[row.public_id]),
        "launch_url": f"{reverse('ask')}?kind=job",
    }


def _facts(row: Reservation) -> list[dict[str, str]]:
    start, end = timezone.localtime(row.start), timezone.localtime(row.end)
    facts = [
        ("From", f"{start:%a} {start.day} {start:%b %Y %H:%M}"),
        ("To", f"{end:%a} {end.day} {end:%b %Y %H:%M}"),
        ("For", duration(row.end - row.start)),
        ("GPUs", home_cards.asked(row)),
        ("Pool", row.pool.name),
        ("Project", row.project.name),
        ("Team", row.project.team.name),
        ("Owner", row.owner.get_full_name() or row.owner.get_username()),
        ("If nothing runs in it", f"released after {duration(row.pool.no_show_seconds)}"),
    ]
    if row.may_exceed_guarantee:
        facts.append(("Guarantees", "may use what other teams are guaranteed, as approved"))
    return [{"label": label, "value": value} for label, value in facts]
