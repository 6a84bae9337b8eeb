"""Where work ran and what was decided about it: rows of its own page and of the page that says why."""

from __future__ import annotations

from typing import Any

from portal import policy
from portal.models import User
from portal.reads.work import forced_moves, workload_details
from portal.reads.work.forced_moves import ForcedMove
from portal.reads.work.workload_details import WorkloadDetails
from portal.templatetags.gpupool import duration
from portal.web.work import workload_card
from portal.wording import expected_start_texts, reason_texts, state_labels
from scheduler.models import Run, Workload
from scheduler.runs.attempts import attempt_outcomes


def attempt_rows(piece: WorkloadDetails, user: User) -> list[dict[str, Any]]:
    """Each attempt, the latest first: where, when, how it ended and why it was told to leave."""
    attempts: list[dict[str, Any]] = workload_details.attempts_of(piece.workload)
    ended = {
        found["number"]: [run for run in found["runs"] if run.outcome and run.ended_at is not None]
        for found in attempts
    }
    some = {number: runs for number, runs in ended.items() if runs}
    how = dict(zip(some, attempt_outcomes(some.values()), strict=True))
    return [_attempt_row(found, how.get(found["number"]), piece, user) for found in attempts]


def decision_rows(workload: Workload, user: User) -> list[dict[str, Any]]:
    """What was decided about it, the newest first: ``at``, ``word``, ``text``, ``code``, ``place`` (why these GPUs)."""
    words = {
        "placed": "Placed",
        "evicted": "Told to make room",
        "refused": "Waits",
        "restarted": "All of it starts again",
        "ended": "All of it ends",
        "moved": "Told to leave its host",
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


def _attempt_row(
    found: dict[str, Any], how: tuple[Run, str] | None, piece: WorkloadDetails, user: User
) -> dict[str, Any]:
    """``how`` it ended; None before any of it has."""
    runs: list[Run] = found["runs"]
    first = runs[0]
    told, outcome = how or (None, "")
    numbers: dict[str, Any] = {"exit_code": told.exit_code if told is not None else None, "ran": True}
    if told is not None and told.gpu_events:
        numbers["event"] = ", ".join(told.gpu_events)
    if piece.stop is not None and found["number"] == piece.workload.attempt:
        numbers |= workload_card.stop_numbers(piece, user)
    move: ForcedMove | None = found["move"]
    why = reason_texts.reason_sentence(outcome, numbers, user) if outcome else ""
    if move is not None:
        why = f"{reason_texts.reason_sentence(move.code, move.numbers, user)} {'' if outcome == move.code else why}".strip()
    ended = first.ended_at
    began = first.running_at or first.starting_at or first.placed_at
    return {
        "number": found["number"],
        "begins_anew": found["begins_anew"],
        "where": workload_card.location_text(found["held"]) or ", ".join(run.host.name for run in runs),
        "what": workload_card.held_units_text(found["held"]),
        "placed_at": first.placed_at,
        "running_at": first.running_at,
        "ended_at": ended,
        "lasted": duration(ended - began) if ended else "",
        "state": workload_card.ended_state(outcome, ran=True) if ended else str(first.state),
        "word": state_labels.OUTCOMES.get(outcome, ("", "Ended", ""))[1] if ended else "",
        "why": why,
        "checkpoint_at": max((run.checkpoint_at for run in runs if run.checkpoint_at), default=None),
        "uuids": [unit.uuid for unit in found["held"]],
        "runs": runs,
    }
