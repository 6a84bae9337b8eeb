"""Build the sentences of the advice for repeated work: the suggested request, and the evidence."""

from __future__ import annotations

from portal.wording.chargeback.overview_texts import Finding
from portal.wording.formatting import with_count
from portal.wording.run_report_texts import advice_headline
from telemetry.core.capacity.right_sizing import RightSizing
from telemetry.core.request_advice import Advice


def headline(sizing: RightSizing) -> str:
    """Return what to ask for next time, in the words of the report of a run."""
    return advice_headline(Advice(sizing.code, dict(sizing.numbers)))


def evidence(sizing: RightSizing, project: str) -> str:
    """Return how many runs have the advice, what they asked for and what they used."""
    runs = with_count(sizing.runs, "run")
    which = f"{sizing.advised_runs} of {runs}" if sizing.advised_runs < sizing.runs else runs
    numbers = sizing.numbers
    if sizing.code == "fewer_gpus":
        what = f"asked for {with_count(numbers['asked'], 'GPU')} and used {numbers['busy']}"
    elif sizing.code == "smaller_slice":
        what = f"fit a slice {numbers['profile']}"
    else:
        what = f"held {with_count(numbers['asked'], 'GPU')} and used none"
    return f"{which} of {sizing.name} in {project} {what}."


def sizing_finding(count: int, saved_hours: float, per_month: str) -> Finding | None:
    """Return how much all advice together saves. ``per_month`` is "" if it is unknown."""
    if not count:
        return None
    money = f", {per_month} a month" if per_month else ""
    noun = "piece of advice saves" if count == 1 else "pieces of advice save"
    return Finding(f"{count:,} {noun} {saved_hours:,.0f} GPU-hours{money}.")
