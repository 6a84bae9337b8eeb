"""Validate input. All problems are reported together.

Each problem names the field, the value and the allowed values.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from portal.errors import Invalid
from portal.time_zones import time_zone_names
from portal.wording.problems import input_problems

MAX_NAME_LENGTH = 80
MAX_LABELS = 20
MAX_VARIABLES = 100
FIRST_YEAR, MAX_YEAR = 2000, 2200
HOST_NAME_PATTERN = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")
USER_NAME_PATTERN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9@.+_-]{0,149}$")
VARIABLE_NAME_PATTERN = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
LABEL_PATTERN = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$")
EMAIL_PATTERN = re.compile(r"^[^@\s]{1,64}@[^@\s]{1,190}$")
# Invisible characters, and characters that change the text direction. With them, two different names can look
# equal.
INVISIBLE_CHARACTERS = frozenset(
    "\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
)


def display_value(value: Any) -> str:
    """Return a value for an error message: at most 60 characters, on one line, unusual characters escaped."""
    text = ascii(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class InputChecks:
    """Checks of one input, and the problems that they found. ``done()`` raises Invalid if there are problems.

    Each check returns the valid value. If the value is invalid, the check adds a problem and returns a
    harmless value of the same type.
    """

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def note(self, field: str, value: Any, message: str) -> None:
        """Add a problem of a field. Only the first problem of a field is kept."""
        if field not in self.problems:
            self.problems[field] = message
            self.values[field] = (
                value if value is None or isinstance(value, bool | int | str) else display_value(value)
            )

    def done(self) -> None:
        """Raise Invalid if there are problems. The error contains all of them."""
        if self.problems:
            raise Invalid(self.problems, self.values)

    def text(
        self, field: str, value: Any, *, least: int = 1, most: int = MAX_NAME_LENGTH, lines: bool = False
    ) -> str:
        """Return the text if it has ``least`` to ``most`` characters and all of them are allowed.

        Control characters and characters that change the text direction are not allowed. ``lines`` also
        allows line breaks and tabs.
        """
        if not isinstance(value, str):
            self.note(field, value, input_problems.NOT_TEXT.format(field=field, given=display_value(value)))
            return ""
        clean = unicodedata.normalize("NFC", value).strip()
        if not least <= len(clean) <= most:
            allowed = f"at least {least:,}" if len(clean) < least else f"at most {most:,}"
            self.note(
                field,
                value[:100],
                input_problems.WRONG_LENGTH.format(field=field, length=len(clean), allowed=allowed),
            )
            return ""
        bad = next((c for c in clean if _is_forbidden_character(c, lines)), None)
        if bad is not None:
            self.note(
                field,
                value,
                input_problems.FORBIDDEN_CHARACTER.format(field=field, code_point=ord(bad)),
            )
            return ""
        return clean

    def pattern(self, field: str, value: Any, pattern: re.Pattern[str], allowed: str) -> str:
        """Return the text if ``pattern`` matches all of it.

        ``allowed`` describes the pattern in the text of the problem.
        """
        if not isinstance(value, str) or not pattern.fullmatch(value):
            self.note(
                field,
                value if not isinstance(value, str) else value[:100],
                input_problems.NOT_ALLOWED.format(field=field, given=display_value(value), allowed=allowed),
            )
            return ""
        return value

    def user_name(self, field: str, value: Any) -> str:
        """Return the value if it may be the name of an account."""
        allowed = "1 to 150 letters, digits and @ . + - _, beginning with a letter or digit"
        return self.pattern(field, value, USER_NAME_PATTERN, allowed)

    def reason(self, value: Any) -> str:
        """Return the reason of a change: at most 1,000 characters, also on several lines."""
        return self.text("why", value, least=0, most=1000, lines=True)

    def count(self, field: str, value: Any, low: int, high: int, unit: str = "") -> int:
        """Return the number if it is a whole number from ``low`` to ``high``."""
        allowed = f"a whole number from {low:,} to {high:,}{' ' + unit if unit else ''}"
        words = input_problems.NOT_ALLOWED.format(field=field, given=display_value(value), allowed=allowed)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.note(field, value, words)
            return low
        return value

    def flag(self, field: str, value: Any) -> bool:
        """Return the value if it is True or False.

        Other types are a problem; even 0, 1 and "true" are not allowed.
        """
        if not isinstance(value, bool):
            self.note(field, value, input_problems.NOT_A_FLAG.format(field=field, given=display_value(value)))
            return False
        return value

    def choice(self, field: str, value: Any, allowed: Collection[str]) -> str:
        """Return the value if ``allowed`` contains it."""
        if not isinstance(value, str) or value not in allowed:
            listed = ", ".join(sorted(allowed)) if allowed else "nothing here"
            self.note(
                field,
                value,
                input_problems.NOT_ALLOWED.format(field=field, given=display_value(value), allowed=listed),
            )
            return ""
        return str(value)

    def choices(self, field: str, value: Any, allowed: Collection[str], most: int = 10) -> list[str]:
        """Return the values without duplicates, in the given order, if ``allowed`` contains all of them.

        An empty list means that any value is accepted.
        """
        if not isinstance(value, list | tuple) or len(value) > most:
            self.note(
                field,
                value,
                input_problems.NOT_A_LIST.format(
                    field=field, given=display_value(value), most=most, allowed=", ".join(sorted(allowed))
                ),
            )
            return []
        clean: list[str] = []
        for item in value:
            word = self.choice(field, item, allowed)
            if word and word not in clean:
                clean.append(word)
        return clean

    def aware_datetime(self, field: str, value: Any) -> datetime:
        """Return the time in UTC if it has a time zone and lies between FIRST_YEAR and MAX_YEAR."""
        if not isinstance(value, datetime) or value.tzinfo is None:
            self.note(
                field,
                value,
                input_problems.NOT_A_TIME.format(field=field, given=display_value(value)),
            )
            return datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
        if not FIRST_YEAR <= value.year <= MAX_YEAR:
            self.note(
                field,
                value,
                input_problems.YEAR_OUT_OF_RANGE.format(
                    field=field, year=value.year, first_year=FIRST_YEAR, last_year=MAX_YEAR
                ),
            )
            return datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
        return value.astimezone(UTC)

    def month(self, field: str, value: Any) -> date:
        """Return the date if it is the first day of a month."""
        if (
            isinstance(value, datetime)
            or not isinstance(value, date)
            or not FIRST_YEAR <= value.year <= MAX_YEAR
            or value.day != 1
        ):
            self.note(
                field,
                value,
                input_problems.NOT_A_MONTH.format(field=field, given=display_value(value)),
            )
            return date(FIRST_YEAR, 1, 1)
        return value

    def amount(self, field: str, value: Any, *, high: Decimal, decimals: int) -> Decimal:
        """Return the amount if it lies between 0 and ``high`` and has at most ``decimals`` decimals.

        A float is not allowed, because it is not exact.
        """
        try:
            amount = (
                Decimal(value)
                if isinstance(value, str | int | Decimal) and not isinstance(value, bool)
                else None
            )
        except InvalidOperation:
            amount = None
        allowed = _allowed_amount(amount, high, decimals)
        if amount is None or allowed:
            self.note(
                field,
                value,
                input_problems.NOT_ALLOWED.format(field=field, given=display_value(value), allowed=allowed),
            )
            return Decimal(0)
        return amount

    def labels(self, field: str, value: Any) -> dict[str, str]:
        """Return the labels if they are at most 20 pairs of a name and a value."""
        message = ""
        if not isinstance(value, dict):
            message = input_problems.NO_LABELS.format(field=field, given=display_value(value))
        elif len(value) > MAX_LABELS:
            message = input_problems.TOO_MANY_LABELS.format(field=field, count=len(value), most=MAX_LABELS)
        else:
            words = (part for pair in value.items() for part in pair)
            bad = [part for part in words if not isinstance(part, str) or not LABEL_PATTERN.fullmatch(part)]
            if bad:
                message = input_problems.LABEL_INVALID.format(field=field, given=display_value(bad[0]))
        if message:
            self.note(field, display_value(value), message)
            return {}
        return dict(value)

    def environment(self, field: str, value: Any) -> dict[str, str]:
        """Return the environment variables of a workload if all of them are allowed.

        Variables that gpupool itself sets, such as GPUPOOL_…, are not allowed.
        """
        if not isinstance(value, dict):
            problem = input_problems.NOT_AN_ENVIRONMENT.format(field=field, given=display_value(value))
            self.note(field, display_value(value), problem)
            return {}
        if len(value) > MAX_VARIABLES:
            problem = input_problems.TOO_MANY_VARIABLES.format(
                field=field, count=len(value), most=MAX_VARIABLES
            )
            self.note(field, display_value(value), problem)
            return {}
        for name, text in value.items():
            if not isinstance(name, str) or not VARIABLE_NAME_PATTERN.fullmatch(name):
                self.note(
                    field,
                    display_value(name),
                    input_problems.VARIABLE_NAME_INVALID.format(field=field, given=display_value(name)),
                )
            elif name.startswith(("GPUPOOL_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_")):
                self.note(
                    field,
                    name,
                    input_problems.VARIABLE_NAME_RESERVED.format(field=field, variable=name),
                )
            elif (
                not isinstance(text, str) or len(text) > 4096 or "\0" in text or not _is_utf8_encodable(text)
            ):
                self.note(
                    field,
                    name,
                    input_problems.VARIABLE_VALUE_INVALID.format(
                        field=field, variable=name, given=display_value(text)
                    ),
                )
        return {} if field in self.problems else dict(value)

    def time_zone(self, field: str, value: Any) -> str:
        """Return the name if the time zone database contains it."""
        if not isinstance(value, str) or value not in time_zone_names():
            self.note(
                field,
                value,
                input_problems.NOT_A_TIME_ZONE.format(field=field, given=display_value(value)),
            )
            return "UTC"
        return value


def unique_slug(name: str, taken: Iterable[str]) -> str:
    """Return a slug for ``name`` that is not in ``taken``."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    base = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:36] or "x"
    used, number, slug = set(taken), 1, base
    while slug in used:
        number += 1
        slug = f"{base}-{number}"
    return slug


def _allowed_amount(amount: Decimal | None, high: Decimal, decimals: int) -> str:
    """Return the limit that an amount violates, as text; "" if it violates none."""
    exponent = None if amount is None else amount.as_tuple().exponent
    if amount is None or not isinstance(exponent, int):
        return "an amount, such as 12.50" if decimals else "an amount, such as 12"
    if amount < 0:
        return "0 or more"
    if amount > high:
        return f"at most {high:,}"
    return f"at most {decimals} decimal{'' if decimals == 1 else 's'}" if -exponent > decimals else ""


def _is_utf8_encodable(text: str) -> bool:
    return not any(0xD800 <= ord(c) <= 0xDFFF for c in text)


def _is_forbidden_character(character: str, lines: bool) -> bool:
    if lines and character in "\n\t":
        return False
    return character in INVISIBLE_CHARACTERS or unicodedata.category(character) in ("Cc", "Cs", "Co", "Cn")


def checked_reason(value: Any) -> str:
    """Return the reason that an operator gave for a change, at most 300 characters. Raises Invalid."""
    checks = InputChecks()
    clean = checks.text("why", value, least=0, most=300)
    checks.done()
    return clean
