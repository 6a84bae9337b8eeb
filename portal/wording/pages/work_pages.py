"""Define texts of pages about notebooks, jobs and the queue."""

from __future__ import annotations

ARRAY_CANCEL_EFFECT = (
    "Waiting tasks leave the queue. Running tasks lose their progress since their last checkpoint; "
    "logs and files stay."
)
CANCEL_ARRAY_TITLE = "Cancel all of {name}?"
ARRAY_CANCELLED = "The tasks of {name} that had not ended are cancelled."
WORK_OF_ANOTHER_TEAM = "Work of another team"
OPERATOR_AGREES = "An operator has to agree."
CONFIRMED_AT_ONCE = "It is confirmed at once."
RESERVATION_NOTE = (
    "A reservation of {request}, within what {team} is guaranteed: preemptible work is stopped for it, "
    "and it is charged whether used or not. {needs} This workload keeps its place."
)
AS_THE_TEMPLATE = "As the template says"
NOT_PLANNED_YET = "Not planned yet."
NOTHING_WAITS = "Nothing waits; {running} run."
QUEUE_TOTALS = "{waiting} {verb} for {units} units{whose}; {running} run."

# Short labels of reason codes in the queue's filter. The rows of the queue show full sentences.
REASON_LABELS = {
    "waits_for_units": "Waits for GPUs",
    "waits_for_eviction": "Preemption under way",
    "behind_others": "Behind others",
    "over_quota": "Over quota",
    "behind_own_team": "Behind its team",
    "over_user_cap": "Over the person's limit",
    "budget_closed": "Budget used up",
    "held_for_reservation": "Held for a reservation",
    "held_for_maintenance": "Held for maintenance",
    "reservation_not_started": "Reservation has not begun",
}
