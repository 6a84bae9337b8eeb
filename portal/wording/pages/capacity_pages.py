"""Define texts of the pages about the number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

EACH_MODEL = "each model"
WAIT_HELP = "19 of 20 requests should start within this time, such as 1 h."
REQUESTED = "The study of {pool} has been requested. It runs in the background; you can leave this page."
STATE_LABELS = {
    "waiting": "waits for its turn",
    "running": "runs",
    "done": "done",
    "cut_short": "cut short at its time limit: sizes are missing",
    "empty": "the period has no request to replay",
    "failed": "failed: the log of the worker has the reason",
}
RECOMMENDED = "{gpus} {model} are the fewest that keep the wait: 19 of 20 requests start within {wait}."
NONE_KEEPS = "None of these numbers of {model} keeps the wait."
SMALLEST_KEEPS = "It is the smallest number that was replayed; fewer may keep the wait too."
SAVED = "That is {cost} a month less than now."
EXTRA = "That is {cost} a month more than now."
AS_NOW = "That is the present number."
TRUST = "Replayed with the present {gpus} GPUs, 19 of 20 wait at most {replayed}; recorded were {recorded}."
TRUSTED = "The difference is {error}: the replay can be trusted."
NOT_TRUSTED = "The difference is {error}: the figures are only a rough estimate."
NO_TRUST = "There were no waits to compare with."
GPUS_CHANGED = (
    "The number of {model} changed in this time, so the recorded waits do not tell whether the replay can be "
    "trusted."
)
SIZE_COLUMNS = ("Change", "Half wait", "19 of 20 wait", "Not started", "Idle", "Cost a month", "Against now")
CSV_COLUMNS = (
    "model",
    "change_percent",
    "gpus",
    "requests",
    "p50_seconds",
    "p95_seconds",
    "not_started",
    "idle_share",
    "cost_per_month",
    "extra_cost_per_month",
    "currency",
    "keeps_limit",
)
WAIT_TRACE, COST_TRACE, LIMIT_TRACE = "19 of 20 wait at most", "cost a month", "the wait to keep"
CHART_TITLE = "{model}: number of GPUs and wait"
CHART_HINT = "p95 wait in hours on the left, cost of the GPUs a month on the right, by number of GPUs"
NOTHING_REPLAYED = "No number of GPUs is replayed yet."
MODEL_UNKNOWN = "model is {given}; allowed: empty for each model, or {allowed}."


def study_notes(facts: Mapping[str, Any], start: datetime, end: datetime, max_requests: int) -> list[str]:
    """Return the assumptions and omissions of the replay, one sentence each.

    ``max_requests`` is the largest number of requests that is replayed.
    """
    if not facts:
        return []
    days = (end - start).days
    notes = [
        f"{facts['requests']:,} requests and {facts['reservations']:,} reservations of {days:,} days were "
        "replayed with the present GPUs, quotas and rules of the pool, each host in service."
    ]
    if facts["requests_of_period"] > facts["requests"] + facts["never_started"]:
        notes.append(
            f"The quarter has {facts['requests_of_period']:,} requests; a replay takes at most "
            f"{max_requests:,}. So only the last {days:,} days of the quarter were replayed: the sizes fit "
            "the demand of these days."
        )
    if facts["never_started"]:
        notes.append(
            f"{facts['never_started']:,} requests were withdrawn before they started. Their run length is "
            "unknown, so they are left out."
        )
    if facts["not_compared"]:
        notes.append(
            f"{facts['not_compared']:,} requests were replayed, but their waits are not compared: they began "
            "before the period, ran in a reservation, or waited for other tasks of their array."
        )
    return notes
