"""Render the pages of a job array: its tasks, and the cancellation of all tasks."""

from __future__ import annotations

import uuid

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from portal import policy
from portal.reads.work import job_arrays, workload_details
from portal.services.work import workload_changes
from portal.web.page import live_refresh
from portal.web.page.access import current_user, get_visible_or_404, run_and_redirect, sign_in_required
from portal.web.page.organisation import current_currency
from portal.web.page.pagination import paginate
from portal.web.work.workload_lists import WorkloadFilterForm
from portal.web.work.workload_rows import list_notes, list_rows
from portal.wording.pages import work_pages
from scheduler.models import WorkloadKind

ARRAY_CANCEL_WARNING = work_pages.ARRAY_CANCEL_EFFECT


@sign_in_required
def array(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Render a job array: task counts and tasks."""
    user, now = current_user(request), timezone.now()
    shown = job_arrays.with_task_counts(policy.visible_arrays(user)).select_related(
        "project__team", "pool", "owner"
    )
    row = get_visible_or_404(shown, "array of jobs", public_id=public_id)
    filters = WorkloadFilterForm(request.GET)
    tasks = filters.apply(workload_details.visible_of_kind(user, WorkloadKind.JOB).filter(array=row), user)
    page = paginate(request, tasks.order_by("array_index", "pk"))
    drawn = list_rows(
        workload_details.workload_details(page.object_list, user, now), user, current_currency(request), now
    )
    context = {
        "array": row,
        "counts": job_arrays.array_summary(row),
        "filters": filters,
        "page": page,
        "rows": drawn,
        "notes": list_notes(drawn),
        "kind": "task",
        "cancel_url": reverse("array-cancel", args=[row.public_id]),
        "may_cancel": row.waiting + row.running > 0 and policy.may(user, "workload.change", row),
        "loss": ARRAY_CANCEL_WARNING,
    }
    return live_refresh.render_live_page(
        request, "work/array.html", "work/array_part.html", context, topics=["queue"], now=now
    )


@sign_in_required
@require_POST
def cancel_array(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Cancel every task that has not ended. Without JavaScript, show a confirmation page first."""
    user = current_user(request)
    row = get_visible_or_404(
        policy.visible_arrays(user).select_related("project__team"), "array of jobs", public_id=public_id
    )
    address = reverse("array", args=[public_id])
    if not request.POST.get("confirmed"):
        context = {
            "title": work_pages.CANCEL_ARRAY_TITLE.format(name=row.name),
            "text": ARRAY_CANCEL_WARNING,
            "label": "Cancel all",
            "back": address,
        }
        return render(request, "work/question.html", context)
    return run_and_redirect(
        request,
        lambda: workload_changes.cancel_array(actor=user, array=row, now=timezone.now()),
        done=work_pages.ARRAY_CANCELLED.format(name=row.name),
        to=address,
    )
