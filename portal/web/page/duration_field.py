"""Parse and format durations in forms, such as 90 s, 15 min, 2 h or 1 d 12 h. Services take seconds."""

from __future__ import annotations

import re
from typing import Any

from django import forms

from portal.wording.pages import home_pages

SECONDS_PER_UNIT = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400),
}
SHORT_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
NUMBER_AND_UNIT = re.compile(r"(\d{1,9})\s*([a-z]*)\s*,?\s*", re.ASCII)
ALLOWED_DURATIONS = "such as 90 s, 15 min, 2 h, 1 d 12 h, or a number of seconds"
DURATION_EXAMPLES = home_pages.DURATION_HELP


def parse_seconds(text: str) -> int | None:
    """Return the seconds of a duration text, or None if it is invalid. A bare number means seconds."""
    clean = text.strip().lower()
    if clean.isascii() and clean.isdigit() and len(clean) <= 9:
        return int(clean)
    parts = NUMBER_AND_UNIT.findall(clean)
    if not parts or NUMBER_AND_UNIT.sub("", clean) or any(unit not in SECONDS_PER_UNIT for _, unit in parts):
        return None
    return sum(int(number) * SECONDS_PER_UNIT[unit] for number, unit in parts)


def format_seconds(seconds: int) -> str:
    """Return the shortest exact text of a duration, such as ``1 d 12 h``."""
    rest, words = seconds, []
    for unit, size in SHORT_UNITS:
        count, rest = divmod(rest, size)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words) or "0 s"


class DurationInSecondsField(forms.CharField):
    """A form field for a duration. Its cleaned value is a number of whole seconds, or None if it is empty.

    The value must be at least ``least`` and, if ``most`` is given, at most ``most``.
    """

    def __init__(self, *, least: int = 0, most: int | None = None, **kwargs: Any) -> None:
        super().__init__(max_length=60, **kwargs)
        self.least, self.most = least, most

    def to_python(self, value: Any) -> Any:
        """Return whole seconds, or None if the field is empty."""
        text = super().to_python(value)
        if text in self.empty_values:
            return None
        seconds = parse_seconds(str(text))
        if seconds is None:
            raise forms.ValidationError(
                home_pages.DURATION_INVALID.format(
                    label=self.label, given=str(text)[:40], allowed=ALLOWED_DURATIONS
                )
            )
        if seconds < self.least or (self.most is not None and seconds > self.most):
            least = format_seconds(self.least)
            allowed = f"{least} or more" if self.most is None else f"{least} to {format_seconds(self.most)}"
            raise forms.ValidationError(
                home_pages.DURATION_INVALID.format(label=self.label, given=str(text)[:40], allowed=allowed)
            )
        return seconds

    def run_validators(self, value: Any) -> None:
        """Do nothing. The inherited validators check text, but the cleaned value is a number."""

    def prepare_value(self, value: Any) -> Any:
        """Format seconds with units. Text that the user typed stays as it is."""
        return format_seconds(value) if isinstance(value, int) else value
