"""Build the sentences about the charges that a viewer sees and that other users see."""

from __future__ import annotations

from collections.abc import Sequence

from portal.wording.formatting import joined_with_and

ROLE_NAMES = {"finance": "finance", "auditor": "an auditor", "operator": "an operator"}
# Sentences about the kinds of viewers. Those who see the most charges come first.
OTHER_VIEWERS = (
    "Finance and auditors see the charges of every team.",
    "The lead of a team sees all charges of the team.",
    "Everybody sees their own charges.",
    "Operators see no charges of others. They see the owner's cost of the GPUs.",
)


TEAM_SUM = "Budgets count everybody in the team. Its leads, finance and auditors see who caused which charge."
HIDDEN_COST = "hidden"
HIDDEN_COSTS = (
    "Charges of other people's work are hidden: you see those of your own work and of teams that you lead."
)


def scope_sentence(kind: str, role: str, led: tuple[str, ...]) -> str:
    """Return the sentence about the charges that the viewer sees. The arguments are fields of ChargeScope."""
    if kind == "all":
        return f"As {ROLE_NAMES[role]} you see the charges of every team."
    if kind == "led_teams":
        return f"As lead you see all charges of {joined_with_and(led)}, and your own charges in other teams."
    if kind == "own":
        return "You see only your own charges. The charges of your team are higher if others in it used GPUs."
    return (
        f"As {ROLE_NAMES[role]} you may not see the charges of others, and you have none of your own."
        if role
        else "You are in no team and have no charges of your own. You may not see those of others."
    )


def nothing_charged_title(kind: str) -> str:
    """Return the title of an empty table of charges."""
    whom = {"own": " to you", "led_teams": " to your teams or to you"}.get(kind, "")
    return f"Nothing is charged{whom} in this month"


def usage_scope_sentence(teams: Sequence[str] | None) -> str:
    """Return the sentence about the teams whose use a table shows. None means every team."""
    if teams is None:
        return "You see the use of every team."
    if not teams:
        return "You are in no team, so you see no use."
    return f"You see the use of {joined_with_and(teams)}. Other teams are not in these sums."


def budget_scope_sentence(teams: Sequence[str] | None) -> str:
    """Return the sentence about the teams whose budgets a page shows. None means every team."""
    if teams is None:
        return "You see the budgets of every team."
    if not teams:
        return "You are in no team, so you see no budgets."
    whole = "Each counts the charges of everybody in its team or project."
    return f"You see the budgets of {joined_with_and(teams)}. {whole}"
