"""Render the page of a reservation: its facts, its workloads, and forms that change or cancel it."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from portal import policy
from portal.models import Submission, SubmissionState, User
from portal.reads.work import workload_details
from portal.services.calendar import recurring_reservations as series_verbs
from portal.services.calendar import reservations as verbs
from portal.web.components.quantities import short_duration
from portal.web.page import live_refresh
from portal.web.page.access import current_user, get_visible_or_404, run_and_redirect, sign_in_required
from portal.web.page.organisation import current_currency
from portal.web.page.service_form import ServiceForm
from portal.web.work import workload_rows
from portal.wording import formatting, reason_texts, request_texts
from portal.wording.pages import calendar_pages
from portal.wording.request_texts import requested_units_text
from scheduler.models import Reservation
from scheduler.state.states import OPEN_RESERVATION_STATES, ReservationState

MAX_OCCURRENCES_SHOWN = 10
SERIES_CANCEL_WARNING = calendar_pages.SERIES_CANCEL_EFFECT


def _datetime_field(label: str) -> forms.DateTimeField:
    return forms.DateTimeField(
        label=label,
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"],
        error_messages={"invalid": calendar_pages.NOT_A_TIME},
    )


class ReservationChangeForm(ServiceForm):
    """A form that changes the end of a reservation.

    Until the reservation begins, the form also changes the start.
    """

    start = _datetime_field("Start")
    end = _datetime_field("End")
    why = forms.CharField(label="Why", required=False, max_length=1000, help_text="For the approver.")

    def __init__(self, *args: Any, row: Reservation, **kwargs: Any) -> None:
        kwargs["initial"] = {"start": timezone.localtime(row.start), "end": timezone.localtime(row.end)}
        super().__init__(*args, **kwargs)
        if row.state != ReservationState.CONFIRMED:
            del self.fields["start"]
        self.row = row

    def changed_window(self) -> dict[str, datetime]:
        """Return the times that differ from the present window.

        The comparison ignores seconds, because the fields show only hours and minutes.
        """
        shown = {"start": self.row.start, "end": self.row.end}
        given = {name: self.cleaned_data.get(name) for name in shown}
        return {
            name: at
            for name, at in given.items()
            if at is not None and at != shown[name].replace(second=0, microsecond=0)
        }


@sign_in_required
def reservation(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Show the reservation. A POST changes the window, or requests the change if it needs an approval."""
    user, now = current_user(request), timezone.now()
    row = _get_reservation_or_404(user, public_id)
    form = ReservationChangeForm(request.POST or None, row=row)
    if request.method == "POST" and form.is_valid():
        changed = form.changed_window()
        done = form.carry_out(
            verbs.change_reservation,
            actor=user,
            reservation=row,
            why=form.cleaned_data["why"],
            now=now,
            start=changed.get("start"),
            end=changed.get("end") or (row.end if "start" in changed else None),
        )
        if isinstance(done, Submission):
            messages.info(request, calendar_pages.CHANGE_WAITS.format(name=row.name))
        elif done is not None:
            messages.success(
                request,
                calendar_pages.CHANGE_MADE.format(
                    name=row.name, window=formatting.window(done.start, done.end)
                ),
            )
        if done is not None:
            return redirect("reservation", public_id=public_id)
    context = _reservation_context(request, row, user, now) | {"form": form}
    if form.errors:
        return render(request, "work/reservation_change.html", {**context, "now": now}, status=400)
    return live_refresh.render_live_page(
        request,
        "work/reservation.html",
        "work/reservation_part.html",
        context,
        topics=["calendar", "queue"],
        now=now,
    )


