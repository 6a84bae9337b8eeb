"""The verbs that change what the scheduler knows. They trust their caller: permission and audit are portal's.

Each is one transaction with its own locks (``scheduler.locks``), takes ``now``, and nudges the engine after the commit. A verb that
answers a bool says whether it changed anything; what the world does not allow raises Refused with numbers.
"""

from scheduler.dependencies import never_met
from scheduler.services.agents import (
    Credential,
    challenge_for_old,
    due_challenge,
    issue_join_token,
    note_refused_agent,
    prove,
    redeem_join_token,
    renew_old,
    renewed_credential,
    revoke_credential,
    verify_credential,
)
from scheduler.services.gates import close_budget_gate, open_budget_gate
from scheduler.services.hosts import (
    add_host,
    cancel_maintenance,
    cordon_host,
    drain_host,
    quarantine_gpu,
    quarantine_host,
    return_gpu,
    return_host,
    set_maintenance,
    take_out_gpu,
    trip_host,
)
from scheduler.services.previews import preview_workload
from scheduler.services.quotas import change_quota, guarantee_room
from scheduler.services.refused import Refused
from scheduler.services.reservations import (
    cancel_reservation,
    cancel_series,
    change_reservation,
    check_change,
    check_window,
    check_windows,
    confirm_reservation,
    confirm_series,
    evicted_by_reservation,
    locked_reservation,
    move_reservation,
    shorten_reservation,
)
from scheduler.services.workloads import (
    cancel_array,
    cancel_workload,
    extend_workload,
    keep_workload,
    queue_array,
    queue_workload,
    request_stop,
    warn_idle,
)

__all__ = [
    "Credential",
    "Refused",
    "add_host",
    "cancel_array",
    "cancel_maintenance",
    "cancel_reservation",
    "cancel_series",
    "cancel_workload",
    "change_quota",
    "change_reservation",
    "check_change",
    "check_window",
    "check_windows",
    "close_budget_gate",
    "confirm_reservation",
    "confirm_series",
    "cordon_host",
    "drain_host",
    "evicted_by_reservation",
    "extend_workload",
    "guarantee_room",
    "issue_join_token",
    "keep_workload",
    "locked_reservation",
    "move_reservation",
    "never_met",
    "challenge_for_old",
    "due_challenge",
    "note_refused_agent",
    "prove",
    "renew_old",
    "open_budget_gate",
    "preview_workload",
    "quarantine_gpu",
    "quarantine_host",
    "queue_array",
    "queue_workload",
    "redeem_join_token",
    "renewed_credential",
    "request_stop",
    "return_gpu",
    "return_host",
    "revoke_credential",
    "set_maintenance",
    "shorten_reservation",
    "take_out_gpu",
    "trip_host",
    "verify_credential",
    "warn_idle",
]
