"""Render the page of a workload: card, facts and tabs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.work.workload_details import WorkloadDetails
from portal.web.components.quantities import short_duration
from portal.web.page import live_refresh
from portal.web.work import workload_text
from portal.wording import reason_texts, request_texts
from portal.wording.pages import workload_pages
from portal.wording.request_texts import requested_units_text
from scheduler.models import Workload, WorkloadKind

PART_TEMPLATES = {
    "tab": "work/workload_tabs.html",
    "side": "work/workload_side.html",
    "chart": "work/use_data.html",
}


def render_workload_page(
    request: HttpRequest,
    template: str,
    part: str,
    context: Mapping[str, Any],
    workload: Workload,
    now: datetime,
) -> HttpResponse:
    """Return the page of a workload, or with ``?part=`` only one of its parts.

    The parts are the live part, the tabs, the side column, and the figures of the chart in the tab ``use``.
    """
    part_template = PART_TEMPLATES.get(request.GET.get("part", ""))
    if part_template is not None:
        return render(request, part_template, {**context, "now": now})
    topics = [
        f"workload:{workload.public_id}",
        *(["queue"] if workload.kind == WorkloadKind.NOTEBOOK else []),
    ]
    stage = f"{workload.state} {workload.attempt}"
    return live_refresh.render_live_page(
        request, template, part, context, topics=topics, now=now, stage=stage
    )


def workload_facts(details: WorkloadDetails, user: User, now: datetime) -> list[dict[str, Any]]:
    """Return the facts in the side column of a workload's page, each with its label and value."""
    workload = details.workload
    facts: list[tuple[str, Any, str]] = [
        ("Owner", workload.owner.get_full_name() or workload.owner.get_username(), ""),
        ("Team", workload.project.team.name, reverse("team", args=[workload.project.team.slug])),
        ("Project", workload.project.name, ""),
        ("Pool", workload.pool.name, ""),
        ("Asked for", requested_units_text(workload), ""),
        *([("Had", workload_text.held_units_text(details.had), "")] if details.had else []),
        ("Type", workload.get_type_display().capitalize(), ""),
        ("Priority", workload.get_priority_display().capitalize(), ""),
        ("May be preempted", "yes, after a notice" if workload.preemptible else "no", ""),
        ("Longest runtime", short_duration(workload.max_runtime_seconds), ""),
    ]
    if workload.reservation:
        facts.append(
            (
                "Reservation",
                workload.reservation.name,
                reverse("reservation", args=[workload.reservation.public_id]),
            )
        )
    facts += [(label, value, "") for label, value in request_texts.placement_rows(workload)]
    if workload.wanted_by is not None:
        facts.append(("Wanted by", f"{timezone.localtime(workload.wanted_by):%d %b %Y %H:%M}", ""))
    facts += _dependency_facts(workload, user)
    if workload.array is not None:
        whole = reverse("array", args=[workload.array.public_id])
        facts.append(("Array", f"{workload.array.name}, task {workload.array_index}", whole))
    if workload.hosts > 1:
        facts.append((workload_pages.GANG_END_LABEL, workload.get_if_member_ends_display(), ""))
    if workload.most_retries:
        facts.append(("Retries", f"{workload.failures} of {workload.most_retries} used", ""))
    facts.append(("Submitted", f"{timezone.localtime(workload.submitted_at):%d %b %Y %H:%M:%S}", ""))
    for unit in details.held:
        facts.append((f"GPU {unit.gpu} of {unit.host}", unit.uuid, reverse("host", args=[unit.host])))
    return [{"label": label, "value": value, "url": url} for label, value, url in facts]


def _dependency_facts(workload: Workload, user: User) -> list[tuple[str, Any, str]]:
    """Return (label, text, URL) for each dependency of a workload, and for each job that depends on it.

    Workloads and arrays that the user may not see are left out.
    """
    seen = policy.visible_workloads(user)
    dependencies = workload.dependencies.filter(Q(on__in=seen) | Q(on_array__in=policy.visible_arrays(user)))
    dependencies = dependencies.select_related("on", "on_array").order_by("on_id", "on_array_id")
    dependents = workload.dependents.filter(settled_at=None, workload__in=seen).select_related("workload")
    dependents = dependents.order_by("workload_id")[:20]
    facts = []
    for dependency in dependencies:
        how = reason_texts.CONDITIONS[dependency.condition]
        if dependency.on is not None:
            facts.append(
                ("After", f"{dependency.on.name} has {how}", workload_text.workload_url(dependency.on))
            )
        elif dependency.on_array is not None:
            how = "ended, not all finished" if dependency.condition == "not_ok" else how
            words = f"every task of {dependency.on_array.name} has {how}"
            facts.append(("After", words, reverse("array", args=[dependency.on_array.public_id])))
    return facts + [
        ("Needed by", dependency.workload.name, workload_text.workload_url(dependency.workload))
        for dependency in dependents
    ]
