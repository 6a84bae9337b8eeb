"""Define a check of the installation, and the rule from its value to its state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from django.urls import reverse

from portal.wording import system_texts


class HealthState(StrEnum):
    """The state of a check. UNKNOWN: the value could not be read, or nothing is configured."""

    GOOD = "good"
    UNKNOWN = "unknown"
    ATTENTION = "attention"
    BAD = "bad"


# From the best to the worst. An unknown value can hide a bad one.
BY_SEVERITY = (HealthState.GOOD, HealthState.UNKNOWN, HealthState.ATTENTION, HealthState.BAD)


@dataclass(frozen=True)
class HealthLimit:
    """The values from which a check needs attention or is bad; None: no such value.

    ``unit`` is "s", "days", "share", "bytes" or "" for a count. With ``falling``, lower values are worse.
    """

    attention: float | None
    bad: float | None
    unit: str = ""
    falling: bool = False

    def state_of(self, value: float | None) -> HealthState:
        """Return the state of a value; UNKNOWN without a value."""
        if value is None:
            return HealthState.UNKNOWN
        for limit, state in ((self.bad, HealthState.BAD), (self.attention, HealthState.ATTENTION)):
            if limit is not None and (value < limit if self.falling else value > limit):
                return state
        return HealthState.GOOD

    @property
    def text(self) -> str:
        """Return the limits for people."""
        return system_texts.limit_text(self.attention, self.bad, self.unit, self.falling)


@dataclass(frozen=True)
class HealthCheck:
    """The result of one check.

    ``subject``: what is checked, if the check has several objects, such as the role of a process. ``value``:
    the number, in the unit of ``unit``; None if it is unknown. ``text``: the value for people.
    """

    check: str
    subject: str
    value: float | None
    unit: str
    text: str
    state: HealthState
    limit: str

    @property
    def label(self) -> str:
        """Return the name of the check for people."""
        return system_texts.check_label(self.check, self.subject)

    @property
    def advice(self) -> str:
        """Return what to do; empty if the state is good."""
        return "" if self.state == HealthState.GOOD else system_texts.CHECK_TEXTS[self.check].advice

    @property
    def link(self) -> str:
        """Return the path of the page that helps; empty if there is none."""
        page = system_texts.CHECK_TEXTS[self.check].page
        return reverse(page) if page else ""


def measured(
    check: str, value: float | None, limit: HealthLimit, *, subject: str = "", text: str = ""
) -> HealthCheck:
    """Return the check of a measured value. Without ``text``, the text is the value with its unit."""
    shown = text or system_texts.value_text(value, limit.unit)
    return HealthCheck(check, subject, value, limit.unit, shown, limit.state_of(value), limit.text)
