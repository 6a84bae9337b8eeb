"""Define messages for invalid requests that concern pools, hosts, money, people and approvals."""

from __future__ import annotations

FIELD_IS_FIXED = "{field} can't be changed; allowed: {allowed}."
REPAIR_FIELD_UNKNOWN = "{field} is not known; allowed: {allowed}."
MINUTES_SHORTER_THAN_SAMPLES = (
    "minute_days is {given}; allowed: {least} or more, because samples are kept for {sample_days} days."
)
NOTHING_TO_CHANGE = "nothing to change is given; allowed: one or more of {allowed}."
HEALTH_RULE_UNKNOWN = "code is {code}; allowed: {allowed}."
MAINTENANCE_LENGTH = "end is {end}; allowed: after the start and within {days} days of it."
MAINTENANCE_IS_PAST = "end is {end}, which is past; allowed: after {now}."
GEOMETRY_INVALID = "geometry is {given}; allowed: {allowed}."
STATIC_POOL_WITHOUT_TEAM = "team is empty; allowed: the team that owns a static pool."
DYNAMIC_POOL_WITH_TEAM = "team is {team}; allowed: nothing, since a dynamic pool is shared."
POOL_LIMIT_UNKNOWN = "{field} is not a limit of a pool; allowed: {allowed}."
ONE_BUDGET_OWNER = "team, project and cost_centre: give exactly one of the three."
NOT_A_PERIOD_START = "month is {month:%Y-%m}; allowed: the first month of a {period}, such as {month:%Y}-01."
MONTH_IS_PAST = "month is {month:%Y-%m}; allowed: the present period or a later one."
COST_CENTRE_MONTH_IS_CLOSED = (
    "valid_from is {valid_from}; allowed: from {earliest} on, because the months before it are closed."
)
PROJECT_AND_POOL = "project and pool: give exactly one of the two."
COST_CENTRE_OF_SHARED_POOL = (
    "pool is {pool}; allowed: a static pool. In a dynamic pool, the projects of the work pay."
)
REFUND_LIMIT_IS_PAST = "valid_from is {valid_from}; allowed: {now} or later. Stopped work keeps its limit."
IDLE_PAYER_MONTH = "month is {month:%Y-%m}; allowed: {first:%Y-%m} to {last:%Y-%m}."
VALID_FROM_IS_PAST = (
    "valid_from is {valid_from}, which is past; allowed: {allowed} or later. The past never changes."
)
VALID_FROM_IS_CHARGED = (
    "valid_from is {valid_from}, but {what} is already charged until {until}; allowed: {allowed} or later."
)
MONTH_WITHOUT_CHARGES = "month is {month:%Y-%m}, before the first charge; allowed: {first:%Y-%m} or later."
BILLING_ZONE_MONTH = (
    "first_month is {month:%Y-%m}; allowed: {earliest:%Y-%m} to {latest:%Y-%m}, months in which nothing is "
    "charged yet."
)
BILLING_ZONE_UNKNOWN = "time_zone is {zone}; allowed: a time zone that the database knows, too."
BILLING_ZONE_IS_THE_SAME = "time_zone is {zone}; allowed: a zone that the month does not have already."
MONTH_IS_NOT_PAST = "month is {month:%Y-%m}; allowed: a past month, before {this_month:%Y-%m}."
CURRENCY_INVALID = "currency is {given!a:.60}; allowed: three letters, such as EUR."
AUDITOR_HAS_OTHER_ROLE = (
    "auditor is true with another role; allowed: an auditor is neither operator nor finance."
)
PASSWORD_LENGTH = "password is too long or not text; allowed: 12 to 1,000 characters."
EXPIRY_INVALID = "expires_at is {expires_at}; allowed: {allowed}."
ENVIRONMENT_OF_ANOTHER = (
    "environment of {workload} ({variables:.200}) is {owner}'s; allowed: your own values, or none."
)
