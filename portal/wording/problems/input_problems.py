"""Define messages about single invalid values, which ``portal.input_checks`` finds."""

from __future__ import annotations

NOT_TEXT = "{field} is {given}; allowed: text."
WRONG_LENGTH = "{field} has {length:,} characters; allowed: {allowed}."
FORBIDDEN_CHARACTER = (
    "{field} contains the character U+{code_point:04X}; allowed: text without control or direction-changing "
    "characters."
)
NOT_ALLOWED = "{field} is {given}; allowed: {allowed}."
NOT_A_FLAG = "{field} is {given}; allowed: true or false."
NOT_A_LIST = "{field} is {given}; allowed: a list of at most {most} of {allowed}."
NOT_A_TIME = "{field} is {given}; allowed: a date and time with its time zone, such as 2026-03-02T09:00:00Z."
YEAR_OUT_OF_RANGE = "{field} is in the year {year}; allowed: years from {first_year} to {last_year}."
NOT_A_MONTH = "{field} is {given}; allowed: the first day of a month, such as 2026-03-01."
NO_LABELS = "{field} is {given}; allowed: pairs of a name and a value."
TOO_MANY_LABELS = "{field} has {count} pairs; allowed: at most {most}."
LABEL_INVALID = (
    "{field} has the word {given}; allowed: 1 to 63 letters, digits, dots, dashes, underscores and slashes."
)
NOT_AN_ENVIRONMENT = "{field} is {given}; allowed: pairs of a variable's name and text."
TOO_MANY_VARIABLES = "{field} has {count} variables; allowed: at most {most}."
VARIABLE_NAME_INVALID = "{field} has the name {given}; allowed: letters, digits and underscores."
VARIABLE_NAME_RESERVED = (
    "{field} sets {variable}; allowed: any name the program does not set itself (GPUPOOL_*, LD_*, "
    "*_VISIBLE_DEVICES)."
)
VARIABLE_VALUE_INVALID = (
    "{field} gives {variable} the value {given}; allowed: text of up to 4,096 characters without NUL."
)
NOT_A_TIME_ZONE = (
    "{field} is {given}; allowed: a name of the time zone database, such as UTC or Europe/Berlin."
)
IDEMPOTENCY_KEY_REUSED = (
    "Idempotency-Key belongs to another request of yours within the last day; allowed: a new key for each "
    "request, and the same method, address and body when a request is repeated."
)
