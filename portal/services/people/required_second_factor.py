"""Decide who must set up a second factor before anything else is open to them."""

from __future__ import annotations

from portal.models import Organisation, User
from portal.sign_in.proof import has_second_factor


def second_factor_required(user: User, organisation: Organisation) -> bool:
    """Return True if the settings require a second factor of this person."""
    if organisation.second_factor_for == "operators_and_finance":
        return user.operator or user.finance
    return organisation.second_factor_for == "everybody"


def second_factor_missing(user: User, organisation: Organisation | None) -> bool:
    """Return True if the person must have a second factor and has none.

    The person can sign in, but only the pages on which one is set up are open. So the rule locks nobody out,
    not even the last operator.
    """
    if organisation is None or not second_factor_required(user, organisation):
        return False
    return not has_second_factor(user)
