"""Carry out the actions behind a workload's buttons: stop, extend, keep, launch again."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from portal import policy
from portal.reads.work.workload_details import RELATED, is_notebook
from portal.services.work import impossible_starts, workload_changes
from portal.web.components.quantities import short_duration
from portal.web.page.access import (
    current_user,
    get_visible_or_404,
    return_url,
    run_and_redirect,
    sign_in_required,
)
from portal.web.work.workload_text import workload_url
from portal.wording.pages import workload_pages
from scheduler.models import Dependency, Workload

MAX_EXTENSION_HOURS = 24 * 366


def add_start_warning(request: HttpRequest, workload: Workload, now: datetime) -> None:
    """Show a warning if the workload needs a larger quota to start, or if its hosts can't communicate."""
    warning = impossible_starts.submission_warning(workload, current_user(request), now)
    if warning:
        messages.warning(request, warning)


def get_workload_or_404(request: HttpRequest, public_id: uuid.UUID) -> Workload:
    """Return the workload with this id, or raise Http404 if the user may not see it."""
    return get_visible_or_404(
        policy.visible_workloads(current_user(request)).select_related(*RELATED),
        "notebook or job",
        public_id=public_id,
    )


@sign_in_required
@require_POST
def cancel_workload(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Stop a workload or remove it from the queue. Without JavaScript, show a confirmation page first."""
    workload = get_workload_or_404(request, public_id)
    if not request.POST.get("confirmed"):
        return _confirm_cancel(request, workload)
    return run_and_redirect(
        request,
        lambda: workload_changes.cancel_workload(
            actor=current_user(request),
            workload=workload,
            now=timezone.now(),
            why=request.POST.get("why", ""),
        ),
        done=workload_pages.STOPPING.format(name=workload.name)
        if workload.started_at
        else workload_pages.CANCELLED.format(name=workload.name),
        to=workload_url(workload),
    )


@sign_in_required
@require_POST
def extend_workload(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Extend the runtime limit of a workload by the posted number of hours."""
    workload = get_workload_or_404(request, public_id)
    hours = _posted_hours(request)
    if hours is None:
        return redirect(return_url(request, workload_url(workload)))
    return run_and_redirect(
        request,
        lambda: workload_changes.extend_workload(
            actor=current_user(request), workload=workload, seconds=hours * 3600, now=timezone.now()
        ),
        done=workload_pages.EXTENDED.format(name=workload.name, hours=hours),
        to=workload_url(workload),
    )


@sign_in_required
@require_POST
def keep_workload(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Keep an idle notebook for the posted hours, or postpone the stop of an unused job by the minutes."""
    workload = get_workload_or_404(request, public_id)
    if "minutes" in request.POST:
        return _postpone(request, workload)
    hours = _posted_hours(request)
    if hours is None:
        return redirect(return_url(request, workload_url(workload)))
    return run_and_redirect(
        request,
        lambda: workload_changes.keep_workload(
            actor=current_user(request), workload=workload, seconds=hours * 3600, now=timezone.now()
        ),
        done=workload_pages.KEPT.format(name=workload.name, hours=hours),
        to=workload_url(workload),
    )


def _postpone(request: HttpRequest, workload: Workload) -> HttpResponseBase:
    text = request.POST["minutes"]
    # The service refuses what is not a number.
    seconds: Any = int(text) * 60 if text.isascii() and text.isdigit() and len(text) < 7 else text
    length = short_duration(seconds) if isinstance(seconds, int) else ""
    return run_and_redirect(
        request,
        lambda: workload_changes.keep_workload(
            actor=current_user(request), workload=workload, seconds=seconds, now=timezone.now()
        ),
        done=workload_pages.POSTPONED.format(name=workload.name, length=length),
        to=workload_url(workload),
    )


@sign_in_required
@require_http_methods(["GET", "POST"])
def relaunch_workload(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Redirect to the form that launches a workload, filled in from this workload."""
    workload = get_workload_or_404(request, public_id)
    page = "notebook-launch" if is_notebook(workload) else "job-submit"
    return redirect(f"{reverse(page)}?from={workload.public_id}")


def _posted_hours(request: HttpRequest) -> int | None:
    given = request.POST.get("hours", "")
    if (
        given.isascii()
        and given.isdigit()
        and 1 <= len(given) <= 4
        and 1 <= int(given) <= MAX_EXTENSION_HOURS
    ):
        return int(given)
    messages.error(
        request, workload_pages.HOURS_INVALID.format(given=ascii(given[:20]), most=MAX_EXTENSION_HOURS)
    )
    return None


def _confirm_cancel(request: HttpRequest, workload: Workload) -> HttpResponse:
    loss = workload_pages.NOTEBOOK_STOP_EFFECT if is_notebook(workload) else workload_pages.JOB_STOP_EFFECT
    waits_for_it = Q(on=workload) | (Q(on_array=workload.array_id) if workload.array_id else Q())
    dependents = Dependency.objects.filter(
        waits_for_it, settled_at=None, condition=Dependency.Condition.OK
    ).count()
    if dependents:
        ends = (
            "1 job depends on it and ends" if dependents == 1 else f"{dependents} jobs depend on it and end"
        )
        loss = workload_pages.DEPENDENTS_END.format(loss=loss, ends=ends)
    context = {
        "title": f"Stop {workload.name}?",
        "text": loss,
        "label": "Stop it",
        "back": return_url(request, workload_url(workload)),
    }
    return render(request, "work/question.html", context)
