"""Decide whether a host accepts new work, for one loaded row and as a condition for queries.

The snapshot, the checks before a placement and all counts of free GPUs use this module. The function for a
row and the condition for queries must agree. ``tests/scheduler/test_schedulable_hosts.py`` compares them.
"""

from __future__ import annotations

from django.db.models import Q

from scheduler.core.reasons import ReasonCode
from scheduler.models import Host
from scheduler.state.isolation import is_weaker_isolation, meets_pool_isolation
from scheduler.state.states import AdminState, LeaseState, RepairState, accepts_work

SCHEDULABLE_COLUMNS = (
    "lease_state",
    "admin_state",
    "repair_state",
    "isolation_level",
    "disk_full",
    "pool__isolation",
)  # lookup paths from a host


def unschedulable_code(
    lease: str, admin: str, repair: str, isolation: str, disk_full: bool, demanded: str
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
    return str(ReasonCode.HOST_FULL) if disk_full else ""


def host_unschedulable_code(host: Host, demanded: str) -> str:
    """Return the ``unschedulable_code`` of a host whose pool requires the isolation ``demanded``."""
    states = host.lease_state, host.admin_state, host.repair_state
    return unschedulable_code(*states, host.isolation_level, host.disk_full, demanded)


def is_schedulable(host: Host) -> bool:
    """Return True if the host accepts new work. Load ``host`` with its pool."""
    return not host_unschedulable_code(host, host.pool.isolation)


def schedulable_filter(path: str) -> Q:
    """Return the condition that a host accepts new work. ``path`` is the host's lookup path in the query."""
    states = {
        "lease_state": LeaseState.ALIVE,
        "admin_state": AdminState.IN_SERVICE,
        "repair_state": RepairState.WELL,
    }
    required = {**states, "disk_full": False}
    return Q(**{f"{path}__{name}": value for name, value in required.items()}) & meets_pool_isolation(path)
