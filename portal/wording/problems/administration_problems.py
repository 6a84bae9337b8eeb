"""Define messages for invalid requests that concern pools, hosts, money, people and approvals."""

from __future__ import annotations

FIELD_IS_FIXED = "{field} can't be changed; allowed: {allowed}."
ALERT_FIELD_UNKNOWN = "{field} is not a field of an alert rule; allowed: {allowed}."
ALERT_END_NOT_BELOW_BEGIN = (
    "end is {end}; allowed: a number from {low} to below {begin}, the value at which the alert begins."
)
ALERT_BEGIN_NOT_ABOVE_END = (
    "begin is {begin}; allowed: a number above {end}, the value at which the alert ends, up to {high}."
)
ALERT_STOPS_NOTHING = (
    "stop_work is true; allowed: false, because alerts of the kind {kind} stop nothing; {kinds} can."
)
REPAIR_FIELD_UNKNOWN = "{field} is not known; allowed: {allowed}."
MINUTES_SHORTER_THAN_SAMPLES = (
    "minute_days is {given}; allowed: {least} or more, because samples are kept for {sample_days} days."
)
SAMPLES_LONGER_THAN_MINUTES = (
    "sample_days is {given}; allowed: {most} or fewer, because minutes are kept for {minute_days} days."
)
DAYS_SHORTER_THAN_HOURS = "day_days is {given}; allowed: {allowed}, because hours are kept without limit."
NOTHING_TO_CHANGE = "nothing to change is given; allowed: one or more of {allowed}."
HEALTH_RULE_UNKNOWN = "code is {code}; allowed: {allowed}."
MAINTENANCE_END = "end is {end}; allowed: after the start, {start}."
MAINTENANCE_LENGTH = "end is {end}; allowed: up to {days} days after the start, {start}."
MAINTENANCE_IS_PAST = "end is {end}, which is past; allowed: after {now}."
DCGM_URL_INVALID = (
    "url is {given}; allowed: http or https, up to 300 characters, without a name, a password and a #, and "
    "not a link-local, multicast or unspecified address. Example: http://gpu-01:9400/metrics."
)
GEOMETRY_INVALID = "geometry is {given}; allowed: {allowed}."
STATIC_POOL_WITHOUT_TEAM = "team is empty; allowed: the team that owns a static pool."
DYNAMIC_POOL_WITH_TEAM = "team is {team}; allowed: nothing, since a dynamic pool is shared."
POOL_LIMIT_UNKNOWN = "{field} is not a limit of a pool; allowed: {allowed}."
ONE_BUDGET_OWNER = "team, project and cost_centre: give exactly one of the three."
BUDGET_OF_REMOVED_TEAM = "team is {team}, which was removed; allowed: a team that exists."
NOT_A_PERIOD_START = "month is {month:%Y-%m}; allowed: the first month of a {period}, such as {month:%Y}-01."
MONTH_IS_PAST = "month is {month:%Y-%m}; allowed: the present period or a later one."
REFUND_LIMIT_IS_PAST = "valid_from is {valid_from}; allowed: {now} or later. Stopped work keeps its limit."
IDLE_PAYER_MONTH = "month is {month:%Y-%m}; allowed: {first:%Y-%m} to {last:%Y-%m}."
VALID_FROM_IS_PAST = (
    "valid_from is {valid_from}, which is past; allowed: {allowed} or later. The past never changes."
)
VALID_FROM_IS_CHARGED = (
    "valid_from is {valid_from}, but {what} is already charged until {until}; allowed: {allowed} or later."
)
MONTH_WITHOUT_CHARGES = "month is {month:%Y-%m}, before the first charge; allowed: {first:%Y-%m} or later."
BILLING_MODE_MONTH = (
    "first_month is {month:%Y-%m}; allowed: from {earliest:%Y-%m}, the first month that is not closed, to"
    " {latest:%Y-%m}."
)
BILLING_MODE_IS_THE_SAME = "mode is {mode}, which {team} has in {month:%Y-%m} already; allowed: {allowed}."
BILLING_ZONE_MONTH = (
    "first_month is {month:%Y-%m}; allowed: {earliest:%Y-%m} to {latest:%Y-%m}, months in which nothing is "
    "charged yet."
)
BILLING_ZONE_UNKNOWN = "time_zone is {zone}; allowed: a time zone that the database knows, too."
BILLING_ZONE_IS_THE_SAME = "time_zone is {zone}; allowed: a zone that the month does not have already."
MONTH_IS_NOT_PAST = "month is {month:%Y-%m}; allowed: a past month, before {this_month:%Y-%m}."
CURRENCY_INVALID = (
    "currency is {given!a:.60}; allowed: a code of ISO 4217 with 0, 2 or 3 decimals, such as JPY, EUR or KWD."
)
PRICE_CURRENCY = (
    "currency is {currency}; allowed: {of_month}, the currency of {month:%Y-%m}, or a price from the start "
    "of a later month on, before the currency is changed."
)
PRICE_WITHOUT_SUCCESSOR = (
    "valid_from is {valid_from}, but from {month:%Y-%m} on the currency is {currency} and {model} has no "
    "price in it; allowed: first set its price in {currency} from the start of that month on."
)
FACTOR_KIND = "priority and workload_type: give exactly one of the two."
FACTOR_VALUE = (
    "factor is {given!a:.60}; allowed: more than 0, up to {high}, with at most {decimals} decimals."
)
FACTOR_OF_DEDICATED_POOL = (
    "pool is {pool}; allowed: a dynamic pool. A dedicated pool is paid for whether it is used or not."
)
CURRENCY_IS_IN_FORCE = "currency is {currency}, which {month:%Y-%m} has already; allowed: another currency."
CURRENCY_MONTH_IS_CHARGED = (
    "first_month is {month:%Y-%m}; allowed: {earliest:%Y-%m} or later, not charged yet."
)
CURRENCY_WITHOUT_PRICES = (
    "first_month is {month:%Y-%m}, but no price in {currency} begins at {start} for {what}; "
    "allowed: a month from whose start each model has a price in {currency}."
)
AUDITOR_HAS_OTHER_ROLE = (
    "auditor is true with another role; allowed: an auditor is neither operator nor finance."
)
PASSWORD_LENGTH = "password is too long or not text; allowed: 12 to 1,000 characters."
TOKEN_SCOPES = "scopes is {given}; allowed: {allowed}."
SERVICE_OWNER = "owner is {given}; allowed: a person of {team} with an active account."
EXPIRY_INVALID = "expires_at is {expires_at}; allowed: {allowed}."
ENVIRONMENT_OF_ANOTHER = (
    "environment of {workload} ({variables:.200}) is {owner}'s; allowed: your own values, or none."
)
SETUP_CODE_WRONG = (
    "setup_code is not the current code; allowed: the code that ./run up or the command setup_code printed."
)
TOKENS_NOT_IN_FORCE = "tokens contains {given}; allowed: {allowed}."
