"""Build the rows of a workload's attempts and of the decisions about it."""

from __future__ import annotations

from typing import Any

from portal import policy
from portal.models import User
from portal.reads.work import forced_moves, workload_details
from portal.reads.work.forced_moves import ForcedMove
from portal.reads.work.workload_details import WorkloadDetails
from portal.web.components.quantities import short_duration
from portal.web.work import workload_text
from portal.wording import expected_start_texts, reason_texts, state_labels
from portal.wording.pages import workload_pages
from scheduler.models import Run, Workload
from scheduler.runs.attempts import attempt_outcomes


def attempt_rows(details: WorkloadDetails, user: User) -> list[dict[str, Any]]:
    """Return one row per attempt, latest first, with its GPUs, times, outcome, and why it was stopped."""
    attempts: list[dict[str, Any]] = workload_details.attempts_of(details.workload)
    ended_runs = {
        attempt["number"]: [run for run in attempt["runs"] if run.outcome and run.ended_at is not None]
        for attempt in attempts
    }
    ended_runs = {number: runs for number, runs in ended_runs.items() if runs}
    endings = dict(zip(ended_runs, attempt_outcomes(ended_runs.values()), strict=True))
    return [_attempt_row(attempt, endings.get(attempt["number"]), details, user) for attempt in attempts]


def decision_rows(workload: Workload, user: User) -> list[dict[str, Any]]:
    """Return the decisions about a workload, newest first.

    ``place`` contains the terms of the placement score. It is empty for users who may not see all teams.
    """
    words = {
        "placed": "Placed",
        "evicted": "Preempted",
        "refused": "Waits",
        "restarted": workload_pages.RESTARTED,
        "ended": workload_pages.ENDED,
        "moved": workload_pages.MOVED,
    }
    return [
        {
            "at": decision.at,
            "word": words[decision.kind],
            "text": reason_texts.decision_sentence(decision.kind, decision.code, decision.numbers, user),
            "code": decision.code,
            "place": expected_start_texts.placement_score_terms(decision.numbers)
            if policy.sees_all_teams(user)
            else [],
        }
        for decision in forced_moves.workload_history(workload, 100)
    ]


# Not split: the function builds one dict for the row, whose values share the runs and the outcome.
def _attempt_row(
    attempt: dict[str, Any], ending: tuple[Run, str] | None, details: WorkloadDetails, user: User
) -> dict[str, Any]:
    """Return the row of one attempt.

    ``ending`` is (run, outcome): the run that ended the attempt, and the outcome of the attempt. It is None
    before the end.
    """
    runs: list[Run] = attempt["runs"]
    first = runs[0]
    ended_run, outcome = ending or (None, "")
    numbers: dict[str, Any] = {
        "exit_code": ended_run.exit_code if ended_run is not None else None,
        "ran": True,
    }
    if ended_run is not None and ended_run.gpu_events:
        numbers["event"] = ", ".join(ended_run.gpu_events)
    if details.stop is not None and attempt["number"] == details.workload.attempt:
        numbers |= workload_text.stop_numbers(details, user)
    move: ForcedMove | None = attempt["move"]
    why = reason_texts.reason_sentence(outcome, numbers, user) if outcome else ""
    if move is not None:
        move_reason = reason_texts.reason_sentence(move.code, move.numbers, user)
        why = f"{move_reason} {'' if outcome == move.code else why}".strip()
    ended = first.ended_at
    began = first.running_at or first.starting_at or first.placed_at
    return {
        "number": attempt["number"],
        "begins_anew": attempt["begins_anew"],
        "where": workload_text.location_text(attempt["held"]) or ", ".join(run.host.name for run in runs),
        "what": workload_text.held_units_text(attempt["held"]),
        "placed_at": first.placed_at,
        "running_at": first.running_at,
        "ended_at": ended,
        "lasted": short_duration(ended - began) if ended else "",
        "state": workload_text.ended_state(outcome, ran=True) if ended else str(first.state),
        "word": state_labels.OUTCOMES.get(outcome, ("", "Ended", ""))[1] if ended else "",
        "why": why,
        "checkpoint_at": max((run.checkpoint_at for run in runs if run.checkpoint_at), default=None),
        "uuids": [unit.uuid for unit in attempt["held"]],
        "runs": runs,
    }
