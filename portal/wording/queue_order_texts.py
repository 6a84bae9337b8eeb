"""Build sentences that say which of two workloads comes first in the queue, and by which rule."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from portal.wording.formatting import (
    PRIORITY_WORDS,
    Numbers,
    duration,
    gpus,
    model_name,
    time_of_day,
    with_count,
)
from portal.wording.reason_numbers import ReasonNumbers
from portal.wording.state_labels import workload_state_label
from scheduler.core.model.waiting_queue import MAX_RUNTIME_PENALTY_SECONDS, RUNTIME_WEIGHT
from scheduler.core.queue.team_queue import (
    LARGE_JOB_UNITS,
    LARGE_OLDEST_FIRST_AFTER_SECONDS,
    OLDEST_FIRST_AFTER_SECONDS,
)
from scheduler.models import Workload


def not_comparable(mine: Workload, theirs: Workload) -> str:
    """Return the reason why two workloads cannot be compared."""
    if mine.state == "ended":
        return (
            f"{mine.name} has ended ({workload_state_label(mine)[1].lower()}), so it is no longer in the "
            "queue."
        )
    if mine.state != "queued":
        return f"{mine.name} has its GPUs: no other work is ahead of it."
    if mine.pk == theirs.pk:
        return (
            f"That is {mine.name} itself. Name another workload that is queued or runs in {mine.pool.name}."
        )
    if theirs.state == "ended":
        return (
            f"{theirs.name} has ended ({workload_state_label(theirs)[1].lower()}), so it is no longer ahead "
            f"of {mine.name}."
        )
    return (
        f"{theirs.name} is in {theirs.pool.name} and {mine.name} waits in {mine.pool.name}: "
        "they need different GPUs."
    )


# Why a workload comes first, in a few words, by criterion (see scheduler.core.queue.turn.TurnCriterion).
EARLIER_BECAUSE: dict[str, str] = {
    "reservation": "runs inside a reservation",
    "room_is_made": "GPUs are already being freed for it",
    "within_guarantee": "within its team's guarantee",
    "below_guarantee": "its team is below its guarantee",
    "fair_share": "its team used less of its fair share",
    "own_team": "its turn comes before the next turn of your team",
    "priority": "has a higher priority in your team",
    "aged": "has waited longer than the limit",
    "submitted": "has waited longer",
    "place": "was submitted earlier, or is shorter",  # if only one applies, see ``earlier_because``
    "number": "was submitted first",
}


def earlier_because(part: str, earlier: bool, shorter: bool) -> str:
    """Return in a few words why a workload comes first. ``part`` is the criterion that decides.

    ``earlier`` is True if the workload was submitted first. ``shorter`` is True if its expected run time is
    shorter.
    """
    if part != "place" or not (earlier or shorter):
        return EARLIER_BECAUSE[part]
    if earlier:
        return "was submitted earlier, and is shorter" if shorter else "was submitted earlier"
    return "is shorter, though submitted later"


# The rules of queue order, each with its sentence. Values of the two workloads have names that begin with
# ``mine_`` or ``theirs_`` (see portal.reads.work.wait_explanation.compare_in_queue).
QUEUE_ORDER_RULES: dict[str, Callable[[ReasonNumbers], str]] = {
    "there_first": lambda f: (
        f"It has had its GPUs since {_time_text(f, 'theirs_started')}; yours was submitted at "
        f"{_time_text(f, 'mine_submitted')}. Running work is only stopped for a team's guarantee, for a "
        "higher priority in its own team, or for a reservation."
    ),
    "fit": lambda f: (
        f"Its turn comes after yours, but it asks for {_request_text(f, 'theirs')}, and free GPUs fit that "
        f"request. They do not fit yours: {_request_text(f, 'mine')}. Work that starts before yours may not "
        "delay its expected start."
    ),
    "turned_away": lambda f: "Your workload is not considered at present; its own page gives the reason.",
    "reservation": lambda f: (
        "It runs inside a reservation, and these GPUs were promised to its project earlier."
    ),
    "room_is_made": lambda f: "Other work is already being preempted for it; the freed GPUs are kept for it.",
    "within_guarantee": lambda f: (
        f"Its request is within the guarantee of {f.plain('', 'theirs_team')}{_quota_text(f, 'theirs')}; "
        f"your request is not within the guarantee of {f.plain('', 'mine_team')}{_quota_text(f, 'mine')}. "
        "Guaranteed work comes before borrowed work."
    ),
    "below_guarantee": lambda f: (
        f"{f.plain('', 'theirs_team')} holds less than its guarantee{_quota_text(f, 'theirs')}; "
        f"{f.plain('', 'mine_team')} would borrow the GPUs for yours{_quota_text(f, 'mine')}. "
        "Teams below their guarantee come before teams that borrow."
    ),
    "fair_share": lambda f: (
        "Both would borrow, and the team that used less for its weight borrows first: "
        f"{f.plain('', 'theirs_team')} {f.get('theirs_share') or 0:,.0f} GPU-hours, "
        f"{f.plain('', 'mine_team')} {f.get('mine_share') or 0:,.0f}"
        f"{'. Past use halves every ' + duration(f.get('half_life')) if f.get('half_life') else ''}."
    ),
    "own_team": lambda f: (
        f"Other work of {f.plain('', 'mine_team')} is ahead of yours, and this workload's turn comes before "
        "the next turn of that team."
    ),
    "priority": lambda f: (
        f"Both belong to {f.plain('', 'mine_team')}; its priority is "
        f"{PRIORITY_WORDS.get(f.get('theirs_priority'), '')}, yours "
        f"{PRIORITY_WORDS.get(f.get('mine_priority'), '')}."
    ),
    "aged": lambda f: (
        f"It has waited for {duration(f.get('theirs_waited'))}. A team's oldest job comes before its other "
        f"jobs of the same priority after {duration(OLDEST_FIRST_AFTER_SECONDS)}; its oldest job of more "
        f"than {LARGE_JOB_UNITS} GPUs does so after {duration(LARGE_OLDEST_FIRST_AFTER_SECONDS)}."
    ),
    "submitted": lambda f: (
        "Both have waited so long that only the time of submission counts: it was submitted at "
        f"{_time_text(f, 'theirs_submitted')}, yours at {_time_text(f, 'mine_submitted')}."
    ),
    "place": lambda f: (
        f"The place in the queue is the time of submission plus {RUNTIME_WEIGHT} times the expected run "
        f"time, at most {duration(MAX_RUNTIME_PENALTY_SECONDS)} later. "
        f"Its numbers: submitted {_time_text(f, 'theirs_submitted')}, expected to run "
        f"{duration(f.get('theirs_predicted'))}, so {_time_text(f, 'theirs_place')}. Your numbers: "
        f"submitted {_time_text(f, 'mine_submitted')}, expected to run "
        f"{duration(f.get('mine_predicted'))}, so {_time_text(f, 'mine_place')}. Expected run times come "
        "from similar jobs that have finished."
    ),
    "number": lambda f: "All other rules rank them equal; it was submitted first.",
}


def queue_order_sentence(rule: str, numbers: Numbers) -> str:
    """Return the sentence of ``rule``, a key of QUEUE_ORDER_RULES that decides the order of two workloads."""
    return QUEUE_ORDER_RULES[rule](ReasonNumbers(numbers, None))


def start_without_other(mine: str, theirs: str, why_not: str) -> str:
    """Return a sentence that says whether ``mine`` would start now without ``theirs``.

    ``why_not`` is the reason why ``mine`` would not start; "" if ``mine`` would start.
    """
    if not why_not:
        return f"Without {theirs}, {mine} would start now."
    return f"Even without {theirs}, {mine} would not start now. {why_not}"


def _request_text(f: ReasonNumbers, whose: str) -> str:
    """Return the request of ``whose`` (mine or theirs): ``8 GPUs on each of 2 hosts``, ``1 × 1g.10gb``."""
    units, profile = int(f.get(f"{whose}_units") or 0), f.get(f"{whose}_profile")
    asked = f"{units} × {profile}" if profile else with_count(units, "GPU")
    return f"{asked} on each of {f.get(f'{whose}_hosts')} hosts" if f.is_plural(f"{whose}_hosts") else asked


def _quota_text(f: ReasonNumbers, whose: str) -> str:
    """Return the guarantee and the held GPUs of a workload's team by model, in brackets.

    ``whose`` is "mine" or "theirs".
    """
    lines = [
        f"{model_name(name)}: {gpus(guaranteed)} guaranteed, holds {gpus(held)}"
        for name, guaranteed, held in f.get(f"{whose}_quota") or ()
    ]
    return f" ({'; '.join(lines)})" if lines else " (none in this pool)"


def _time_text(f: ReasonNumbers, name: str) -> str:
    """Return the time that is stored under ``name`` as ``14:20``, with the day if it is not today."""
    at, now = f.get(name), f.get("now")
    if at is None or now is None:
        return "an unknown time"
    return time_of_day(datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC))
