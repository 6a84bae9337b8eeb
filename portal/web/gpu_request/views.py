"""Render the form that requests notebooks, jobs and reservations, and its preview, which changes nothing."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from portal.models import Submission, User
from portal.services.calendar import recurring_reservations, reservations
from portal.services.work import launch
from portal.web.gpu_request import preview as ask_preview
from portal.web.gpu_request.field_values import (
    default_name,
)
from portal.web.gpu_request.forms import GpuRequestForm
from portal.web.gpu_request.options import GpuRequestOptions
from portal.web.gpu_request.prefill import (
    LAST_REQUEST_SESSION_KEY,
    NOT_REMEMBERED_FIELDS,
    apply_suggestion,
    initial_as_posted,
    initial_kind,
    initial_values,
)
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.organisation import current_currency
from portal.web.work import workload_actions
from portal.wording.pages import request_pages
from scheduler.models import JobArray, Reservation, Series, Workload


@sign_in_required
def request_gpus(request: HttpRequest) -> HttpResponse:
    """Show the form, or submit it on POST. It is filled in from the last request or from the query string."""
    return handle_request_form(request, initial_kind(request))


@sign_in_required
def submit_job(request: HttpRequest) -> HttpResponse:
    """Show or submit the form for a job. ``?from=`` fills it in from an earlier job."""
    return handle_request_form(request, "job")


@sign_in_required
@require_POST
def preview(request: HttpRequest) -> HttpResponse:
    """Return the preview of the posted form. The page requests it while the user types."""
    user, now = current_user(request), timezone.now()
    form = GpuRequestForm(request.POST, options=_form_options(request, user, now))
    return render(request, "work/ask_preview.html", {"view": ask_preview.preview_context(form, user, now)})


def handle_request_form(request: HttpRequest, kind: str) -> HttpResponse:
    """Return the page of the form, or a redirect after a successful request.

    ``kind`` is the initial kind of the form: notebook, job or reservation.
    """
    user, now = current_user(request), timezone.now()
    options = _form_options(request, user, now)
    if request.method != "POST":
        form = GpuRequestForm(initial=initial_values(request, user, now, kind, options), options=options)
        return _render_form(request, form, options, user, now)
    if {"use_start", "use_units", "use_way"} & set(request.POST):
        form = GpuRequestForm(apply_suggestion(request.POST), options=options)
        return _render_form(request, form, options, user, now)
    form = GpuRequestForm(request.POST, options=options)
    made = _submit(form, user, now) if form.is_valid() else None
    if made is None:
        return _render_form(request, form, options, user, now, status=400)
    request.session[LAST_REQUEST_SESSION_KEY] = {
        k: v for k, v in request.POST.items() if k in form.fields and k not in NOT_REMEMBERED_FIELDS
    }
    return _redirect_after(request, made, now)


def _submit(
    form: GpuRequestForm, user: User, now: datetime
) -> Submission | Reservation | Series | JobArray | Workload | None:
    kind = form.selected_kind
    if not form.cleaned_data["name"]:
        form.cleaned_data["name"] = default_name(kind, user, now)
    if form.recurs:
        return form.carry_out(recurring_reservations.request_series, actor=user, now=now, **form.for_series())
    if kind == "reservation":
        return form.carry_out(reservations.request_reservation, actor=user, now=now, **form.for_reservation())
    if kind == "notebook":
        return form.carry_out(launch.launch_notebook, actor=user, now=now, **form.for_notebook())
    if form.cleaned_data["array"].strip():
        array = form.cleaned_data["array"].strip()
        return form.carry_out(launch.submit_array, actor=user, now=now, array=array, **form.for_job())
    return form.carry_out(launch.submit_job, actor=user, now=now, **form.for_job())


def _redirect_after(
    request: HttpRequest, made: Submission | Reservation | Series | JobArray | Workload, now: datetime
) -> HttpResponse:
    if isinstance(made, Submission):
        messages.info(
            request,
            request_pages.RESERVATION_WAITS.format(name=made.payload["name"]),
        )
        return redirect(f"{reverse('calendar')}?{_calendar_query(made)}")
    if isinstance(made, Series):
        first = made.occurrences.order_by("start", "pk")[0]
        messages.success(
            request,
            request_pages.SERIES_RESERVED.format(name=made.name, occurrences=made.occurrences.count()),
        )
        for change in recurring_reservations.clock_changes_of(made):
            messages.info(request, change)
        return redirect("reservation", public_id=first.public_id)
    if isinstance(made, JobArray):
        messages.success(request, request_pages.ARRAY_QUEUED.format(name=made.name, tasks=made.tasks.count()))
        workload_actions.add_start_warning(request, made.tasks.order_by("pk")[0], now)
        return redirect("array", public_id=made.public_id)
    if isinstance(made, Reservation):
        messages.success(request, request_pages.RESERVED.format(name=made.name))
        return redirect("reservation", public_id=made.public_id)
    workload_actions.add_start_warning(request, made, now)
    if made.kind == "notebook":
        return redirect(f"{reverse('notebook', args=[made.public_id])}?open=1")
    messages.success(request, request_pages.QUEUED.format(name=made.name))
    return redirect("job", public_id=made.public_id)


def _calendar_query(made: Submission) -> str:
    """Return the query string with which the calendar shows the submission's pool and window."""
    start = timezone.localtime(datetime.fromisoformat(made.payload["start"]))
    return urlencode({"at": f"{start:%Y-%m-%dT%H:%M}"} | ({"pool": made.pool.slug} if made.pool else {}))


# -- form ----------------------------------------------------------------------------------------------------


def _form_options(request: HttpRequest, user: User, now: datetime) -> GpuRequestOptions:
    return GpuRequestOptions.of(user, now, current_currency(request))


def _render_form(
    request: HttpRequest,
    form: GpuRequestForm,
    options: GpuRequestOptions,
    user: User,
    now: datetime,
    status: int = 200,
) -> HttpResponse:
    # The preview checks a fresh copy of the form, because service errors in ``form`` would hide windows that
    # fit.
    checked = GpuRequestForm(form.data if form.is_bound else initial_as_posted(form), options=options)
    can_ask = bool(options.projects and options.lines)
    context = {
        "form": form,
        "in_a_team": bool(options.projects),
        "has_gpus": bool(options.lines),
        "preview": ask_preview.preview_context(checked, user, now) if can_ask else None,
        "remembered": bool(request.session.get(LAST_REQUEST_SESSION_KEY)),
        "now": now,
    }
    return render(request, "work/ask.html", context, status=status)
