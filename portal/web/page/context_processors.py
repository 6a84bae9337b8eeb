"""Build the context of the frame around every page: navigation, counts, search and notices."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import Count, Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import Membership, Organisation, SubmissionState, User
from portal.reads.people.organisation import unread_matters
from portal.redis_state.announced_maintenance import announced_maintenance
from portal.web.page.memberships import current_memberships
from portal.web.page.organisation import current_currency, current_organisation
from portal.wording.pages import home_pages
from scheduler.models import WorkloadKind
from scheduler.state.states import WorkloadState

# Sections of the navigation: (title, entries). An entry is (label, URL name, icon). `_hidden_entries` removes
# entries that the user may not see.
NAVIGATION: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "Mine",
        (
            ("Home", "home", "home"),
            ("Request GPUs", "ask", "plus"),
            ("Notebooks", "notebooks", "notebook"),
            ("Jobs", "jobs", "job"),
            ("Data volumes", "volumes", "data"),
        ),
    ),
    (
        "Pool",
        (
            ("Calendar", "calendar", "calendar"),
            ("Queue", "queue", "queue"),
            ("Fleet", "fleet", "fleet"),
            ("Utilisation", "utilisation", "utilisation"),
            ("Alerts", "alerts", "warning"),
        ),
    ),
    (
        "Manage",
        (
            ("Approvals", "approvals", "approval"),
            ("Chargeback", "chargeback", "money"),
            ("Teams", "teams", "team"),
            ("People", "people", "user"),
            ("Templates", "templates", "copy"),
            ("API tokens", "tokens", "key"),
            ("Audit", "audit", "history"),
            ("System health", "system-health", "check"),
            ("Settings", "settings", "settings"),
        ),
    ),
)


def page_frame(request: HttpRequest) -> dict[str, Any]:
    """Return the template context of the frame around a page; {} for anonymous users."""
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return {}
    # A page with a live part renders two templates (see live_refresh.py). Build the frame once per request.
    if not hasattr(request, "_frame"):
        request._frame = _build_page_frame(request, user)  # type: ignore[attr-defined]
    return request._frame  # type: ignore[attr-defined, no-any-return]


def _build_page_frame(request: HttpRequest, user: User) -> dict[str, Any]:
    organisation = current_organisation(request)
    memberships = current_memberships(request, user)
    may_request = bool(memberships) and not user.auditor
    return {
        "organisation": organisation,
        "may_request": may_request,
        "currency": current_currency(request),
        "nav": _navigation_sections(request, user, memberships, may_request),
        "search_url": reverse("search"),
        "simulated_notice": _simulation_notice(user, organisation),
        "viewer_line": _viewer_line(user, memberships),
        "notices_url": reverse("notifications"),
        "notices_count": unread_matters(user),
        "maintenance": announced_maintenance(),
        "edge_url": settings.GPUPOOL_EDGE_URL,
    }


def _navigation_sections(
    request: HttpRequest, user: User, memberships: list[Membership], may_request: bool
) -> list[dict[str, Any]]:
    hidden = _hidden_entries(user, memberships, may_request)
    # Finance sees its requests on the home page. The pages of money have no query left for their number.
    counts_requests = "approvals" not in hidden and (policy.may(user, "approval.see") or not user.finance)
    counts = _navigation_counts(user, counts_requests)
    here = request.path
    sections = []
    for title, entries in NAVIGATION:
        items = []
        for label, name, icon in entries:
            if name in hidden:
                continue
            url = reverse(name)
            current = here == url or (url != "/" and here.startswith(url))
            items.append(
                {
                    "label": requests_label(user) if name == "approvals" else label,
                    "url": url,
                    "icon": icon,
                    "count": counts.get(name),
                    "current": current,
                }
            )
        if items:
            sections.append({"title": title, "items": items})
    return sections


def requests_label(user: User) -> str:
    """Return the name of the page of submissions: leads and finance see only a part of the requests there."""
    return home_pages.APPROVALS if policy.may(user, "approval.see") else home_pages.REQUESTS


def _sees_requests(user: User, memberships: list[Membership]) -> bool:
    """Return True for people who decide requests, and for leads, who make and withdraw them."""
    leads = any(membership.role == Membership.Role.LEAD for membership in memberships)
    return leads or user.finance or policy.may(user, "approval.see")


def _hidden_entries(user: User, memberships: list[Membership], may_request: bool) -> set[str]:
    hidden = set()
    if not may_request:
        hidden.add("ask")
    if not _sees_requests(user, memberships):
        hidden.add("approvals")
    if not user.operator:
        hidden |= {"settings", "templates"}
    if not policy.may(user, "system.see"):
        hidden.add("system-health")
    return hidden


def _navigation_counts(user: User, with_requests: bool) -> dict[str, int]:
    mine = Q(owner=user)
    waiting = Q(state=WorkloadState.QUEUED)
    found = (
        policy.visible_workloads(user)
        .exclude(state=WorkloadState.ENDED)
        .aggregate(
            notebooks=Count("pk", filter=mine & Q(kind=WorkloadKind.NOTEBOOK)),
            jobs=Count("pk", filter=mine & Q(kind=WorkloadKind.JOB)),
            queue=Count("pk", filter=waiting),
        )
    )
    if with_requests:
        found["approvals"] = policy.visible_submissions(user).filter(state=SubmissionState.WAITING).count()
    return found


def _viewer_line(user: User, memberships: list[Membership]) -> str:
    roles = [
        word
        for flag, word in ((user.operator, "Operator"), (user.finance, "Finance"), (user.auditor, "Auditor"))
        if flag
    ]
    teams = [f"{m.team.name}{', lead' if m.role == Membership.Role.LEAD else ''}" for m in memberships]
    return " · ".join(roles + teams) or home_pages.IN_NO_TEAM


def _simulation_notice(user: User, organisation: Organisation | None) -> str:
    """Return sentences about simulated hosts and simulated history; "" if nothing is simulated."""
    parts = []
    there = policy.visible_hosts(user).exclude(last_sync_at=None)
    hosts = there.aggregate(all=Count("pk"), simulated=Count("pk", filter=Q(simulated=True)))
    if hosts["simulated"]:
        which = (
            "All hosts are"
            if hosts["simulated"] == hosts["all"]
            else f"{hosts['simulated']} of {hosts['all']} hosts are"
        )
        parts.append(home_pages.SIMULATED_READINGS.format(hosts=which))
    until = organisation.simulated_history_until if organisation else None
    if until is not None:
        local = timezone.localtime(until)
        parts.append(home_pages.SIMULATED_HISTORY.format(day=local.day, time=local))
    progress = organisation.history_progress if organisation else None
    if isinstance(progress, dict) and progress.get("words"):
        words = str(progress["words"])
        parts.append(home_pages.LOADING_HISTORY.format(progress=words))
    return " ".join(parts)
