"""Define messages for invalid cost centres, splits and imports."""

from __future__ import annotations

CODE_ALLOWED = "1 to 40 letters, digits, dots, dashes and underscores; the first is a letter or a digit"
CODE_UNKNOWN = "{field} is {code!a}; allowed: a cost centre of the directory, such as {known}."
DIRECTORY_IS_EMPTY = "none: add one first"
CODE_IS_RETIRED = "{field} is {code!a}, retired from {retired_from} on; allowed: one that is not retired."
CODE_IS_REPEATED = "{field}: {code} is given {count} times; allowed: each cost centre once."
NO_SHARES = "shares is empty; allowed: 1 to {most} cost centres with their percent."
TOO_MANY_SHARES = "shares has {count} cost centres; allowed: 1 to {most}."
PERCENT_INVALID = "percent of {code} is {given}; allowed: more than 0, up to 100, with at most 2 decimals."
SHARES_SUM = "shares sum to {total} %; allowed: exactly 100 %."
MONTH_IS_CLOSED = (
    "valid_from is {valid_from}; allowed: from {earliest} on, because the months before it are closed."
)
PROJECT_AND_POOL = "project and pool: give exactly one of the two."
POOL_IS_SHARED = "pool is {pool}; allowed: a static pool. In a dynamic pool, the projects of the work pay."
HEADER_INVALID = "csv: the header is {given}; allowed: columns of {entries}, or of {shares}."
LINE_IS_REPEATED = "code is {code!a}, which line {line} has already; allowed: each code once."
PROJECT_UNKNOWN = "project is {given}; allowed: a project as team/project."
POOL_UNKNOWN = "pool is {given}; allowed: a static pool, such as {known}."
START_INVALID = "valid_from is {given}; allowed: a date such as 2026-10-01, or a time with its offset."
