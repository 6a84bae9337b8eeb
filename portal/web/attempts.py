"""Where work ran and what was decided about it: rows of its own page and of the page that says why."""

from __future__ import annotations

from typing import Any

from portal import policy
from portal.models import User
from portal.selectors import moves, work
from portal.selectors.moves import Move
from portal.selectors.work import Piece
from portal.templatetags.gpupool import duration
from portal.web import home_cards
from portal.wording import expected_starts, reasons, work_states
from scheduler.core.reasons import Code
from scheduler.models import Run, Workload


def rows(piece: Piece, user: User) -> list[dict[str, Any]]:
    """Each attempt, the latest first: where, when, how it ended and why it was told to leave."""
    return [_row(found, piece, user) for found in work.attempts(piece.workload)]


def decisions(workload: Workload, user: User) -> list[dict[str, Any]]:
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
            "text": reasons.decision(decision.kind, decision.code, decision.numbers, user),
            "code": decision.code,
            "place": expected_starts.place_terms(decision.numbers) if policy.sees_all_teams(user) else [],
        }
        for decision in moves.decisions(workload, 100)
    ]


def _row(found: dict[str, Any], piece: Piece, user: User) -> dict[str, Any]:
    runs: list[Run] = found["runs"]
    first = runs[0]
    outcome = next((run.outcome for run in runs if run.outcome), "")
    exit_code = next((run.exit_code for run in runs if run.exit_code is not None), None)
    numbers: dict[str, Any] = {"exit_code": exit_code, "ran": True}
    told = next((run.gpu_events for run in runs if run.gpu_events), None)
    if told is not None:
        outcome, numbers = str(Code.GPU_ERROR), numbers | {"event": ", ".join(told)}
    if piece.stop is not None and found["number"] == piece.workload.attempt:
        numbers |= home_cards.who_stopped(piece, user)
    move: Move | None = found["move"]
    why = reasons.reason(outcome, numbers, user) if outcome else ""
    if move is not None:
        why = f"{reasons.reason(move.code, move.numbers, user)} {'' if outcome == move.code else why}".strip()
    ended = first.ended_at
    began = first.running_at or first.starting_at or first.placed_at
    return {
        "number": found["number"],
        "begins_anew": found["begins_anew"],
        "where": home_cards.where(found["held"]) or ", ".join(run.host.name for run in runs),
        "what": home_cards.holds(found["held"]),
        "placed_at": first.placed_at,
        "running_at": first.running_at,
        "ended_at": ended,
        "lasted": duration(ended - began) if ended else "",
        "state": home_cards.ended_state(outcome, ran=True) if ended else str(first.state),
        "word": work_states.OUTCOMES.get(outcome, ("", "Ended", ""))[1] if ended else "",
        "why": why,
        "checkpoint_at": max((run.checkpoint_at for run in runs if run.checkpoint_at), default=None),
        "uuids": [unit.uuid for unit in found["held"]],
        "runs": runs,
    }
