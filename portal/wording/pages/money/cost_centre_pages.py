"""Define the texts of the pages of cost centres."""

from __future__ import annotations

from collections.abc import Sequence

CENTRE_ADDED = "{code} is in the directory now."
DONE = {
    "change": "{code} is changed.",
    "retire": "{code} is retired.",
    "restore": "{code} is no longer retired.",
}
SPLIT_SET = "The cost centres of {name} are set. Charged time is charged again within some minutes."
CODE_HINT = "It never changes: letters, digits, dots, dashes and underscores, such as CC-4110."
PAYER_HINT = "A project, or a dedicated pool for the time in which it is not used."
START_HINT = (
    "Any time in a month that is not closed. Lines begin at midnight, so a change at midnight is exact."
)
CODE_LABEL = "Cost centre"
NEXT_CODE_LABEL = "And cost centre"
PERCENT_LABEL = "Percent"
WITH_LEAD = "{leads} (lead of {team}) says which cost centre pays. {finance} enters it."
WITHOUT_LEAD = "{team} has no lead: an operator names one. {finance} enters the cost centre."
FINANCE_NAMES = "Finance ({names})"
FINANCE = "Finance"
IMPORTED = "{new} lines are new and {changed} are changed."


def who_acts(team: str, leads: Sequence[str], finance: Sequence[str]) -> str:
    """Return who must act so that a project or a dedicated pool gets its cost centre."""
    entered_by = FINANCE_NAMES.format(names=", ".join(finance)) if finance else FINANCE
    if not leads:
        return WITHOUT_LEAD.format(team=team, finance=entered_by)
    return WITH_LEAD.format(leads=", ".join(leads), team=team, finance=entered_by)
