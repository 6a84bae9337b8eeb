"""Explain why charges of a closed month were corrected."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

SENTENCES = {
    "host_silent": "host {host} was silent {span}",
    "host_maintenance": "host {host} was in maintenance {span}",
    "host_unhealthy": "host {host} was out of service {span}",
    "host_well": "host {host} was in service {span}",
    "work_ended": "{workload} had ended at {until}",
    "work_preempted": "{workload} was preempted, and its work {span} was lost",
    "cost_centre_named": "cost centre {cost_centre} was named for time that had none",
    "cost_centre_changed": "the cost centre was changed to {cost_centre}",
    "work_lost": "the hardware under {workload} failed, and its work {span} was lost",
}
UNKNOWN_CAUSE = "a fact became known after the close"


def cause_sentence(code: str, numbers: Mapping[str, Any]) -> str:
    """Return the reason of a correction, such as "host h2 was silent 14 Oct 03:00-05:00 UTC".

    Times are in UTC, also in a month in another zone, because the same sentence is in every file.
    """
    sentence = SENTENCES.get(code)
    if sentence is None:
        return UNKNOWN_CAUSE
    since, until = _time(numbers.get("since")), _time(numbers.get("until"))
    return sentence.format(
        host=numbers.get("host", ""),
        cost_centre=numbers.get("cost_centre", ""),
        workload=numbers.get("workload", ""),
        span=_span(since, until),
        until=f"{until:%-d %b %H:%M} UTC" if until else "",
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _span(since: datetime | None, until: datetime | None) -> str:
    """Return a span of time in UTC. The day is written once if the span ends on the same day."""
    if since is None:
        return ""
    if until is None:
        return f"from {since:%-d %b %H:%M} UTC"
    if since.date() == until.date():
        return f"{since:%-d %b %H:%M}-{until:%H:%M} UTC"
    return f"{since:%-d %b %H:%M} to {until:%-d %b %H:%M} UTC"
