"""Render the pages of jobs: the list, and one job with its tabs."""

from __future__ import annotations

import uuid

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.reads.work import job_arrays, workload_details
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.organisation import current_currency
from portal.web.page.pagination import paginate
from portal.web.work import workload_card, workload_text
from portal.web.work.workload_actions import get_workload_or_404
from portal.web.work.workload_lists import WorkloadFilterForm, sort_workloads, workloads_csv
from portal.web.work.workload_page import render_workload_page, workload_facts
from portal.web.work.workload_rows import list_notes, list_rows
from portal.web.work.workload_tabs import tab_links, workload_tab_context
from scheduler.models import WorkloadKind


@sign_in_required
def jobs(request: HttpRequest) -> HttpResponseBase:
    """Render the jobs that the user may see, with filters, sorting, pages and CSV."""
    user, now = current_user(request), timezone.now()
    filters = WorkloadFilterForm(request.GET)
    chosen = filters.apply(workload_details.visible_of_kind(user, WorkloadKind.JOB), user)
    rows = sort_workloads(chosen, request.GET.get("sort", ""))
    if request.GET.get("format") == "csv":
        return workloads_csv("jobs", rows, now)
    page = paginate(
        request, sort_workloads(job_arrays.first_open_task_only(chosen), request.GET.get("sort", ""))
    )
    drawn = list_rows(
        workload_details.workload_details(page.object_list, user, now),
        user,
        current_currency(request),
        now,
        in_one_line=True,
    )
    context = {
        "filters": filters,
        "page": page,
        "rows": drawn,
        "notes": list_notes(drawn),
        "kind": "job",
        "may_launch": policy.launchable_projects(user).exists(),
    }
    return live_refresh.render_live_page(
        request,
        "work/jobs.html",
        "work/workload_rows.html",
        context,
        topics=[f"user:{user.pk}", "queue"],
        now=now,
    )


@sign_in_required
def job(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Render a job's card and the tab that ``?tab=`` names."""
    user, now = current_user(request), timezone.now()
    workload = get_workload_or_404(request, public_id)
    if workload.kind != WorkloadKind.JOB:
        return redirect("notebook", public_id=public_id)
    currency = current_currency(request)
    details = workload_details.workload_details([workload], user, now)[0]
    context = {
        "workload": workload,
        "card": workload_card.build_page_card(details, user, currency, now),
        "steps": workload_card.startup_steps(details)
        if workload.state in workload_card.STARTING_STATES
        else None,
        "facts": workload_facts(details, user, now),
        "ended": workload_text.outcome_sentence(details, user),
        "relaunch_url": reverse("workload-relaunch", args=[workload.public_id]),
        "tabs": tab_links(request, workload, details, now),
        **workload_tab_context(request, workload, details, user, currency, now),
    }
    return render_workload_page(request, "work/job.html", "work/job_part.html", context, workload, now)
