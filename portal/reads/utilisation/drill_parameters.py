"""Check the parameters that choose a level below the map of the fleet."""

from __future__ import annotations

from collections.abc import Mapping

from portal.errors import Invalid
from portal.input_checks import display_value
from portal.wording.pages.money import drill_texts, money_pages

LEVELS = ("first", "last", "host", "gpu", "run")
# The parameters of the utilisation page that hold for the levels too.
PERIOD_PARAMETERS = ("period", "start", "end", "pool", "model")
NEEDED = {"gpu": ("host",), "run": ("host", "gpu"), "last": ("first",), "first": ("last",)}


def level_parameters(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the parameters of the level, and those of the period and the filters.

    Raises Invalid for a parameter that would be ignored.
    """
    allowed = (*PERIOD_PARAMETERS, *LEVELS)
    unknown = next((name for name in given if name not in allowed), None)
    if unknown is not None:
        text = money_pages.PARAMETER_UNKNOWN.format(given=display_value(unknown), allowed=", ".join(allowed))
        raise Invalid({unknown[:30]: text})
    levels = {name: value for name, value in given.items() if name in LEVELS and value}
    return levels, {name: value for name, value in given.items() if name in PERIOD_PARAMETERS}


def check_levels(levels: Mapping[str, str]) -> None:
    """Raise Invalid if a level is given without the levels above it."""
    for name, needs in NEEDED.items():
        if name in levels and not all(other in levels for other in needs):
            text = drill_texts.LEVEL_WITHOUT.format(
                field=name, given=display_value(levels[name]), needs=" and ".join(needs)
            )
            raise Invalid({name: text}, {name: levels[name]})
