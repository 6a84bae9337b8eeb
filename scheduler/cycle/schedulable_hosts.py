"""Whether a host takes new work, said in one place: of a host whose row is read, and as a condition for queries.

It is asked when the snapshot is read that is planned on, under lock before a placement is written, and by all that counts free
GPUs. What closes a host stands in both of these; that nobody is of another mind is in tests/scheduler/test_open_hosts.py.
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
)  # of a host


def unschedulable_code(
    lease: str, admin: str, repair: str, isolation: str, disk_full: bool, demanded: str
) -> str:
    """Why a host with these ``SCHEDULABLE_COLUMNS`` takes nothing new: a reason code, empty when it takes new work."""
    if not accepts_work(lease, admin, repair):
        return str(
            ReasonCode.HELD_FOR_MAINTENANCE if admin == AdminState.MAINTENANCE else ReasonCode.HOST_CLOSED
        )
    if is_weaker_isolation(isolation, demanded):
        return str(ReasonCode.ISOLATION_TOO_WEAK)
    return str(ReasonCode.HOST_FULL) if disk_full else ""


def host_unschedulable_code(host: Host, demanded: str) -> str:
    """The same of a host in a pool that demands this isolation."""
    states = host.lease_state, host.admin_state, host.repair_state
    return unschedulable_code(*states, host.isolation_level, host.disk_full, demanded)


def is_schedulable(host: Host) -> bool:
    """Of a host that is loaded with its pool."""
    return not host_unschedulable_code(host, host.pool.isolation)


def schedulable_filter(path: str) -> Q:
    """Of rows that refer to a host by this path: their host takes new work."""
    states = {
        "lease_state": LeaseState.ALIVE,
        "admin_state": AdminState.IN_SERVICE,
        "repair_state": RepairState.WELL,
    }
    asked = {**states, "disk_full": False}
    return Q(**{f"{path}__{name}": value for name, value in asked.items()}) & meets_pool_isolation(path)
