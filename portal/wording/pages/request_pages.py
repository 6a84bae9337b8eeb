"""Define texts of the form that asks for GPUs, and of its preview."""

from __future__ import annotations

CHART_WITHOUT_RANGE = "{model} units free; your range lies outside the chart."
CHART_OF_RANGE = (
    "{model} units free: in your range of {length} at least {least} and at most {most}; you ask for {asked}."
)
ANY_WHOLE_GPU = "Any whole GPU of {pool}"
FREE_NOW_NOTE = (
    "Right now {free} free. A reservation counts the GPUs that are free when it starts: running work "
    "ends by then, and work on borrowed GPUs is preempted with a notice."
)
RELEASED_IF_IDLE = "If nothing runs in it for {limit} it is released."
OUTSIDE_WORKING_HOURS = "It starts outside working hours, at {start:%H:%M}. {release}"
OVERNIGHT = "It runs overnight. {release}"
NO_KNOWN_START = "It would wait, and nothing known now would start it. {reason}"
WITH_PRICE_FACTOR = ", with the factor {factor} of its priority and type"
NO_PRICE = "No price is set for this model."
WITHIN_GUARANTEE = "Within the guarantee: other teams can't take it back."
RESERVED_ABOVE_GUARANTEE = "{gpus} above what {team} is guaranteed. A confirmed reservation is not reclaimed."
BORROWED = "{gpus} above the guarantee are borrowed and may be reclaimed."
RESERVATION_WAITS = "{name} fits and waits for approval. Until then it holds no GPUs. You will be notified."
SERIES_RESERVED = "{name} is reserved {occurrences} times."
ARRAY_QUEUED = "{name} is queued: {tasks} tasks."
RESERVED = "{name} is reserved."
QUEUED = "{name} is queued."
NEEDS_OPERATOR = "Above the {limit} that {team} may hold of this model: an operator has to agree."
UNIT_OF_LENGTH = "Unit of the length"
MEMBER_END_CHOICES = [("restart", "All of it starts again"), ("end", "All of it ends")]
REPEAT_CHOICES = [
    ("", "Once"),
    ("weekdays", "Every weekday"),
    ("daily", "Every day"),
    ("weekly", "Every week on that day"),
]
DEPENDENCY_CHOICES = [
    ("", "Any time"),
    ("ok", "Once it has finished"),
    ("any", "Once it has ended"),
    ("not_ok", "Only if it fails"),
]
