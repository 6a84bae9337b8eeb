"""Define texts of the page on which a month is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

HOST = "host {host}"
SAMPLES = {
    "waiting": "host {host} still owes samples of {hours} hours",
    "lost": "host {host} lost {lost_seconds} s of samples in {hours} hours",
}
UNMAPPED = "{name} has no cost centre. {who_acts}"
UNPRICED = "{model} has no price"
PAYERS = {
    "unmapped projects": "project {name} has no cost centre: its lead or finance names one",
    "unmapped dedicated pools": "dedicated pool {name} has no cost centre: finance names one",
    "teams that pay for idle time without a cost centre": (
        "team {name} pays for idle time and has no cost centre"
    ),
    "not charged": "{name} has a new cost centre: the next charging run writes its lines",
}
UNDECIDED = "{number} of {cost_centre}, {amount}, waits for a decision; its author {author} can't approve it"
WRONG_SECONDS = "GPU {gpu} of host {host}: {slot_seconds} slot-seconds are charged, {expected} are right"
UNBALANCED = "pool {pool}: {left} and {cost}"
FOCUS = "The FOCUS 1.4 files obey every rule"
FOCUS_ROWS = "{rows:,} rows; this check keeps no month open"
PROPOSED = "{month:%B %Y} is proposed. Another person can close it until {until:%-d %b %H:%M} UTC."
REHEARSED = "{month:%B %Y} is rehearsed: {passed} of {checks} checks pass. Nothing has changed."
CLOSERS = {False: "finance", True: "another person, within 3 days"}
STEP_NAMES = {
    "checks": "Checks",
    "look": "Look",
    "propose": "Propose",
    "close": "Close",
    "closed": "Closed",
}


def close_steps(
    *,
    passed: int,
    checks: int,
    statements: int,
    proposer: str,
    closer: str,
    over: bool,
    two_people: bool,
) -> list[dict[str, Any]]:
    """Return the steps of a close for the component ``steps``.

    ``proposer`` and ``closer`` are names; they are empty if the step is not done.
    """
    signed = bool(proposer or closer)
    ready = over and passed == checks
    details: Mapping[str, str] = {
        "checks": f"{passed} of {checks} pass",
        "look": f"{statements} statements",
        "propose": proposer or "first person",
        "close": closer or CLOSERS[two_people],
        "closed": "for good",
    }
    done = {
        "checks": ready or signed,
        "look": signed,
        "propose": bool(proposer),
        "close": bool(closer),
        "closed": bool(closer),
    }
    names = [name for name in STEP_NAMES if two_people or name != "propose"]
    present = next((name for name in names if not done[name]), "")
    return [
        {
            "name": STEP_NAMES[name],
            "detail": details[name],
            "state": "done" if done[name] else "now" if name == present else "todo",
        }
        for name in names
    ]


def rehearsed(month: Any, checks: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence after a rehearsal. Each check has ``ok``."""
    passed = sum(1 for check in checks if check["ok"])
    return REHEARSED.format(month=month, passed=passed, checks=len(checks))


def proposed(month: Any, until: datetime) -> str:
    """Return the sentence after a proposal."""
    return PROPOSED.format(month=month, until=until)
