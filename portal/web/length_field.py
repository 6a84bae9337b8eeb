"""Lengths of time in forms, as people write them: 90 s, 15 min, 2 h, 1 d 12 h. The services count in seconds."""

from __future__ import annotations

import re
from typing import Any

from django import forms

UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400),
}
SHORT = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
PART = re.compile(r"(\d{1,9})\s*([a-z]*)\s*,?\s*", re.ASCII)
ALLOWED = "such as 90 s, 15 min, 2 h, 1 d 12 h, or a number of seconds"


def seconds_of(text: str) -> int | None:
    """Seconds of a length as people write it; a bare number is seconds. None: it is none."""
    clean = text.strip().lower()
    if clean.isascii() and clean.isdigit() and len(clean) <= 9:
        return int(clean)
    parts = PART.findall(clean)
    if not parts or PART.sub("", clean) or any(unit not in UNITS for _, unit in parts):
        return None
    return sum(int(number) * UNITS[unit] for number, unit in parts)


def words_of(seconds: int) -> str:
    """The shortest exact way to write it: "1 d 12 h"."""
    rest, words = seconds, []
    for unit, size in SHORT:
        count, rest = divmod(rest, size)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words) or "0 s"


class LengthField(forms.CharField):
    """Cleans to whole seconds, and shows them in units. ``least`` and ``most``: what its service allows, in seconds."""

    def __init__(self, *, least: int = 0, most: int | None = None, **kwargs: Any) -> None:
        super().__init__(max_length=60, **kwargs)
        self.least, self.most = least, most

    def to_python(self, value: Any) -> Any:
        """Seconds, or None where nothing was given."""
        text = super().to_python(value)
        if text in self.empty_values:
            return None
        found = seconds_of(str(text))
        if found is None:
            raise forms.ValidationError(f"{self.label} is {str(text)[:40]!a}; allowed: {ALLOWED}.")
        if self.most is not None and not self.least <= found <= self.most:
            told = f"{words_of(self.least)} to {words_of(self.most)}"
            raise forms.ValidationError(f"{self.label} is {str(text)[:40]!a}; allowed: {told}.")
        return found

    def run_validators(self, value: Any) -> None:
        """Those are of the text, whose length the widget limits."""

    def prepare_value(self, value: Any) -> Any:
        """In units, unless it is what somebody typed."""
        return words_of(value) if isinstance(value, int) else value
