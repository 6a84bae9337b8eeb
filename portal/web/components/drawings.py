"""Draw bars and small curves as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe


def use_step(share: float | None) -> str:
    """Return the CSS class that colours a utilisation: ``use-0`` to ``use-6``; ``gpu-unknown`` for None."""
    return "gpu-unknown" if share is None else f"use-{min(6, max(0, int(share * 7)))}"


def _polyline_parts(values: Sequence[float | None], top: float) -> Iterable[list[tuple[float, float]]]:
    """Yield one list of points for each part of the curve without gaps, in a box 200 wide and 36 high."""
    step = 200 / max(1, len(values) - 1)
    part: list[tuple[float, float]] = []
    for index, value in enumerate(values):
        if value is None:
            if part:
                yield part
            part = []
        else:
            part.append((index * step, 36 - 36 * min(1.0, max(0.0, float(value) / top))))
    if part:
        yield part


def spark(values: Sequence[float | None], label: str, top: float = 1.0) -> SafeString:
    """Draw a small curve of evenly spaced values from 0 to ``top``. None leaves a gap in the curve.

    ``label`` is the text for screen readers.
    """
    lines: list[SafeString] = []
    for part in _polyline_parts(values, top):
        if len(part) == 1:
            part = [part[0], (part[0][0] + 1, part[0][1])]
        points = " ".join(f"{x:.0f},{y:.1f}" for x, y in part)
        base = f"{part[0][0]:.0f},36 {points} {part[-1][0]:.0f},36"
        lines.append(format_html('<polygon points="{}"/><polyline points="{}"/>', base, points))
    drawing = format_html_join("", "{}", ((line,) for line in lines))
    return format_html(
        '<figure><svg class="spark" viewBox="0 0 200 36" preserveAspectRatio="none" aria-hidden="true">'
        '<line x2="200" y1="36" y2="36"/>{}</svg>'
        '<figcaption class="visually-hidden">{}</figcaption></figure>',
        drawing,
        label,
    )


def bar(
    scale: float | Decimal,
    used: float | Decimal | None = 0,
    borrowed: float | Decimal = 0,
    forecast: float | Decimal = 0,
    over: float | Decimal = 0,
    mark: float | Decimal | None = None,
    label: str = "",
    size: str = "small",
) -> SafeString:
    """Draw one bar with a scale from 0 to ``scale``.

    Its parts follow each other: used, borrowed (hatched), forecast (grey hatch) and over (red). ``mark`` is
    the position of a tick, such as a guarantee or a budget. ``size`` is small (8 px high), medium (12 px) or
    large (16 px). Without a label, the bar is hidden from screen readers, because the text next to it
    contains the same numbers.
    """
    height = {"small": 8, "medium": 12, "large": 16}[size]
    whole = float(scale) or 1.0
    left = 0.0
    drawn: list[SafeString] = []
    for name, part in (("used", used), ("borrowed", borrowed), ("forecast", forecast), ("over", over)):
        width = min(100.0 - left, max(0.0, float(part or 0) / whole * 100))
        if width > 0:
            drawn.append(
                format_html(
                    '<rect class="{}" x="{}%" width="{}%" height="{}"/>',
                    name,
                    f"{left:.2f}",
                    f"{width:.2f}",
                    height,
                )
            )
            left += width
    if mark is not None:
        at = min(99.5, max(0.0, float(mark) / whole * 100))
        drawn.append(
            format_html('<rect class="tick" x="{}%" width="2" y="-2" height="{}"/>', f"{at:.2f}", height + 4)
        )
    aria = format_html('role="img" aria-label="{}"', label) if label else mark_safe('aria-hidden="true"')
    return format_html(
        '<svg class="bar {}" {}><rect class="track" width="100%" height="{}"/>{}</svg>',
        size,
        aria,
        height,
        format_html_join("", "{}", ((part,) for part in drawn)),
    )
