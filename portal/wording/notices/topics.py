"""Group the kinds of notices by topic. People and teams choose the topics of each of their channels."""

from __future__ import annotations

TOPIC_LABELS = {
    "work": "Jobs and notebooks",
    "reservations": "Reservations and maintenance",
    "approvals": "Requests and decisions",
    "hosts": "Hosts and GPUs",
    "money": "Budgets, statements and charges",
    "alerts": "Alerts about use",
    "access": "Tokens, teams and pools",
}

TOPIC_KINDS = {
    "work": (
        "started",
        "resumed",
        "ended",
        "advice",
        "array_started",
        "array_fails",
        "array_ended",
        "preemption_notice",
        "expected_start_moved",
        "idle_warning",
        "has_to_move",
        "unused_work_stops",
        "stray_is_yours",
        "leaver_work",
    ),
    "reservations": (
        "reservation_soon",
        "reservation_ends",
        "reservation_released",
        "reservation_waits",
        "reservation_moves",
        "reservation_at_risk",
        "reservation_stuck",
        "maintenance_announced",
        "maintenance_cancelled",
        "database_maintenance",
    ),
    "approvals": (
        "approval_wanted",
        "approval_waits",
        "approved",
        "approved_changed",
        "declined",
        "submission_expired",
        "adjustment_proposed",
        "adjustment_decided",
    ),
    "hosts": (
        "host_trouble",
        "disk_is_full",
        "hardware_event",
        "strays_found",
        "diagnostic_failed",
        "geometry_changed",
        "geometry_failed",
        "gpu_is_back",
    ),
    "money": ("month_waits", "statements_made", "spend_question", "budget_reached"),
    "alerts": ("alerts_began", "alert_on_work"),
    "access": ("token_ends", "team_removed", "pool_removed"),
}

# Notices that only the portal shows.
PORTAL_KINDS = ("channel_fails",)

TOPIC_OF_KIND = {kind: topic for topic, kinds in TOPIC_KINDS.items() for kind in kinds}


def topic_of(kind: str) -> str:
    """Return the topic of a kind of notice; "" for a notice that only the portal shows, and for a test."""
    return TOPIC_OF_KIND.get(kind, "")
