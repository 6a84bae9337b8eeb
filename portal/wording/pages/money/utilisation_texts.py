"""Define texts of the utilisation page."""

from __future__ import annotations

PERIODS = (
    ("24h", "24 hours"),
    ("7d", "7 days"),
    ("30d", "30 days"),
    ("365d", "1 year"),
    ("month", "This month"),
    ("last", "Last month"),
)
PRODUCTIVE = "Productive"
HELD_OR_RESERVED = "Held or reserved"
OF_CAPACITY = "of capacity"
TYPICAL_WAIT = "Typical wait"
LONG_WAIT = "1 in 20 longer than {wait}"
SAVED_BY_POOLING = "Saved by pooling"
A_MONTH = "{cost} a month"
HELD_HINT = "mean GPUs held by team in each step of {hours:g} h"
USE_BY_HINT = (
    "mean GPUs over the period; bars: held GPUs times their utilisation, and the rest of the held GPUs; "
    "Charged: sum of the charge lines, which may differ from a statement by a cent"
)
USE_BY_MONEY_HINT = "charged amounts of the period"
CHARGED_TRACE = "charged"
MEAN_GPUS = "mean GPUs"
NO_NAME = "none"
USE_BY_TRACES = {"used": "used", "unused": "held, not used", "unknown": "held, not measured"}
USE_BY_COLUMNS_ALONE = (
    *("Mean GPUs", "Guarantee", "Borrowed", "Utilisation", "GPU-hours", "Coverage", "Charged"),
)
USE_BY_COLUMNS = ("Mean GPUs", "Against before", *USE_BY_COLUMNS_ALONE[1:])
NOW_HINT = "utilisation at the last reading"
NOW_SIMULATED_HINT = "utilisation at the last reading, simulated hosts"
RHYTHM_HINT = "mean utilisation of held GPUs by weekday and hour"
SAVING_HINT = (
    "GPUs that suffice for 19 of 20 hours: each team alone, and all together; the mark is what there is"
)
WATERFALL_HINT = "each second of each GPU is in one row; coverage {coverage}"
OPENS_STEP = "A click opens this step alone; a drag chooses a new period."
OPENS_ROWS = "A click opens the rows behind a bar or a cell."
PNG_NAME = "Save as an image"
OPENS_HOUR = "A click opens the busiest hour of that weekday and time."
ALL = "All"
ALLOWED_PROJECT = "TEAM/PROJECT of a project that you may see, such as vision/fit"
ALLOWED_PERSON = "the user name of a person whom you may see"
ALLOWED_IN_LONG = "{allowed}, for a period over 62 days"
COMPARISON_LABELS = {
    "before": "before",
    "4w": "4 weeks before",
    "52w": "52 weeks before",
    "off": "nothing",
}
UNIT_LABELS = {"hours": "Hours", "money": "Money"}
RANKING_LABELS = {"person": "Person", "project": "Project", "workload": "Workload"}
UNIT_WITHOUT_RIGHT = "unit is 'money'; allowed: hours, because you do not see the cost of GPUs."
COMPARED_WITH = "Compared with {window}."
CAPACITY = "Capacity"
# Who can change a step of the waterfall, where no person or host is named.
WHO = {
    "unhealthy": "operators: repair",
    "maintenance": "operators: windows",
    "unallocated": "operators: quotas",
    "dedicated_unused": "teams: their own pools",
    "lost": "{count} workloads",
    "unmeasured": "operators: agents",
    "sm_unmeasured": "operators: SM metrics",
    "productive": "everybody",
}
WHO_COUNT = "{count} people"
WASTE_TITLE = "Who wastes most, and what to do"
WASTE_LABELS = {
    "empty": "empty",
    "idle": "idle",
    "inefficient": "inefficient",
    "reserved_unused": "reserved, unused",
}
OTHERS = "{count} others, without names"
MORE = "{count} more"
WASTED = "Wasted"
OWN_RANK = "Among people, you are number {rank} of {count}."
NO_OWN_RANK = "Nothing of yours was wasted."
NO_WASTE = "Nothing was held and wasted in this period."
WASTE_FOOTER = (
    "Utilisation and SM: means of the time in which they are known. Trend: empty, idle and inefficient hours "
    "in equal parts of the period. People see their own rows; leads see the names "
    "of their teams."
)
WATERFALL_FOOTER = "Each second of each GPU is in one row; the rows sum to the capacity. Coverage {coverage}."
MAIL_SUBJECT = "{name} held GPUs that it did not use"
RANKING_PLURALS = {"person": "people", "project": "projects", "workload": "workloads"}
TREND_LABEL = "empty, idle and inefficient hours over the period"
BUSY_TITLE = "High utilisation is not the same as work"
BUSY_HINT = "one point for each of the 60 workloads that held most; area: held GPU-hours, shape: team"
BUSY_HINT_LONG = "one point for each of the 60 projects that held most; area: held GPU-hours, shape: team"
BUSY_HOVER = "{name}: utilisation {utilisation}, SM active {sm}, {hours} GPU-hours held"
BUSY_COLUMNS = ("Utilisation", "SM active", "Held h", "Wasted h")
OPENS_WORK = "A click opens the workload."
UNNAMED = "without a name"
CAPACITY_LABEL = "capacity {gpus}"
CAPACITY_TRACE = "capacity"
GUARANTEED_LABEL = "guaranteed {gpus}"
BEFORE_TRACE = "before"
DEMAND_TITLE = "When GPUs are wanted"
DEMAND_HINT = (
    "mean GPUs held and waited for by weekday and hour; ○ is above the {gpus} GPUs that there were at most"
)
OPENS_HOUR_OF_DEMAND = "A click opens the hour of that weekday and time with the highest demand."
EVENTS_TRACE = "events"
EVENTS_TITLE = "Events in this period"
EVENT_COLUMNS = ("Event", "Time")
SINCE = "since {start}"
SIZE_INVALID = "size is {given}; allowed: a whole number of GPUs from 1 to {most:,}."
REQUESTS_TITLE = "Requests of {size}"
REQUESTS_CUT = "The {most:,} that waited longest are listed."
REQUESTS_HIDDEN = "Left out: {hidden} of other teams."
NOT_STARTED = "ended without a GPU"
STILL_WAITS = "still waits"
WAIT_GROUP_LABELS = {"size": "Size", "model": "Model", "team": "Team"}
WAIT_RANGE_TRACE = "8 of 10 wait between"
WAIT_HALF_TRACE = "half wait at most"
WAIT_MOST_TRACE = "9 of 10 wait at most"
WAIT_HALF_MARK, WAIT_MOST_MARK = "half", "9 of 10"
WAIT_HOVER = "{name}: half wait at most {p50}, 8 of 10 between {p10} and {p90}; {started} started"
WAITS_RANGE_HINT = (
    "from submission to the first GPU, by {by}; bar: from 1 in 10 to 9 in 10, circle: half; log scale, "
    "{started} starts"
)
ANY_MODEL = "any model"
ALONE = "Alone"
TOGETHER = "Together"
ALONE_HOVER = "{name} alone needs {gpus} GPUs for 19 of 20 hours"
TOGETHER_HOVER = "all teams together need {gpus} GPUs for 19 of 20 hours"
OWNED_LABEL = "there are {gpus}"
SIZING_TITLE = "What to ask for next time"
SIZING_HINT = (
    "GPU-hours that smaller requests would have saved, from the reports of your and your teams' ended runs"
)
SAVED_HOURS = "GPU-hours saved"
SAVED_MONEY = "{currency} saved"
SIZING_COLUMNS = ("Person", "Held h", "Saved h", "Saved", "Saved a month")
SIZING_EMPTY = "No ended run of this period could have asked for less, or none has a report."
OPENS_REPORT = "A click opens the report of the last run."
FORECAST_TITLE = "What will be wanted"
FORECAST_HINT = (
    "mean GPUs held and waited for each day, and the next 4 weeks with the range of 8 in 10 days; "
    "of all teams, whatever the period; {backtest}"
)
FORECAST_DAYS_IN_ZONE = "{hint}; days in {zone}"
FORECAST_COLUMNS = (
    "Last 4 weeks",
    "Next 4 weeks",
    "Range of a day",
    "GPUs",
    "Past error",
    "Against last week",
)
FORECAST_EMPTY = "No GPU is visible."
FORECAST_TRACES = {
    "known": "held and waited for",
    "expected": "expected",
    "range": "8 in 10 days",
    "gpus": "present GPUs",
}


def requests_submitted(total: int) -> str:
    """Return how many requests were submitted, as a sentence."""
    requests = "1 request was" if total == 1 else f"{total:,} requests were"
    return f"{requests} submitted in this period."
