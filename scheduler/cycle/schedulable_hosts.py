"""Decide whether a host accepts new work, for one loaded row and as a condition for queries.

The snapshot, the checks before a placement and all counts of free GPUs use this module. The function for a
row and the condition for queries must agree. ``tests/scheduler/test_schedulable_hosts.py`` compares them.
"""

from __future__ import annotations

from django.db.models import Q

from scheduler.core.reasons import ReasonCode
from scheduler.models import Host, RunsAs
from scheduler.state.isolation import is_weaker_isolation, meets_pool_isolation
from scheduler.state.states import AdminState, LeaseState, RepairState, accepts_work

SCHEDULABLE_COLUMNS = (
    "lease_state",
    "admin_state",
    "repair_state",
    "isolation_level",
    "disk_full",
    "person_users",
    "pool__isolation",
    "pool__runs_as",
)  # lookup paths from a host


def unschedulable_code(
    lease: str,
    admin: str,
    repair: str,
    isolation: str,
    disk_full: bool,
    person_users: bool,
    demanded: str,
    runs_as: str,
) -> str:
    """Return the reason code if a host with these columns accepts no new work; otherwise an empty string.

    The arguments are ``SCHEDULABLE_COLUMNS``, in their order.
    """
    if not accepts_work(lease, admin, repair):
        return str(
            ReasonCode.HELD_FOR_MAINTENANCE if admin == AdminState.MAINTENANCE else ReasonCode.HOST_CLOSED
        )
    if is_weaker_isolation(isolation, demanded):
        return str(ReasonCode.ISOLATION_TOO_WEAK)
    if runs_as == RunsAs.PERSON and not person_users:
        return str(ReasonCode.PERSON_USERS_MISSING)
    return str(ReasonCode.HOST_FULL) if disk_full else ""


def host_unschedulable_code(host: Host, demanded: str, runs_as: str) -> str:
    """Return the ``unschedulable_code`` of a host.

    Its pool requires the isolation ``demanded``, and its work has the identity ``runs_as``.
    """
    states = host.lease_state, host.admin_state, host.repair_state
    provided = host.isolation_level, host.disk_full, host.person_users
    return unschedulable_code(*states, *provided, demanded, runs_as)


def is_schedulable(host: Host) -> bool:
    """Return True if the host accepts new work. Load ``host`` with its pool."""
    return not host_unschedulable_code(host, host.pool.isolation, host.pool.runs_as)


def schedulable_filter(path: str) -> Q:
    """Return the condition that a host accepts new work. ``path`` is the host's lookup path in the query."""
    states = {
        "lease_state": LeaseState.ALIVE,
        "admin_state": AdminState.IN_SERVICE,
        "repair_state": RepairState.WELL,
    }
    required = {**states, "disk_full": False}
    open_hosts = Q(**{f"{path}__{name}": value for name, value in required.items()})
    lacks_users = Q(**{f"{path}__pool__runs_as": RunsAs.PERSON, f"{path}__person_users": False})
    return open_hosts & meets_pool_isolation(path) & ~lacks_users
