"""Define texts of pages about pools, hosts and GPUs."""

from __future__ import annotations

HOST_NOT_FOUND = "There is no host {name}, or you may not see it."
GEOMETRY_REQUESTED = "GPU {gpu} of {host} gets no new work. It is changed when it is free."
HEALTH_RULE_REMOVED = "{code} has no rule any more: its events are only recorded."
RETURN_TITLE = "Return {} to service?"
POWERED_OFF_BUTTON = "I have seen it powered off"
POWERED_OFF_TITLE = "Is {} powered off?"
REVOKE_TITLE = "Revoke the credential of {}?"
LABELS_INVALID = "labels contains {given!a:.60}; allowed: name=value pairs with spaces between them."
CLOSED_FOR = " It was closed for: {reason}."
HOST_IS_ALIVE = (
    "{name} is not off: its agent reports, so this would be rejected. For a machine that is off, this "
    "counts its workloads as lost and restarts them elsewhere at once, before its lease expires. "
    "To empty a host that is on, drain it."
)
MAINTENANCE_SET = "{name} is in maintenance from {start:%d %b %H:%M} on. No workload is planned into it."
LIMITS_SAVED = "Saved. The engine uses it from its next cycle on."
SETTINGS_SAVED = "Saved. The engine uses it from its next cycle on; running workloads continue."
REPAIR_POLICY_SAVED = "Saved. Its hosts get the change at once."
POOL_CREATED = "{name} is created with default limits. Next, add a host."
UNKNOWN_REPAIR_VERB = "verb is {verb!r}; allowed: {allowed}."
GPU_DIAGNOSED = "GPU {gpu} is being diagnosed."
GPUS_DIAGNOSED = "Being diagnosed: {gpus}."
GPU_RETURNED = "GPU {gpu} is back in service."
GPU_TAKEN_OUT = "GPU {gpu} is out of service until it is returned."
GPU_FORGOTTEN = "GPU {gpu} ({uuid}) is removed from the list."
GEOMETRY_KEPT = "GPU {gpu} stays as it is."
DCGM_SET = "The dcgm-exporter of {name} is read every 30 seconds."
DCGM_REMOVED = "The dcgm-exporter of {name} is no longer read."
WINDOW_CANCELLED = "The maintenance window is cancelled."

LIMIT_LABELS = {
    "notice_seconds": (
        "Notice",
        "Time between the warning and the stop signal, for writing a checkpoint.",
    ),
    "grace_seconds": ("Grace", "Time between the stop signal and the kill."),
    "minimum_runtime_seconds": (
        "Shortest undisturbed run",
        "Time that a workload runs before it may be preempted.",
    ),
    "half_life_seconds": ("Half-life of use", "Time after which past use counts half in fair share."),
    "spare_gpus": ("Kept free", "GPUs that only work of critical priority may use. Empty: none."),
    "longest_runtime_seconds": ("Longest runtime", "Limit of the runtime that a workload requests."),
    "approval_above_gpus": ("Approval above", "Reservations of more GPUs than this wait for an operator."),
    "longest_reservation_seconds": ("Longest reservation", "Limit from its start to its end."),
    "reservation_horizon_seconds": ("How far ahead", "Time from now within which reservations must end."),
    "no_show_seconds": ("No-show limit", "Time after which an unused reservation is released."),
    "idle_limit_seconds": (
        "Idle limit",
        "Time without work after which a notebook is stopped, with a warning before.",
    ),
    "most_gpus_per_user": ("Most GPUs per person", "Empty: no limit."),
    "most_gpus_per_workload": ("Most GPUs per workload", "Empty: no limit."),
    "most_waiting_per_user": (
        "Most waiting per person",
        "Notebooks, jobs and array tasks in the queue. More are rejected.",
    ),
    "most_waiting_per_team": ("Most waiting per team", "The same for all people of a team together."),
}

# Actions that health rules took after a hardware event, each with its text.
HARDWARE_ACTION_SENTENCES = {
    "": "",
    "note": "Noted.",
    "warn": "Operators are notified.",
    "quarantine_gpu": "The GPU is quarantined.",
    "cordon": "The host is cordoned.",
    "drain": "The host is drained.",
    "held_back": "No action was taken: much of the pool was taken out of service recently.",
}

DISK_FULL = "its disk is full: nothing new starts there"
NO_TELEMETRY = "no telemetry from {unseen} of {gpus} GPUs"
MAINTENANCE_NOTE = "maintenance: {reason}"
NOT_JOINED = "has not joined yet"
LEASE_STATE_NOTES = {"suspect": "one renewal late", "silent": "silent"}


# Titles of the groups of health rules, by the first part of their codes.
RULE_GROUPS = {
    "breaker": "Failing attempts on a host",
    "clock": "Clock",
    "ecc": "Memory errors (ECC)",
    "gpu": "Missing GPUs",
    "nvlink": "NVLink",
    "nvml": "Interface of the driver (NVML)",
    "recovery": "Recovery that the driver asks for",
    "remap": "Remapped memory rows",
    "stray": "Processes without a workload",
    "throttle": "Throttling",
    "xid": "Xid errors of the driver",
}


def rule_count(count: int, changed: int) -> str:
    """Return the number of rules of a group, and how many of them are changed or added."""
    return f"{count} rule{'' if count == 1 else 's'}" + (f", {changed} changed or added" if changed else "")


def event_count(title: str, count: int) -> str:
    """Return the title of a hardware event, and how often the event happened in the last 24 hours."""
    return f"{title} {count} times in 24 h" if count > 1 else f"{title} in the last 24 h"


def idle_gpus(count: int) -> str:
    """Return a text such as ``3 GPUs held and idle``."""
    return f"{count} GPU{'s' if count > 1 else ''} held and idle"


def host_state_note(state: str, reason: str) -> str:
    """Return a host's state with its reason.

    The reason is omitted for a late or silent agent, because it belongs to an earlier change of state.
    """
    return LEASE_STATE_NOTES.get(state) or (f"{state}: {reason}" if reason else state)


HOST_USE_TITLE = "Use of the host"
HOST_USE_COLUMNS = (("Use", False), ("Now", True), ("Mean of 1 h", True), ("Peak of 1 h", True))
HOST_CPU = "CPU cores in use"
HOST_MEMORY = "Memory without caches"
HOST_DISK_TRAFFIC = ("{name}, read", "{name}, written")
HOST_NETWORK_TRAFFIC = ("{name}, received", "{name}, sent")
HOST_DISK_FREE = "{free} of {size} are free on the disk of the agent's state."
