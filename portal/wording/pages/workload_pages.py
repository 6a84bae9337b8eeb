"""Define texts of the pages of one workload."""

from __future__ import annotations

RESTARTED = "All of it starts again"
ENDED = "All of it ends"
MOVED = "Moved from its host"
STOPPING = "{name} is being cancelled: it is asked to save and to end."
CANCELLED = "{name} is cancelled."
EXTENDED = "{name} may run {hours} h longer."
KEPT = "{name} is kept for {hours} h, idle or not."
HOURS_INVALID = "hours is {given}; allowed: a whole number from 1 to {most:,}."
NOTEBOOK_STOP_EFFECT = "The memory of its kernels is lost. Files saved in its home stay."
JOB_STOP_EFFECT = "Its progress since its last checkpoint is lost. Its log and files stay."
DEPENDENTS_END = "{loss} {ends} with it."
QUEUE_LEAVE_EFFECT = "It leaves the queue and loses its place."
WHY_THEM_LABEL = "Why them, not me?"
WHY_LABEL = "Why, and what would help?"
NOT_PLANNED = "The engine has not planned it yet."
SPARK_LABEL = "Utilisation over the last two hours, {latest}"
GONE_BY = " It ends by {time}."
WRITES_CHECKPOINT = "It writes a checkpoint {purpose}. {reason}{gone_by}"
CANCELLED_BY = "It is being cancelled by {person}{colon}{why}."
STOPPED_BECAUSE = "It is being stopped. {reason}"
IDLE_WARNING = (
    "No busy kernel, no active user and an idle GPU. It stops soon unless you use it; your files stay."
)
UNUSED_WARNING = (
    "It does not use its GPUs. It is asked to save and to end at {time} unless it uses them before."
)
POSTPONE_LEFT = "You may postpone this {times}, by at most {length}."
POSTPONE = "Postpone {length}"
POSTPONED = "The stop of {name} is postponed by {length}."
LAST_CHECKPOINT = "Its last checkpoint is of {time}."
NO_CHECKPOINT = "It wrote no checkpoint and starts from the beginning."
RUNTIME_ENDS = "It reaches its longest runtime in {left}; save your work or extend it."
HOST_SILENT = (
    "Its host {host} last reported {silence} ago. Workloads there stop when its lease expires, and "
    "restart on another host if a retry is left."
)
NO_SUCH_RUN = "This workload has no such run."
EMPTY_LOG = "This run has written nothing."
MEAN_USE = "mean {use}"
NO_OUTPUT = "The run wrote no output."
NO_OUTPUT_SIMULATED = "The run is part of the simulated history, which has no output."
OUTPUT_DELETED = "The output is no longer kept: logs are deleted {days} days after the last line."
GANG_END_LABEL = "If it ends on one host"
LOG_TAIL = "The last {kilobytes} kB; download it for the rest."
CHART_LATER = "A chart is drawn from the second reading on."
NOTHING_CHARGED = "Nothing is charged yet; the current hour is charged when it is over."
PRICE_LATER_LABEL = "Per hour, once it runs"

CORRECTED = ", correction of {month:%B %Y}"
BUCKET_LABELS = {
    "used": "Held by this workload",
    "reserved_unused": "Reserved, not used",
    "preempted": "Lost to a preemption, not charged",
    "hardware_lost": "Lost to hardware, not charged",
}
