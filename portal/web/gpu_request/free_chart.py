"""Draw the chart of free GPUs around the requested window."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.web.components.quantities import gpu_model, short_duration
from portal.wording.pages import request_pages
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.models import Pool
from scheduler.reads import capacity as engine

CHART_SPANS = (timedelta(hours=48), timedelta(days=7), timedelta(days=28))
CHART_STEPS = 48
WORKING_HOURS = range(8, 20)
CHART_HEIGHT, CHART_TOP, CHART_BASE = 148, 24, 128


def free_units_chart(
    pool: Pool,
    model: str,
    profile: str,
    asked: int,
    start: datetime,
    end: datetime,
    now: datetime,
    *,
    fits: bool,
) -> dict[str, Any] | None:
    """Return the chart of free units before, during and after the requested window.

    A unit is free if it can still be promised to a reservation. Horizontal positions are in per cent,
    vertical positions in pixels. The window of a request that does not fit is red where too few units are
    free, or in whole if another limit is the reason. Return None if the request names no model.
    """
    if not model:
        return None
    from_, span = _chart_span(start, end, now)
    step = span / CHART_STEPS
    seconds = int(step.total_seconds())
    free = engine.promisable_units(
        pool, model=model, profile=profile, start=from_, end=from_ + span, step_seconds=seconds, now=now
    )
    most = max([count for _, count in free] + [asked, 1])
    scale = (CHART_BASE - CHART_TOP) / most
    in_range = [count for at, count in free if _overlaps(at, step, start, end)]
    # Enough units are free, but the request is refused: its whole window is red.
    refused = not fits and min(in_range, default=asked) >= asked
    bars = _bars(free, None if refused else asked, start, end, step, scale)
    return {
        "title": f"{gpu_model(model)}{', ' + profile if profile != WHOLE_GPU_PROFILE else ''} free, "
        f"{_span_text(span)}",
        "label": _chart_description(model, in_range, asked, start, end),
        "bars": bars,
        "texts": [_bar_label(bar) for bar in bars if bar["steps"] >= 3],
        "ask_y": round(CHART_BASE - asked * scale, 1),
        "asked": asked,
        "height": CHART_HEIGHT,
        "base": CHART_BASE,
        "nights": _nights(from_, span),
        "ticks": _ticks(from_, span),
        "range": _range_mark(from_, span, start, end),
        "fits": fits,
        "refused": refused,
        "least": min(in_range, default=None),
        "most": max(in_range, default=None),
        "now": now,
    }


def _chart_span(start: datetime, end: datetime, now: datetime) -> tuple[datetime, timedelta]:
    hour = now.replace(minute=0, second=0, microsecond=0)
    first = (
        hour
        if start - hour < CHART_SPANS[0] / 2
        else start.replace(minute=0, second=0, microsecond=0) - timedelta(hours=12)
    )
    first = max(first, hour)
    span = next((span for span in CHART_SPANS if first + span >= end), CHART_SPANS[-1])
    return first, span


def _overlaps(at: int, step: timedelta, start: datetime, end: datetime) -> bool:
    begin = datetime.fromtimestamp(at, UTC)
    return begin < end and begin + step > start


def _bars(
    free: list[tuple[int, int]],
    asked: int | None,
    start: datetime,
    end: datetime,
    step: timedelta,
    scale: float,
) -> list[dict[str, Any]]:
    """Return the rectangles of the chart.

    ``asked`` is None if the request is refused although enough units are free. Consecutive steps with the
    same number of free units share one rectangle. A rectangle ends where the requested window begins or ends.
    """
    bars: list[dict[str, Any]] = []
    for place, (at, count) in enumerate(free):
        inside = _overlaps(at, step, start, end)
        short = asked is None or count < asked
        kind = "free-enough" if not inside else "free-short" if short else "free-range"
        if bars and (bars[-1]["count"], bars[-1]["kind"]) == (count, kind):
            bars[-1]["steps"] += 1
            bars[-1]["width"] = f"{bars[-1]['steps'] * 100 / CHART_STEPS:.3f}"
            continue
        height = round(count * scale, 1)
        bars.append(
            {
                "x": f"{place * 100 / CHART_STEPS:.3f}",
                "width": f"{100 / CHART_STEPS:.3f}",
                "y": round(CHART_BASE - height, 1),
                "height": height,
                "kind": kind,
                "count": count,
                "place": place,
                "steps": 1,
            }
        )
    return bars


def _bar_label(bar: dict[str, Any]) -> dict[str, Any]:
    """Return the label above a bar: the number of free units."""
    middle = (bar["place"] + bar["steps"] / 2) * 100 / CHART_STEPS
    return {
        "x": f"{middle:.3f}",
        "y": max(20, bar["y"] - 4),
        "text": bar["count"],
        "bad": bar["kind"] == "free-short",
    }


def _nights(first: datetime, span: timedelta) -> list[dict[str, str]]:
    if span > timedelta(days=8):
        return []
    day = timezone.localtime(first).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    nights = []
    while day < first + span:
        left = max(0.0, (day + timedelta(hours=20) - first) / span)
        right = min(1.0, (day + timedelta(hours=32) - first) / span)
        if right > left:
            nights.append({"x": f"{left * 100:.3f}", "width": f"{(right - left) * 100:.3f}"})
        day += timedelta(days=1)
    return nights


def _ticks(first: datetime, span: timedelta) -> list[dict[str, Any]]:
    step = (
        timedelta(hours=12)
        if span <= timedelta(days=2)
        else timedelta(days=1)
        if span <= timedelta(days=7)
        else timedelta(days=7)
    )
    at = timezone.localtime(first).replace(hour=0, minute=0, second=0, microsecond=0)
    ticks = [{"x": "0.000", "text": f"{timezone.localtime(first):%H:%M}", "anchor": ""}]
    while at < first + span:
        share = (at - first) / span
        if 0.1 < share < 0.97:
            text = f"{at:%H:%M}" if at.hour else f"{at:%a} {at.day}"
            ticks.append({"x": f"{share * 100:.3f}", "text": text, "anchor": "anchor-middle"})
        at += step
    return ticks


def _range_mark(first: datetime, span: timedelta, start: datetime, end: datetime) -> dict[str, str]:
    left = min(1.0, max(0.0, (start - first) / span))
    right = min(1.0, max(left, (end - first) / span))
    return {
        "x": f"{left * 100:.3f}",
        "width": f"{(right - left) * 100:.3f}",
        "text": f"Your {short_duration(end - start)}",
    }


def _span_text(span: timedelta) -> str:
    return "next 48 h" if span == CHART_SPANS[0] else f"{span.days} days"


def _chart_description(model: str, in_range: list[int], asked: int, start: datetime, end: datetime) -> str:
    if not in_range:
        return request_pages.CHART_WITHOUT_RANGE.format(model=gpu_model(model))
    return request_pages.CHART_OF_RANGE.format(
        model=gpu_model(model),
        length=short_duration(end - start),
        least=min(in_range),
        most=max(in_range),
        asked=asked,
    )
