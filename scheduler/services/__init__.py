"""Provide the operations that change the scheduler's rows.

The caller checks the user's permission before the operation and writes the audit log after it.

Each operation is one transaction with its own locks (``scheduler.coordination.locks``). It takes ``now`` and
nudges the engine after the commit. An operation that returns a bool returns True if it changed something. If
the current state does not allow the operation, it raises OperationRejected with the numbers of the reason.
"""

from scheduler.core.rejection import OperationRejected
from scheduler.queue.dependencies import first_never_met
from scheduler.reads.previews import ImpossibleStart, impossible_start, impossible_start_of, preview_workload
from scheduler.services.backup_restore import (
    RestoreResult,
    recover_after_restore,
    revoke_credentials_again,
)
from scheduler.services.budget_gates import close_budget_gate, open_budget_gate
from scheduler.services.database_maintenance import begin_database_maintenance, end_database_maintenance
from scheduler.services.host_credentials import (
    JOIN_TOKEN_TTL,
    HostCredential,
    challenge_for_expired,
    due_challenge,
    is_of_removed_host,
    issue_join_token,
    record_rejected_agent,
    redeem_challenge,
    redeem_join_token,
    renew_expired_credential,
    renewed_credential,
    revoke_credential,
    verify_credential,
)
from scheduler.services.hosts import (
    add_host,
    cancel_maintenance,
    check_maintenance,
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
from scheduler.services.quotas import change_quota, guarantee_capacity
from scheduler.services.removal import (
    check_host_move,
    check_host_removal,
    check_pool_removal,
    check_team_removal,
    move_host,
    remove_host,
    remove_pool,
    remove_team,
)
from scheduler.services.removed_rows import (
    reject_if_pool_removed,
    reject_if_removed,
    reject_if_team_removed,
)
from scheduler.services.reservation_checks import (
    check_change,
    check_window,
    check_windows,
    evicted_by_reservation,
    first_windows,
)
from scheduler.services.reservation_risk import record_unserved_reservations
from scheduler.services.reservations import (
    cancel_reservation,
    cancel_series,
    change_reservation,
    confirm_reservation,
    confirm_series,
    lock_reservation,
    rebind_reservation,
    shorten_reservation,
)
from scheduler.services.unix_identities import (
    change_work_settings,
    delete_unix_identity,
    store_unix_identity,
)
from scheduler.services.workloads import (
    cancel_array,
    cancel_workload,
    extend_workload,
    postpone_idle_stop,
    queue_array,
    queue_workload,
    record_idle_warning,
    request_stop,
    stop_unused_work,
)

__all__ = [
    "JOIN_TOKEN_TTL",
    "HostCredential",
    "ImpossibleStart",
    "RestoreResult",
    "OperationRejected",
    "add_host",
    "begin_database_maintenance",
    "cancel_array",
    "cancel_maintenance",
    "cancel_reservation",
    "cancel_series",
    "cancel_workload",
    "change_quota",
    "change_reservation",
    "change_work_settings",
    "check_change",
    "check_host_move",
    "check_host_removal",
    "check_maintenance",
    "check_pool_removal",
    "check_team_removal",
    "check_window",
    "check_windows",
    "close_budget_gate",
    "recover_after_restore",
    "revoke_credentials_again",
    "confirm_reservation",
    "confirm_series",
    "cordon_host",
    "delete_unix_identity",
    "drain_host",
    "end_database_maintenance",
    "evicted_by_reservation",
    "extend_workload",
    "first_windows",
    "guarantee_capacity",
    "is_of_removed_host",
    "issue_join_token",
    "move_host",
    "postpone_idle_stop",
    "remove_host",
    "remove_pool",
    "remove_team",
    "lock_reservation",
    "rebind_reservation",
    "reject_if_pool_removed",
    "reject_if_removed",
    "reject_if_team_removed",
    "first_never_met",
    "impossible_start",
    "impossible_start_of",
    "challenge_for_expired",
    "due_challenge",
    "record_rejected_agent",
    "record_unserved_reservations",
    "redeem_challenge",
    "renew_expired_credential",
    "open_budget_gate",
    "preview_workload",
    "quarantine_gpu",
    "quarantine_host",
    "queue_array",
    "queue_workload",
    "redeem_join_token",
    "renewed_credential",
    "request_stop",
    "stop_unused_work",
    "store_unix_identity",
    "return_gpu",
    "return_host",
    "revoke_credential",
    "set_maintenance",
    "shorten_reservation",
    "take_out_gpu",
    "trip_host",
    "verify_credential",
    "record_idle_warning",
]
