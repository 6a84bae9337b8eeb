"""Verbs on a workload, each from one button: stop, extend, keep, launch again."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from portal import policy
from portal.selectors.work import RELATED, is_notebook
from portal.services import workloads as verbs
from portal.web.access import back, carry_out, found, signed_in, viewer
from portal.web.home_cards import page_of
from scheduler.models import Dependency, Workload

MOST_HOURS = 24 * 366


def warn(request: HttpRequest, workload: Workload, now: datetime) -> None:
    """Tell a person who submitted it what it waits for that no end of other work brings."""
    warning = verbs.warning_of(workload, viewer(request), now)
    if warning:
        messages.warning(request, warning)


def workload_of(request: HttpRequest, public_id: uuid.UUID) -> Workload:
    """The workload of an address, if the viewer may see it."""
    return found(
        policy.visible_workloads(viewer(request)).select_related(*RELATED), "notebook or job", public_id=public_id
    )


@signed_in
@require_POST
def cancel(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Stop it or take it out of the queue; without JavaScript the question is a page of its own."""
    workload = workload_of(request, public_id)
    if not request.POST.get("confirmed"):
        return _ask_first(request, workload)
    return carry_out(
        request,
        lambda: verbs.cancel_workload(
            actor=viewer(request), workload=workload, now=timezone.now(), why=request.POST.get("why", "")
        ),
        done=f"{workload.name} is being stopped."
        if workload.started_at
        else f"{workload.name} was taken out of the queue.",
        to=page_of(workload),
    )


@signed_in
@require_POST
def extend(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Let it run some hours longer."""
    workload = workload_of(request, public_id)
    hours = _hours(request)
    if hours is None:
        return redirect(back(request, page_of(workload)))
    return carry_out(
        request,
        lambda: verbs.extend_workload(
            actor=viewer(request), workload=workload, seconds=hours * 3600, now=timezone.now()
        ),
        done=f"{workload.name} may run {hours} h longer.",
        to=page_of(workload),
    )


@signed_in
@require_POST
def keep(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Don't stop a notebook for idleness for some hours."""
    workload = workload_of(request, public_id)
    hours = _hours(request)
    if hours is None:
        return redirect(back(request, page_of(workload)))
    return carry_out(
        request,
        lambda: verbs.keep_workload(actor=viewer(request), workload=workload, seconds=hours * 3600, now=timezone.now()),
        done=f"{workload.name} is kept for {hours} h, idle or not.",
        to=page_of(workload),
    )


@signed_in
@require_http_methods(["GET", "POST"])
def relaunch(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """GET leads to the form, filled in from this workload, to change what has to change."""
    workload = workload_of(request, public_id)
    page = "notebook-launch" if is_notebook(workload) else "job-submit"
    return redirect(f"{reverse(page)}?from={workload.public_id}")


def _hours(request: HttpRequest) -> int | None:
    given = request.POST.get("hours", "")
    if given.isascii() and given.isdigit() and 1 <= len(given) <= 4 and 1 <= int(given) <= MOST_HOURS:
        return int(given)
    messages.error(request, f"hours is {ascii(given[:20])}; allowed: a whole number from 1 to {MOST_HOURS:,}.")
    return None


def _ask_first(request: HttpRequest, workload: Workload) -> HttpResponse:
    loss = (
        "The memory of its kernels is lost. Files saved in its home stay."
        if is_notebook(workload)
        else "What it did since its last checkpoint is lost. Its log and files stay."
    )
    waits_for_it = Q(on=workload) | (Q(on_array=workload.array_id) if workload.array_id else Q())
    behind = Dependency.objects.filter(waits_for_it, settled_at=None, condition=Dependency.Condition.OK).count()
    if behind:
        ends = "1 job waits for it to finish and ends" if behind == 1 else f"{behind} jobs wait for it to finish and end"
        loss = f"{loss} {ends} with it."
    context = {
        "title": f"Stop {workload.name}?",
        "text": loss,
        "label": "Stop it",
        "back": back(request, page_of(workload)),
    }
    return render(request, "work/question.html", context)
