"""Read which hosts could run a request and take no new work, each with the state that closes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.db.models import Q

from scheduler.models import Gpu, RunsAs
from scheduler.state.isolation import is_weaker_isolation
from scheduler.state.states import AdminState, LeaseState, RepairState

WEAK_ISOLATION, DISK_FULL, GPUS_OUT, NO_PERSON_USERS = "isolation", "disk_full", "gpus", "person_users"


def closed_hosts(
    pool: int, models: Collection[str] = (), labels: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the hosts of a pool that have a requested model and take no new work, sorted by name.

    Each has ``host``, its name, and ``state``: the state of its lease, its repair or its administration, or
    one of WEAK_ISOLATION, NO_PERSON_USERS, DISK_FULL and GPUS_OUT. GPUS_OUT means that the host takes work
    but some of its GPUs do not; ``gpus`` is their number. No models means any model. Takes one query.
    """
    # The GPUs of a host that counts as powered off are retired until it reports again.
    there = Q(retired_at=None) | Q(host__lease_state=LeaseState.SILENT)
    rows = Gpu.objects.filter(there, host__pool=pool).select_related("host__pool")
    if models:
        rows = rows.filter(model__in=models)
    if labels:
        rows = rows.filter(host__labels__contains=dict(labels))
    found: dict[str, dict[str, Any]] = {}
    for gpu in rows.order_by("host__name", "index"):
        host = gpu.host
        state = closing_state(host, host.pool.isolation, host.pool.runs_as)
        if state:
            found[host.name] = {"host": host.name, "state": state}
        elif gpu.repair_state != RepairState.WELL:
            row = found.setdefault(host.name, {"host": host.name, "state": GPUS_OUT, "gpus": 0})
            row["gpus"] += 1
    return list(found.values())


def closing_state(host: Any, demanded: str, runs_as: str) -> str:
    """Return the state for which a host takes no new work; "" if it takes new work."""
    if host.lease_state != LeaseState.ALIVE:
        return str(host.lease_state)
    if host.repair_state != RepairState.WELL:
        return str(host.repair_state)
    if host.admin_state != AdminState.IN_SERVICE:
        return str(host.admin_state)
    if is_weaker_isolation(host.isolation_level, demanded):
        return WEAK_ISOLATION
    if runs_as == RunsAs.PERSON and not host.person_users:
        return NO_PERSON_USERS
    return DISK_FULL if host.disk_full else ""
