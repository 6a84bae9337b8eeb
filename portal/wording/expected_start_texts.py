"""Describe when work is expected to start, how accurate forecasts were, and what would start sooner."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from portal.wording.formatting import PRIORITY_WORDS, Numbers, duration, model_name, time_of_day, window
from scheduler.core.explain.start_ranges import MIN_OUTCOMES, EstimateAccuracy
from scheduler.core.what_if.alternatives import Alternative, ChangedField
from scheduler.cycle import core_values
from scheduler.models import Workload


def expected_start_text(
    expected: datetime | None, likely: tuple[datetime, datetime] | None, now: datetime, *, short: bool = False
) -> str:
    """Return when a workload is expected to start, such as ``likely between 14:20 and 15:05``.

    With ``short``, the text is ``14:20 – 15:05``. Without a range, it is ``about 14:20``. Without an expected
    start, it is ``not known``.
    """
    if expected is None:
        return "not known"
    soon = expected <= now + timedelta(seconds=30)
    if likely is None or likely[1] <= now + timedelta(minutes=2):
        return "any moment" if soon else f"about {time_of_day(expected, now)}"
    first, last = likely
    until = time_of_day(
        last, now if timezone.localtime(first).date() == timezone.localtime(now).date() else first
    )
    if soon:
        return f"now – {until}" if short else f"any moment, likely by {until}"
    begin = "now" if first <= now + timedelta(minutes=1) else time_of_day(first, now)
    return f"{begin} – {until}" if short else f"likely between {begin} and {until}"


def placement_score_terms(numbers: Numbers) -> list[tuple[str, str]]:
    """Return (name, value in GPUs) for each term of the placement score; [] if the score was not recorded."""
    terms = [numbers.get(name) for name in ("waste_before", "waste_after", "model_price", "slot_price")]
    if not all(isinstance(term, int) for term in terms):
        return []
    before, after, model, slot = (term / 1000 for term in terms if isinstance(term, int))
    return [
        ("Unusable GPUs of its hosts before the start", f"{before:.3f} GPU"),
        ("and after", f"{after:.3f} GPU"),
        ("Price of this model, which other requests depend on", f"{model:.3f} GPU"),
        ("Price of space that larger requests need", f"{slot:.3f} GPU"),
        (
            "Score: GPUs saved minus both prices; the highest wins",
            f"{before - after - model - slot:+.3f} GPU",
        ),
    ]


def alternative_request_text(other: Alternative) -> str:
    """Return the text of a changed request: ``2 × A100 40GB``, ``2 hosts × 8 H100 80GB, at most 4 h``."""
    ask = other.ask
    models = " or ".join(map(model_name, ask.models)) or "any GPU"
    unit = f"{ask.profile} of {models}" if ask.profile else models
    words = [f"{ask.hosts} hosts × {ask.units} {unit}" if ask.hosts > 1 else f"{ask.units} × {unit}"]
    ways = {
        ChangedField.RUNTIME: f"at most {duration(other.max_runtime_seconds)}",
        ChangedField.PREEMPTIBLE: "if it may be preempted",
        ChangedField.PRIORITY: f"with {PRIORITY_WORDS[int(other.priority)]} priority",
    }
    return ", ".join(words + [ways[changed] for changed in other.changed if changed in ways])


def alternative_window_text(workload: Workload, start: datetime, end: datetime, needs_approval: bool) -> str:
    """Return the text for a window in which a workload's request can be reserved.

    It names the request and the window, and says whether the reservation needs an operator's approval.
    """
    asked = alternative_request_text(Alternative(core_values.ask_from_row(workload), False, None))
    needs = "needs an operator's approval" if needs_approval else "is confirmed at once"
    return f"{asked}, {window(start, end)}: {needs}"


def forecast_accuracy_text(past: EstimateAccuracy) -> str:
    """Return sentences about the accuracy of a pool's past start forecasts.

    They also say whether a range can be derived, and how many of the waits were simulated.
    """
    if past.simulated:
        whose = "All" if past.simulated == past.started_count else f"{past.simulated} of {past.started_count}"
        return (
            f"{_past_starts(past)} {whose} of these waits are simulated: the engine computed the demo's past."
        )
    return _past_starts(past)


def _past_starts(past: EstimateAccuracy) -> str:
    if not past.started_count:
        return "No workload waited and started in this pool lately, so there is no range yet."
    off = f"half of the expected starts were off by more than {duration(past.median_error)}"
    if past.started_count == 1:
        was = f"its expected start was off by {duration(past.median_error)}"
        return f"Only 1 workload waited and started in this pool lately, too few for a range; {was}."
    if not past.has_enough_outcomes:
        return (
            f"Only {past.started_count} workloads waited and started in this pool lately, "
            f"too few for a range; {off}."
        )
    if past.with_range < MIN_OUTCOMES:
        return (
            f"The range comes from the last {past.started_count} workloads that waited in this pool; {off}. "
            "Too few of them had a range to say how many started within it. It is no guarantee."
        )
    return (
        f"Of the last {past.with_range} workloads with a range in this pool, "
        f"{round(100 * past.started_in_range_count / past.with_range)} % "
        f"started by its upper end; {off}. It is no guarantee."
    )
