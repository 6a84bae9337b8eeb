"""Define texts of pages about money and utilisation."""

from __future__ import annotations

NOT_A_MONTH = "month is {given}; allowed: a month from {first:%Y-%m} to {last:%Y-%m}, such as {last:%Y-%m}."
MONTH_NOT_CHARGED = "month is {given}, a month without charges; allowed: {first:%Y-%m} to {last:%Y-%m}."
MONTH_INPUT_INVALID = "month is {given!a}; allowed: a year and a month, such as 2026-03."
FILTER_UNKNOWN = "{field} is {given}; allowed: {allowed}."
# Each filter of charges with a description of its allowed values. The text names no object.
ALLOWED_FILTERS = {
    "cost_centre": "the code of a cost centre whose charges you may see",
    "team": "a team whose charges you may see",
    "project": "a project whose charges you may see",
    "type": "training, inference, interactive or other",
    "workload": "a workload whose charges you may see",
    "user": "a person whose charges you may see",
    "pool": "a pool that you may see",
    "model": "the model of a GPU that you may see, such as H100-80GB",
    "bucket": (
        "used, reserved_unused, preempted, hardware_lost, unallocated, unhealthy, maintenance, credit "
        "or adjustment, or several with commas between them"
    ),
    "day": "a day of the month, or of a month that it corrects, such as 2026-03-12",
    "last_day": "a day of the month, such as 2026-03-12",
    "corrected_month": "a month that the statement corrects, such as 2026-02, any or none",
}
PARAMETER_UNKNOWN = "{given} is not a parameter of this page; allowed: {allowed}."
FORMAT_UNKNOWN = "format is {given}; allowed: {allowed}."
BUDGET_SET = "The budget of {subject} is set."
HALF_WAIT_LABEL = "Half wait at most"
NOTHING_IN_PERIOD = "Nothing in this period."
MONTH_CLOSED = "{month:%B %Y} is closed and cannot change any more. Later changes become corrections."
PRICE_SET = "The price is set. What was charged before stays as it is."
PRICE_FACTOR_SET = "The factor is set. What was charged before stays as it is."
CURRENCY_CHANGED = "From {month:%B %Y} on, charges are in {currency}. Earlier months keep their currency."
CHART_UNKNOWN = "chart is {given!a}; allowed: {allowed}."
DIMENSION_UNKNOWN = "by is {given!a}; allowed: {allowed}."
PERIOD_UNKNOWN = "period is {given!a}; allowed: {allowed}, or start and end."
PERIOD_WITH_TIMES = "period is {given}; allowed: nothing, because start and end are given."
NOT_A_UTC_TIME = (
    "{field} is {given}; allowed: a date or a time in UTC without a zone, such as 2026-03-01 or "
    "2026-03-01T09:00, from {first} to {last}. start and end belong together."
)
PERIOD_LENGTH = "end is {end!a}; allowed: after the start and within {days} days of it."
IDLE_LABEL = "Held but not used"
GPU_HOURS_TITLE = "Where the GPU-hours go"
# The steps of the waterfall: a label, and the definition of docs/telemetry.md.
WATERFALL_STEPS = {
    "unhealthy": ("Unhealthy", "host or GPU out of service"),
    "maintenance": ("Maintenance", "announced windows"),
    "unallocated": ("Unallocated", "nobody held it"),
    "dedicated_unused": ("Dedicated, empty", "in a team's own pool, nobody held it"),
    "reserved_unused": ("Reserved, unused", "reserved, and the work did not come"),
    "lost": ("Lost", "work lost by a preemption or a hardware fault"),
    "unmeasured": ("Held, not measured", "no sample tells whether it was busy"),
    "empty": ("Held, empty", "no process on it, under 5 % busy"),
    "idle": ("Held, idle", "a process runs, under 5 % busy"),
    "inefficient": ("Held, inefficient", "busy, SM activity under 20 % and tensor activity under 10 %"),
    "sm_unmeasured": ("Held, busy, SM unknown", "busy, the GPU does not report SM activity"),
    "productive": ("Productive", "busy, with more SM or tensor activity"),
}
NO_GPU_REPORTS = "No GPU reports."
WAITING_TITLE = "How long people wait"
REFUND_LIMIT_SET = "The refund limit of {pool} is set. Work that has stopped keeps its limit."
IDLE_PAYER_SET = "The payer of the idle time of {month:%B %Y} is set."
PAYER_LABELS = {"project": "{name}, {team}", "pool": "{name} ({team}): dedicated pool, unused"}
DEDICATED_UNUSED = "dedicated pool, unused"
DEDICATED_UNUSED_BUCKET = "charged: dedicated pool, unused"
IDLE_PAYERS = {
    "operator": "The operator: no team pays",
    "guarantee": "Teams, by their guarantees of the month",
    "use": "Teams, by their charged use",
}
IDLE_PAYER_HEADINGS = {"operator": "Operator pays", "guarantee": "By guarantee", "use": "By use"}
IDLE_SHARE_OF_OPERATOR = "Operator"
NOTHING_ALLOWED = "nothing here"
