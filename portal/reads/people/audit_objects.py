"""Read the names and the pages of the rows that audit records refer to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse

from portal import policy
from portal.models import AuditEvent, User
from portal.wording.people.audit_values import REFERENCE_FIELDS
from scheduler.models import Pool, Project, Team

# The queryset of the visible rows of a kind, its field in the target of a record, its field in the address
# of its page, and the name of the address.
_PAGES: dict[str, tuple[Callable[[policy.Viewer], QuerySet[Any]], str, str, str]] = {
    "workload": (policy.visible_workloads, "public_id", "public_id", "job"),
    "jobarray": (policy.visible_arrays, "public_id", "public_id", "array"),
    "reservation": (policy.visible_reservations, "public_id", "public_id", "reservation"),
    "submission": (policy.visible_submissions, "public_id", "public_id", "submission"),
    "alert": (policy.visible_alerts, "public_id", "public_id", "alert-change"),
    "host": (policy.visible_hosts, "pk", "name", "host"),
    "gpu": (policy.visible_gpus, "pk", "host__name", "host"),
    "team": (policy.visible_teams_with_removed, "pk", "slug", "team"),
    "project": (policy.visible_projects, "pk", "team__slug", "team"),
    "user": (policy.visible_users, "pk", "username", "person"),
    "costcentre": (policy.visible_cost_centres, "pk", "code", "cost-centre"),
    "adjustment": (policy.visible_adjustments, "pk", "number", "adjustment"),
    "pool": (policy.visible_pools, "pk", "slug", "pool"),
    "unusualspend": (policy.visible_unusual_spend, "pk", "pk", "unusual-spend"),
}
# The actions that open these pages.
_NEEDED_ACTIONS = {"user": "user.change"}
# Kinds without a page of one row: the page that shows them, and the action that opens it; "" for everybody.
_SHARED_PAGES = {
    "budget": ("budgets", ""),
    "price": ("rate-card", ""),
    "pricefactor": ("rate-card", ""),
    "billingcurrency": ("rate-card", ""),
    "healthrule": ("health-rules", ""),
    "organisation": ("settings", ""),
    "databasemaintenance": ("database-maintenance", "database_maintenance.see"),
    "retention": ("retention", "retention.see"),
}


def object_urls(viewer: policy.Viewer, events: Iterable[AuditEvent]) -> dict[str, str]:
    """Return the address of the page of each target that has one and that the viewer may see.

    Takes one query for each kind of target.
    """
    wanted: dict[str, set[str]] = defaultdict(set)
    for event in events:
        kind, _, key = event.target.partition(":")
        wanted[kind].add(key)
    found: dict[str, str] = {}
    for kind, keys in wanted.items():
        if kind in _PAGES and policy.may(viewer, _NEEDED_ACTIONS.get(kind, "own.change")):
            found |= _row_urls(viewer, kind, keys)
        elif kind in _SHARED_PAGES:
            page, action = _SHARED_PAGES[kind]
            if not action or policy.may(viewer, action):
                found |= {f"{kind}:{key}": reverse(page) for key in keys}
    return found


def _row_urls(viewer: policy.Viewer, kind: str, keys: Collection[str]) -> dict[str, str]:
    visible, key_field, address_field, page = _PAGES[kind]
    parsed = [key for key in keys if (_is_uuid(key) if key_field == "public_id" else key.isdigit())]
    rows = visible(viewer).filter(**{f"{key_field}__in": parsed}).order_by()
    pairs = rows.values_list(key_field, address_field).distinct()
    return {f"{kind}:{key}": reverse(page, args=[address]) for key, address in pairs}


def _is_uuid(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False


def referenced_names(events: Iterable[AuditEvent]) -> dict[tuple[str, int], str]:
    """Return the names of the rows whose primary keys are values of these records, by (kind, key).

    Takes one query for each kind. A viewer who may see the record may see these names.
    """
    wanted: dict[str, set[int]] = defaultdict(set)
    for event in events:
        for values in (event.before, event.after):
            for name, value in (values or {}).items():
                kind = REFERENCE_FIELDS.get(name)
                if kind is not None and isinstance(value, int) and not isinstance(value, bool):
                    wanted[kind].add(value)
    rows: dict[str, QuerySet[Any]] = {
        "project": Project.objects.values_list("pk", "name"),
        "team": Team.with_removed.values_list("pk", "name"),
        "pool": Pool.with_removed.values_list("pk", "name"),
        "user": User.objects.values_list("pk", "username"),
    }
    return {
        (kind, key): name for kind, keys in wanted.items() for key, name in rows[kind].filter(pk__in=keys)
    }