@sign_in_required
@require_POST
def cancel_reservation(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Cancel the reservation. Without JavaScript, show a confirmation page first."""
    user = current_user(request)
    row = _get_reservation_or_404(user, public_id)
    address = reverse("reservation", args=[public_id])
    if not request.POST.get("confirmed"):
        context = {
            "title": f"Cancel {row.name}?",
            "text": _cancel_warning(row),
            "label": "Cancel it",
            "back": address,
        }
        return render(request, "work/question.html", context)
    return run_and_redirect(
        request,
        lambda: verbs.cancel_reservation(actor=user, reservation=row, now=timezone.now()),
        done=calendar_pages.RESERVATION_CANCELLED.format(name=row.name),
        to=address,
    )


@sign_in_required
@require_POST
def cancel_series(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Cancel all occurrences of a recurring reservation that are not over.

    Without JavaScript, show a confirmation page first.
    """
    user = current_user(request)
    row = get_visible_or_404(
        policy.visible_series(user).select_related("project__team"),
        "recurring reservation",
        public_id=public_id,
    )
    last = row.occurrences.order_by("-start").first()
    address = reverse("reservation", args=[last.public_id]) if last else reverse("calendar")
    if not request.POST.get("confirmed"):
        context = {
            "title": calendar_pages.CANCEL_SERIES_TITLE.format(name=row.name),
            "text": SERIES_CANCEL_WARNING,
            "label": "Cancel all",
            "back": address,
        }
        return render(request, "work/question.html", context)
    return run_and_redirect(
        request,
        lambda: series_verbs.cancel_series(actor=user, series=row, now=timezone.now()),
        done=calendar_pages.SERIES_CANCELLED.format(name=row.name),
        to=address,
    )


def _get_reservation_or_404(user: User, public_id: uuid.UUID) -> Reservation:
    rows = policy.visible_reservations(user).select_related("project__team", "pool", "owner", "series")
    return get_visible_or_404(rows, "reservation", public_id=public_id)


def _cancel_warning(row: Reservation) -> str:
    if row.state == ReservationState.ACTIVE:
        return calendar_pages.CANCEL_ACTIVE_EFFECT
    return calendar_pages.CANCEL_CONFIRMED_EFFECT


def _reservation_context(request: HttpRequest, row: Reservation, user: User, now: datetime) -> dict[str, Any]:
    inside = row.workloads.select_related(*workload_details.RELATED).order_by("-submitted_at", "-pk")[:50]
    bound = row.bound_units.select_related("unit__gpu__host").order_by(
        "unit__gpu__host__name", "unit__gpu__index"
    )
    may_change = row.state in OPEN_RESERVATION_STATES and policy.may(user, "reservation.change", row)
    drawn = workload_rows.list_rows(
        workload_details.workload_details(inside, user, now), user, current_currency(request), now
    )
    return {
        "reservation": row,
        "asked": requested_units_text(row),
        "reason": reason_texts.reservation_problem(row, user),
        "reason_since": row.reason_at if row.reason_code else row.at_risk_since,
        "facts": _reservation_facts(row),
        "rows": drawn,
        "notes": workload_rows.list_notes(drawn),
        "units": [
            {"host": b.unit.gpu.host.name, "gpu": b.unit.gpu.index, "uuid": b.unit.uuid}
            for b in bound
            if b.period.upper is None or b.period.upper > now
        ],
        "may_change": may_change,
        "series": _series_context(row, now) if row.series else None,
        "waiting_change": _waiting_change(row) if may_change else None,
        "loss": _cancel_warning(row),
        "is_open": row.state in OPEN_RESERVATION_STATES,
        "cancel_url": reverse("reservation-cancel", args=[row.public_id]),
        "launch_url": f"{reverse('ask')}?kind=job",
    }


def _series_context(row: Reservation, now: datetime) -> dict[str, Any]:
    """Return a summary of the recurring reservation to which ``row`` belongs; {} if it does not recur.

    The summary includes the other occurrences that are not over.
    """
    whole = row.series
    if whole is None:
        return {}
    left = list(
        whole.occurrences.filter(state__in=OPEN_RESERVATION_STATES, end__gt=now).order_by("start", "pk")
    )
    days = formatting.weekdays([series_verbs.WEEKDAYS[day] for day in whole.weekdays])
    return {
        "words": f"{days.capitalize()} {whole.starts_at:%H:%M} to {whole.ends_at:%H:%M} ({whole.time_zone}) "
        f"until {whole.last_day}",
        "left": len(left),
        "clock_changes": series_verbs.clock_changes_of(whole),
        "occurrences": [r for r in left if r.pk != row.pk][:MAX_OCCURRENCES_SHOWN],
        "cancel_url": reverse("series-cancel", args=[whole.public_id]),
        "loss": SERIES_CANCEL_WARNING,
    }


def _waiting_change(row: Reservation) -> Submission | None:
    """Return the submitted change of the window that waits for approval; None if there is none."""
    waiting = row.submissions.filter(kind=Submission.Kind.WINDOW_CHANGE, state=SubmissionState.WAITING)
    change: Submission | None = waiting.first()
    return change


def _reservation_facts(row: Reservation) -> list[dict[str, str]]:
    start, end = timezone.localtime(row.start), timezone.localtime(row.end)
    facts = [
        ("From", f"{start:%a} {start.day} {start:%b %Y %H:%M}"),
        ("To", f"{end:%a} {end.day} {end:%b %Y %H:%M}"),
        ("For", short_duration(row.end - row.start)),
        ("GPUs", requested_units_text(row)),
        ("Pool", row.pool.name),
        ("Project", row.project.name),
        ("Team", row.project.team.name),
        ("Owner", row.owner.get_full_name() or row.owner.get_username()),
        (calendar_pages.NO_SHOW_LABEL, f"released after {short_duration(row.pool.no_show_seconds)}"),
    ]
    facts += request_texts.placement_rows(row)
    if row.may_exceed_guarantee:
        facts.append(("Guarantees", "may use guarantees of other teams (approved)"))
    return [{"label": label, "value": value} for label, value in facts]
