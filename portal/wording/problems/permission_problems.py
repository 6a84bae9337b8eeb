"""Define messages about missing permissions.

One message is for a person whose questions to the planner took too long in the last minute.
"""

from __future__ import annotations

PLANNER_BUDGET_EXCEEDED = (
    "Your questions to the planner took very long in the last minute. Ask again in {wait} seconds. "
    "Your work and its place in the queue stay as they are."
)
WORKLOAD_LAUNCH = "Only members of the project's team may start work in it."
RESERVATION_REQUEST = "Only members of the project's team may reserve for it."
WORKLOAD_CHANGE = "Only its owner, a lead of its team or an operator may change this workload."
WORKLOAD_RELAUNCH = "Only members of its team may launch this workload again."
WORKLOAD_OPEN = "Only its owner may open this."
WORKLOAD_LOGS = "Only its team, operators and auditors may read these logs."
RESERVATION_CHANGE = "Only its owner, a lead of its team or an operator may change this reservation."
QUOTA_REQUEST = "Only a lead of the team or an operator may ask for a new quota."
TEAM_CHANGE = "Only a lead of the team or an operator may change it."
NOTICE_CHANNEL_CREATE = "Only a lead of the team or an operator may create its notice channels."
NOTICE_CHANNEL_CHANGE = (
    "Only its person, or a lead of its team or an operator, may change this notice channel."
)
TEAM_REMOVE = "Only an operator may remove a team."
TEAM_JOIN = "Only people with an active account may ask to join a team."
SUBMISSION_DECIDE = (
    "Only finance decides requests for a budget. Only operators and leads of the team decide requests "
    "to join it. Only operators decide other requests."
)
OWN_REQUEST = "You asked for this yourself, so another person decides it. You may withdraw it."
SUBMISSION_WITHDRAW = "Only its author or a lead of the team may withdraw this."
APPROVAL_SEE = "Only operators and auditors see what waits for approval."
RECORDING_SEE = "Only operators and auditors see the engine's recordings: they name every team's work."
RETENTION_SEE = "Only operators and auditors see how long samples are kept."
DATABASE_MAINTENANCE_SEE = "Only operators and auditors see the maintenance of the database."
DATABASE_MAINTENANCE_CHANGE = "Only an operator may announce or end maintenance of the database."
RETENTION_CHANGE = "Only an operator may change how long samples are kept."
SYSTEM_SEE = "Only operators and auditors see the health of the system."
METRICS_SEE = "Only operators and auditors may read the metrics."
HOST_CHANGE = "Only an operator may change hosts."
CAPACITY_SEE = (
    "Only operators, finance and auditors see the studies of the number of GPUs: they have its cost."
)
CAPACITY_STUDY = "Only an operator may request a study of the number of GPUs."
POOL_CHANGE = "Only an operator may change pools."
TEAM_CREATE = "Only an operator may create a team."
USER_CHANGE = "Only an operator may create or change accounts."
SECURITY_CHANGE = "Only an operator may change the settings of security."
IDENTITY_SEE = "Only operators and auditors see how people sign in."
IDENTITY_CHANGE = "Only an operator may change how people sign in."
TEMPLATE_CHANGE = "Only an operator may change templates."
ALERT_HANDLE = "Only an operator may acknowledge and snooze alerts."
ALERT_RULE_CHANGE = "Only an operator may change the alert rules of a pool."
HEALTH_RULE_CHANGE = "Only an operator may change what is done about hardware events."
PRICE_CHANGE = "Only finance may change prices, their factors and the currency."
REFUND_LIMIT_CHANGE = "Only finance may change how much lost work is refunded."
BUDGET_REQUEST = "Only a lead of the team may ask for a new budget."
BUDGET_CHANGE = "Only finance may change budgets."
ADJUSTMENT_CHANGE = "Only finance may propose or decide credits and adjustments."
COST_CENTRE_CHANGE = "Only finance may change cost centres."
BILLING_CHANGE = "Only finance may change the settings of billing."
STATEMENT_CONFIRM = "Only finance or an auditor may close a month that was proposed."
STATEMENT_CLOSE = "Only finance may close a month."
CHARGES_SEE_ALL = "Only finance and auditors see every team's charges."
UNUSUAL_SPEND_EXPLAIN = "Only finance and the lead of the team may explain unusual spend."
UNUSUAL_SPEND_EXPLAIN_ALL = "Only finance may explain the unusual spend of every team."
AUDIT_SEE_ALL = "Only operators and auditors see every change."
OWN_CHANGE = (
    "Only people with an active account may change their settings, read their notices and create tokens."
)
TOKEN_REVOKE = "Only its owner, a lead of the service account's team or an operator may revoke this token."
SERVICE_ACCOUNT_CREATE = "Only a lead of the team or an operator may create a service account."
SERVICE_ACCOUNT_CHANGE = "Only its owner, a lead of its team or an operator may change this service account."
TOKEN_SCOPE = (
    "The token {name} has the scopes: {scopes}. This call needs the scope {scope}; make a token that has it "
    "under API tokens."
)

FRESH_PROOF_REQUIRED = (
    "This change needs a proof of your identity from the last {minutes} minutes. Confirm it in the browser "
    "at /accounts/reauthenticate/, then repeat the request."
)
SECOND_FACTOR_REQUIRED = (
    "Your role needs a second factor. Set one up in the browser at /account/second-factor/; until then, "
    "nothing else is open."
)
