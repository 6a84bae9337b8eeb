"""Define messages for invalid credits and manual adjustments."""

from __future__ import annotations

AMOUNT_INVALID = (
    "amount is {given}; allowed: an amount from -{most:,} to {most:,} that is not 0, with at most "
    "{decimals} decimals."
)
CREDIT_NOT_NEGATIVE = "amount is {given}; allowed: a negative amount, because a credit reduces a charge."
MONTH_NOT_OPEN = "month is {month:%Y-%m}; allowed: a month that is not closed: {allowed}."
CREDITED_MONTH_INVALID = "credited_month is {month:%Y-%m}; allowed: {allowed}."
CREDIT_WITHOUT_CHARGES = (
    "charge, line and credited_month: give exactly one of them. It names the charges that are credited."
)
CHARGES_OF_ADJUSTMENT = "{field} is {given}; allowed: nothing, because only a credit refers to charges."
CHARGE_UNKNOWN = "charge is {given}; allowed: the id of a charge line, as in the address of its page."
CHARGE_WITHOUT_LINE = (
    "charge is {given}; allowed: a charge line with a statement line. "
    "Some lines of months that version 0.1 closed have none."
)
LINE_UNKNOWN = "line is {given}; allowed: the id of a statement line of charges."
OTHER_COST_CENTRE = "cost_centre is {given!a}; allowed: {allowed}, the cost centre of the credited charges."
COST_CENTRE_UNKNOWN = "cost_centre is {given!a}; allowed: a cost centre of the directory, such as {known}."
OTHER_TEAM = "team is {given}; allowed: {allowed}, the team of the project or of the credited charges."
OTHER_PROJECT = "project is {given}; allowed: {allowed}, the project of the credited charges."
CHARGES_AFTER_MONTH = "month is {month:%Y-%m}; allowed: from {credited:%Y-%m} on, the month of the charges."
