"""Define texts of the panel with the progress of the close of a month."""

from __future__ import annotations

EQUATION = "The equation adds up to the cost of the GPUs"
MAPPED = "Every charged line has a cost centre"
REHEARSED = "The checks of a close pass"
NOT_REHEARSED = "The checks of a close have not run yet: they run each night"
UNUSUAL = "Unusual spend is explained"
NOT_SEARCHED = "not searched yet"
OVER = "The month is over"
DIFFERENCE = "difference {difference}"
PASSED = "{passed} of {checks} pass"
MEASURED = "{percent:.1f} % of held time is measured"
NOTHING_HELD = "Nothing is held yet, so nothing is measured"


def finding(*, passed: int, checks: int, over: bool, rehearsed: bool) -> str:
    """Return the sentence with the number of lines that pass."""
    when = "The checks run every night" if rehearsed else "The checks run tonight for the first time"
    ready = " The month can be closed." if over and passed == checks else ""
    return f"{when}: {passed} of {checks} pass.{ready}"


def line_figure(lines: int, unmapped: int) -> str:
    """Return the number of charged lines, and how many of them have no cost centre."""
    if unmapped:
        return f"{unmapped:,} of {lines:,} lines without"
    return f"{lines:,} line{'' if lines == 1 else 's'}"


def coverage(share: float | None, hours: float) -> tuple[str, str]:
    """Return the text and the figure of measured time. ``hours`` are GPU-hours that are not measured."""
    if share is None:
        return NOTHING_HELD, ""
    return MEASURED.format(percent=share * 100), f"{hours:,.0f} h not measured"


def focus_figure(rows: int, broken: int) -> str:
    """Return the number of checked rows of the FOCUS files, or of the broken rules."""
    if broken:
        return f"{broken:,} broken rule{'' if broken == 1 else 's'}"
    return f"{rows:,} rows, 0 errors"


def unusual_figure(unexplained: int, of: int) -> str:
    """Return the number of findings without a reason; ``of`` is the number that people must explain."""
    if not of:
        return "none found"
    return f"{unexplained} of {of} to explain" if unexplained else f"{of} explained"
