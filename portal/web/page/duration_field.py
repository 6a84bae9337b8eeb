"""Lengths of time in forms, as people write them: 90 s, 15 min, 2 h, 1 d 12 h. The services count in seconds."""

from __future__ import annotations

import re
from typing import Any

from django import forms

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


def parse_seconds(text: str) -> int | None:
    """Seconds of a length as people write it; a bare number is seconds. None: it is none."""
    clean = text.strip().lower()
    if clean.isascii() and clean.isdigit() and len(clean) <= 9:
        return int(clean)
    parts = NUMBER_AND_UNIT.findall(clean)
    if not parts or NUMBER_AND_UNIT.sub("", clean) or any(unit not in SECONDS_PER_UNIT for _, unit in parts):
        return None
    return sum(int(number) * SECONDS_PER_UNIT[unit] for number, unit in parts)


def format_seconds(seconds: int) -> str:
    """The shortest exact way to write it: "1 d 12 h"."""
    rest, words = seconds, []
    for unit, size in SHORT_UNITS:
        count, rest = divmod(rest, size)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words) or "0 s"


class DurationInSecondsField(forms.CharField):
    """Cleans to whole seconds, and shows them in units. ``least`` and ``most``: what its service allows, in seconds."""

    def __init__(self, *, least: int = 0, most: int | None = None, **kwargs: Any) -> None:
        super().__init__(max_length=60, **kwargs)
        self.least, self.most = least, most

    def to_python(self, value: Any) -> Any:
        """Seconds, or None where nothing was given."""
        text = super().to_python(value)
        if text in self.empty_values:
            return None
        found = parse_seconds(str(text))
        if found is None:
            raise forms.ValidationError(f"{self.label} is {str(text)[:40]!a}; allowed: {ALLOWED_DURATIONS}.")
        if self.most is not None and not self.least <= found <= self.most:
            told = f"{format_seconds(self.least)} to {format_seconds(self.most)}"
            raise forms.ValidationError(f"{self.label} is {str(text)[:40]!a}; allowed: {told}.")
        return found

    def run_validators(self, value: Any) -> None:
        """Those are of the text, whose length the widget limits."""

    def prepare_value(self, value: Any) -> Any:
        """In units, unless it is what somebody typed."""
        return format_seconds(value) if isinstance(value, int) else value
