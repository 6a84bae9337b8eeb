"""Warn about idle notebooks, and stop them.

A notebook is idle while no kernel is busy, no user is active and its GPU is idle. A GPU whose power changes,
or whose traffic or memory shows work, is not idle. The notebook is stopped when it has been idle for the idle
limit of its pool. An open page alone is not activity. A page counts as activity while
messages pass through a kernel or a terminal, or while its user does something. A notebook without GPU
readings never counts as idle, so it stops only at its time limit. See docs/notebooks.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import redis
from django.db.models import Max, Q

from scheduler import services as scheduling
from scheduler.coordination import clock_correction
from scheduler.core.reasons import ReasonCode
from scheduler.models import Allocation, Run, Workload, WorkloadKind
from scheduler.state import nudge
from scheduler.state.states import RunState, WorkloadState
from telemetry.alerts.work_values import quiet_signals
from telemetry.models import Sample

IDLE_GPU_PERCENT = 5.0
MAX_TIMESTAMP = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
# The edge writes these keys (portal/edge/workspaces/activity.py).
WORKSPACE_KEY_PREFIX = "gpupool:workspace:"
MAX_IDLE_NOTICE_PERIOD = timedelta(minutes=5)
# After work, the power of a GPU takes some seconds to fall.
SETTLING_TIME = timedelta(minutes=1)


class IdleVerdict(StrEnum):
    """The decision about one notebook."""

    BUSY = "busy"
    WAIT = "wait"  # idle, and warned less than one notice period ago
    WARN = "warn"
    STOP = "stop"


@dataclass(frozen=True)
class NotebookActivity:
    """The activity of a notebook, as far as it is known.

    ``last`` is the time of the last activity of its users. It is None if a page is open and its activity is
    unknown. ``gpu_idle_since`` is the time since which the GPU has been idle; None if it is unknown.
    """

    busy_kernels: int
    last: datetime | None
    gpu_idle_since: datetime | None


def idle_notice_period(limit: timedelta) -> timedelta:
    """Return the time between the warning and the stop. ``limit`` is the idle limit of the pool."""
    return min(MAX_IDLE_NOTICE_PERIOD, limit / 2)


def idle_verdict(
    activity: NotebookActivity,
    *,
    limit: timedelta,
    warned_at: datetime | None,
    keep_until: datetime | None,
    now: datetime,
) -> IdleVerdict:
    """Return the decision about a notebook.

    - BUSY: the notebook is active, is protected until ``keep_until``, or is idle for less than the idle limit
      minus the notice period.
    - WARN: it is idle for longer, and its owner was not warned since it became idle.
    - WAIT: its owner was warned, and the notice period has not passed yet.
    - STOP: its owner was warned, and the notice period has passed.
    """
    if activity.busy_kernels or (keep_until is not None and keep_until > now):
        return IdleVerdict.BUSY
    idle_since = _idle_since(activity, keep_until)
    if idle_since is None:
        return IdleVerdict.BUSY
    notice = idle_notice_period(limit)
    if now - idle_since < limit - notice:
        return IdleVerdict.BUSY
    if warned_at is None or warned_at < idle_since:
        return IdleVerdict.WARN
    return IdleVerdict.STOP if now - warned_at >= notice else IdleVerdict.WAIT


def _idle_since(activity: NotebookActivity, keep_until: datetime | None) -> datetime | None:
    if activity.last is None or activity.gpu_idle_since is None:
        return None
    return max(activity.last, activity.gpu_idle_since, *(at for at in (keep_until,) if at is not None))


def stop_idle_notebooks(now: datetime) -> dict[str, int]:
    """Warn about or stop every idle notebook. Return the number of notebooks for each verdict.

    A repeated call does no harm.
    """
    counts = dict.fromkeys((verdict.value for verdict in IdleVerdict), 0)
    # Readings from before a step of the clock have wrong times. So the idle time starts again at the step.
    clock_set_at = clock_correction.last_clock_step_at()
    running = Run.objects.filter(
        state=RunState.RUNNING,
        rank=0,
        ready_at__isnull=False,
        workload__kind=WorkloadKind.NOTEBOOK,
        workload__state=WorkloadState.RUNNING,
        workload__simulated=False,
    )
    for run in running.select_related("workload__pool"):
        workload = run.workload
        limit = timedelta(seconds=workload.pool.idle_limit_seconds)
        activity = notebook_activity(run, now, limit)
        kept_until = max((at for at in (workload.keep_until, clock_set_at) if at is not None), default=None)
        verdict = idle_verdict(
            activity, limit=limit, warned_at=workload.idle_warned_at, keep_until=kept_until, now=now
        )
        idle_since = _idle_since(activity, kept_until)
        if verdict != IdleVerdict.BUSY and idle_since is not None and _shows_work(run, idle_since, now):
            verdict = IdleVerdict.BUSY
        _apply_verdict(workload, verdict, now)
        counts[verdict] += 1
    return counts


def _apply_verdict(workload: Workload, verdict: IdleVerdict, now: datetime) -> None:
    if verdict == IdleVerdict.STOP:
        scheduling.request_stop(workload, code=ReasonCode.IDLE, now=now)
    elif verdict == IdleVerdict.WARN:
        if workload.idle_warned_at is not None:
            scheduling.record_idle_warning(workload, at=None)
        scheduling.record_idle_warning(workload, at=now)
    elif verdict == IdleVerdict.BUSY and workload.idle_warned_at is not None:
        scheduling.record_idle_warning(workload, at=None)


def notebook_activity(run: Run, now: datetime, limit: timedelta) -> NotebookActivity:
    """Combine the reports of the agent, the edge and the GPU about the run of a notebook."""
    reported = run.activity or {}
    return NotebookActivity(
        busy_kernels=_number(reported.get("busy")),
        last=_last_activity(run, reported, now),
        gpu_idle_since=_gpu_idle_since(run, now, limit),
    )


def _last_activity(run: Run, reported: dict[str, Any], now: datetime) -> datetime | None:
    """Return the time of the last input or message, or the start of the run if there was none.

    Return None if a page is open and its activity is unknown.
    """
    edge = _edge_activity(run)
    last_input = _datetime_of(edge.get("last_input"))
    if last_input is None and (_number(edge.get("sockets")) or _number(reported.get("connections"))):
        return None
    # The notebook server's last_activity also changes when an open page polls it. So use it only if the agent
    # does not report last_message.
    last_message = _datetime_of(
        reported.get("last_message" if "last_message" in reported else "last_activity")
    )
    times = (run.placed_at, run.ready_at, last_input, last_message)
    return min(now, max(at for at in times if at is not None))


def _gpu_idle_since(run: Run, now: datetime, limit: timedelta) -> datetime | None:
    """Return the time since which all units of the run have been idle.

    The result is at most ``limit`` ago, because older readings are not read. A unit is active while its
    utilisation is above IDLE_GPU_PERCENT. A MIG slice has no utilisation, so its SM activity is used instead.
    If both are unknown for a unit that a process uses, the run counts as active until the last background
    activity that the agent has reported.

    Return None if this background activity is needed but was not reported, or if a unit has no reading.
    """
    units = set(Allocation.objects.filter(run=run).values_list("unit_id", flat=True))
    since = max(now - limit, run.placed_at)
    blind = Q(utilisation=None, sm_active=None)
    active = Q(utilisation__gt=IDLE_GPU_PERCENT) | Q(utilisation=None, sm_active__gt=IDLE_GPU_PERCENT)
    measured = Sample.objects.filter(unit_id__in=units, ts__gt=since, ts__lte=now).exclude(
        blind, processes=None
    )
    found = {
        row["unit_id"]: row
        for row in measured.values("unit_id").annotate(
            active=Max("ts", filter=active), unjudged=Max("ts", filter=blind & Q(processes__gt=0))
        )
    }
    if not units or len(found) < len(units):
        return None
    ends: list[datetime] = [since, *(row["active"] for row in found.values() if row["active"] is not None)]
    if any(row["unjudged"] is not None for row in found.values()):
        background = _datetime_of((run.activity or {}).get("last_background"))
        if background is None:
            return None
        ends.append(background)
    return min(now, max(ends))


def _shows_work(run: Run, idle_since: datetime, now: datetime) -> bool:
    """Return True if the power, the traffic or the memory activity of a unit shows work since ``idle_since``.

    A utilisation of 0 is one signal. A signal that does not depend on it must not contradict it.
    """
    start = idle_since + SETTLING_TIME
    units = Allocation.objects.filter(run=run).values_list("unit_id", flat=True)
    signals = quiet_signals({(unit, start) for unit in units}, now)
    return any(signal.is_quiet is False for signal in signals.values())


def _edge_activity(run: Run) -> dict[str, Any]:
    """Return the edge's record of the run's workspace.

    Return an empty dict if there is no record or Redis is unavailable.
    """
    try:
        text = nudge.redis_connection().get(f"{WORKSPACE_KEY_PREFIX}{run.public_id}")
        value = json.loads(text) if isinstance(text, bytes | str) else {}
    except (redis.RedisError, ValueError):
        # Without a record, the caller treats the notebook as active if the agent reports an open connection.
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int:
    if isinstance(value, list):
        return len(value)
    return int(value) if isinstance(value, int | float) else 0


def _datetime_of(value: Any) -> datetime | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # The workload can report any value. Ignore a time that a datetime cannot represent.
        return datetime.fromtimestamp(value, UTC) if 0 <= value < MAX_TIMESTAMP else None
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return None
        return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return None
