"""Whether a host takes new work, said in one place: of a host whose row is read, and as a condition for queries.

It is asked when the snapshot is read that is planned on, under lock before a placement is written, and by all that counts free
GPUs. What closes a host stands in both of these; that nobody is of another mind is in tests/scheduler/test_open_hosts.py.
"""

from __future__ import annotations

from django.db.models import Q

from scheduler.core.reasons import Code
from scheduler.isolation import is_weaker, keeps_apart_enough
from scheduler.models import Host
from scheduler.states import AdminState, LeaseState, RepairState, accepts_work

COLUMNS = ("lease_state", "admin_state", "repair_state", "isolation_level", "disk_full", "pool__isolation")  # of a host


def code_of(lease: str, admin: str, repair: str, isolation: str, disk_full: bool, demanded: str) -> str:
    """Why a host with these ``COLUMNS`` takes nothing new: a reason code, empty when it takes new work."""
    if not accepts_work(lease, admin, repair):
        return str(Code.HELD_FOR_MAINTENANCE if admin == AdminState.MAINTENANCE else Code.HOST_CLOSED)
    if is_weaker(isolation, demanded):
        return str(Code.ISOLATION_TOO_WEAK)
    return str(Code.HOST_FULL) if disk_full else ""


def why_closed(host: Host, demanded: str) -> str:
    """The same of a host in a pool that demands this isolation."""
    states = host.lease_state, host.admin_state, host.repair_state
    return code_of(*states, host.isolation_level, host.disk_full, demanded)


def takes_new_work(host: Host) -> bool:
    """Of a host that is loaded with its pool."""
    return not why_closed(host, host.pool.isolation)


def open_at(path: str) -> Q:
    """Of rows that refer to a host by this path: their host takes new work."""
    states = {"lease_state": LeaseState.ALIVE, "admin_state": AdminState.IN_SERVICE, "repair_state": RepairState.WELL}
    asked = {**states, "disk_full": False}
    return Q(**{f"{path}__{name}": value for name, value in asked.items()}) & keeps_apart_enough(path)
