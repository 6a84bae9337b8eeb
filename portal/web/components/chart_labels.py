"""Build labels that stand beside the lines and marks of a chart, so that nobody has to look them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def line_label(x: Any, y: float, text: str, **changes: Any) -> dict[str, Any]:
    """Return an annotation that stands left of a point and above it."""
    place = {"x": x, "y": y, "xanchor": "right", "yanchor": "bottom"}
    return {**place, "text": text, "showarrow": False, "font": {"size": 11}, **changes}


def end_labels(
    x: Sequence[Any], y: Sequence[float | None], text: str, **changes: Any
) -> list[dict[str, Any]]:
    """Return the label of a line at its last known point; nothing for a line without values."""
    known = [(at, value) for at, value in zip(x, y, strict=True) if value is not None]
    return [line_label(*known[-1], text, **changes)] if known else []
