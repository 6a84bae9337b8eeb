"""Define messages for invalid lines of an imported file of people."""

from __future__ import annotations

HEADER_INVALID = "csv: the header is {given}; allowed: columns of {allowed}; username is required."
PERSON_IS_REPEATED = (
    "username is {given}, which line {line} has already; allowed: each person once, whatever the case."
)
ADDRESS_IS_REPEATED = "email is {given}, which line {line} has already; allowed: an own address."
ADDRESS_IS_TAKEN = "email is {given}, which the account {name} has; allowed: an own address."
USERNAME_IS_SIMILAR = "username is {given}, but the account {name} exists; allowed: {name}, or another name."
ACCOUNT_IS_SERVICE = "username is {given}, a service account; allowed: a person."
ACCOUNT_IS_CLOSED = "username is {given}, a closed account; allowed: an open one. Open the account first."
NAME_IS_FORMULA = "name is {given}; allowed: a text that begins with none of = + - @, as formulas do."
ROLE_UNKNOWN = (
    "roles is {given}; allowed: none, or one or more of operator, finance and auditor, separated by spaces."
)
TEAM_UNKNOWN = (
    "teams is {given}; allowed: names in addresses of teams, such as {known}, with :lead for leads."
)
NO_TEAM = "none, because there is no team"
