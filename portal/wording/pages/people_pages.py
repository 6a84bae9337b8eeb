"""Define texts of pages about people, teams and tokens."""

from __future__ import annotations

AUDIT_SEARCH_HINT = "Name, id or reason"
AUDIT_MONTH_HINT = "Such as 2026-10"
AUDIT_MONTH_INVALID = "money_of is {given!a}; allowed: a year and a month, such as 2026-10."
SETUP_BY_OPERATOR = "Only an operator can finish the setup."
SETUP_POOL = "A group of hosts with one set of rules for its GPUs. One pool is enough at first."
SETUP_HOST = "One command on the machine starts its agent. Its GPUs then appear here."
SETUP_TEAM = "People ask for GPUs as members of a team, for one of its projects."
SETUP_QUOTA_TITLE = "Give it a quota"
SETUP_QUOTA = "The GPUs that a team is guaranteed, and how many free GPUs it may borrow."
SETUP_NOTEBOOK = "JupyterLab on a GPU of the pool, in two clicks."
PERSON_CREATED = "{name} can sign in now. Next, add them to a team."
PERSON_CHANGED = "{name} is changed."
USER_NAME_LABEL = "User name or e-mail address"
TEAM_CREATED = "{name} is created. Next: its members, its projects and its quota."
USER_UNKNOWN = "user is {given!a:.60}; allowed: the user name of somebody with an account."
SERVICE_ACCOUNT_CREATED = "{name} is created. Next: a token for the program that uses it."
SCOPE_LABELS = {
    "read": "read what you may see",
    "submit": "start, change and reserve work, and change your own settings and tokens",
    "manage": "manage hosts, pools, teams and approvals, if you may",
    "finance": "change prices, budgets and months, if you may",
}
TOKEN_REVOKED = "The token {name} no longer works."
