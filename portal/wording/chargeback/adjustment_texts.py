"""Define the texts of the pages of credits and manual adjustments."""

from __future__ import annotations

KINDS = {
    "credit": "Credit: give back a part of a charge",
    "adjustment": "Adjustment: add an amount, or take one off",
}
MONTH_HINT = "A month that is not closed."
AMOUNT_HINT = "Signed: -12.50 is less to pay. A credit is negative."
CENTRE_HINT = "The statement that the amount goes to."
CHARGE_HINT = "For a credit: the number of the charge line, as on its page."
CREDITED_MONTH_HINT = "For a credit of the cost centre's charges of a whole month."
REASON_HINT = "The statement shows it, with your name and that of the approver."
NOTE_HINT = "Needed to reject it."
PROPOSED = "{number} is proposed. Another person of finance approves or rejects it."
DONE = {
    "approve": "{number} is approved and on the statement.",
    "reject": "{number} is rejected.",
    "withdraw": "{number} is withdrawn.",
}
COUNTER_PROPOSED = "{number} withdraws it. Another person of finance approves or rejects it."
STATES = {
    "proposed": "proposed, waits for approval",
    "approved": "approved",
    "rejected": "rejected",
    "withdrawn": "withdrawn",
}
OWN_PROPOSAL = "You proposed it, so another person of finance approves it."
