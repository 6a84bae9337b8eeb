"""Which notebooks are idle: no kernel busy, nobody at work in it and a quiet GPU, for as long as the pool's idle limit says.

An open page is nobody at work: it counts while messages go through a kernel or a terminal, or its person does something. What is
unknown is not idle: a notebook whose GPU nobody measures is stopped at its time limit only. docs/notebooks.md tells it to people.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import redis
from django.db.models import Max, Q

from portal.notify import IDLE_NOTICE
from scheduler import nudge, wall_clock
from scheduler import services as engine
from scheduler.core.reasons import Code
from scheduler.models import Allocation, Run, Workload, WorkloadKind
from scheduler.states import RunState, WorkloadState
from telemetry.models import Sample

QUIET_PERCENT = 5.0
LATEST = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
# Written by the edge, see portal/edge/activity.py.
WORKSPACE_KEY = "gpupool:workspace:"


class Verdict(StrEnum):
    """What is to be done about one notebook."""

    BUSY = "busy"
    WAIT = "wait"  # idle, warned, the notice is not over
    WARN = "warn"
    STOP = "stop"


@dataclass(frozen=True)
class Activity:
    """What is known of a notebook. ``last``: its last sign of life, None while somebody is there of whom nobody knows since when;
    ``quiet_since``: None while its GPU is not known to be quiet."""

    busy_kernels: int
    last: datetime | None
    quiet_since: datetime | None


def judge(
    activity: Activity, *, limit: timedelta, warned_at: datetime | None, keep_until: datetime | None, now: datetime
) -> Verdict:
    """Warn once it has been idle for the limit less the notice; stop when the notice is over and nothing has changed."""
    if activity.busy_kernels or activity.last is None or activity.quiet_since is None:
        return Verdict.BUSY
    if keep_until is not None and keep_until > now:
        return Verdict.BUSY
    idle_since = max(activity.last, activity.quiet_since, *(at for at in (keep_until,) if at is not None))
    notice = min(IDLE_NOTICE, limit / 2)
    if now - idle_since < limit - notice:
        return Verdict.BUSY
    if warned_at is None or warned_at < idle_since:
        return Verdict.WARN
    return Verdict.STOP if now - warned_at >= notice else Verdict.WAIT


def cull(now: datetime) -> dict[str, int]:
    """Warn or stop every notebook that is idle; how many of each verdict. Idempotent."""
    counts = dict.fromkeys((verdict.value for verdict in Verdict), 0)
    clock_set_at = wall_clock.set_at()  # readings keep their times, so idleness is counted anew from there
    running = Run.objects.filter(
        state=RunState.RUNNING, rank=0, ready_at__isnull=False, workload__kind=WorkloadKind.NOTEBOOK,
        workload__state=WorkloadState.RUNNING, workload__simulated=False,
    )  # fmt: skip
    for run in running.select_related("workload__pool"):
        workload = run.workload
        limit = timedelta(seconds=workload.pool.idle_limit_seconds)
        activity = observe(run, now, limit)
        kept_until = max((at for at in (workload.keep_until, clock_set_at) if at is not None), default=None)
        verdict = judge(activity, limit=limit, warned_at=workload.idle_warned_at, keep_until=kept_until, now=now)
        _act(workload, verdict, now)
        counts[verdict] += 1
    return counts


def _act(workload: Workload, verdict: Verdict, now: datetime) -> None:
    if verdict == Verdict.STOP:
        engine.request_stop(workload, code=Code.IDLE, now=now)
    elif verdict == Verdict.WARN:
        if workload.idle_warned_at is not None:
            engine.warn_idle(workload, at=None)
        engine.warn_idle(workload, at=now)
    elif verdict == Verdict.BUSY and workload.idle_warned_at is not None:
        engine.warn_idle(workload, at=None)


def observe(run: Run, now: datetime, limit: timedelta) -> Activity:
    """Put together what the agent, the edge and the GPU say about a notebook's run."""
    said = run.activity or {}
    return Activity(
        busy_kernels=_number(said.get("busy")), last=_last_sign(run, said, now), quiet_since=_quiet_since(run, now, limit)
    )


def _last_sign(run: Run, said: dict[str, Any], now: datetime) -> datetime | None:
    """When a person or a message last moved in it. None when a page is open and nobody can say."""
    edge = _seen_by_edge(run)
    at_the_edge = _moment(edge.get("last_input"))
    if at_the_edge is None and (_number(edge.get("sockets")) or _number(said.get("connections"))):
        return None
    # The server's own last_activity moves with every question that an open page asks by itself: only where nothing better is said.
    in_it = _moment(said.get("last_message" if "last_message" in said else "last_activity"))
    signs = (run.placed_at, run.ready_at, at_the_edge, in_it)
    return min(now, max(sign for sign in signs if sign is not None))


def _quiet_since(run: Run, now: datetime, limit: timedelta) -> datetime | None:
    """Since when every unit of the run has been quiet, at most ``limit`` back; None when one was never measured.

    By utilisation; where that is unknown (a MIG slice) by SM activity; where that is unknown too, a process on it keeps it from
    being quiet, unless the agent tells that nothing but idle kernels is there.
    """
    units = set(Allocation.objects.filter(run=run).values_list("unit_id", flat=True))
    since = max(now - limit, run.placed_at)
    blind = Q(utilisation=None, sm_active=None)
    active = Q(utilisation__gt=QUIET_PERCENT) | Q(utilisation=None, sm_active__gt=QUIET_PERCENT)
    measured = Sample.objects.filter(unit_id__in=units, ts__gt=since, ts__lte=now).exclude(blind, processes=None)
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
        background = _moment((run.activity or {}).get("last_background"))
        if background is None:
            return None
        ends.append(background)
    return min(now, max(ends))


def _seen_by_edge(run: Run) -> dict[str, Any]:
    """What the edge keeps about a workspace; nothing when nobody was there or Redis is away."""
    try:
        text = nudge.connection().get(f"{WORKSPACE_KEY}{run.public_id}")
        value = json.loads(text) if isinstance(text, bytes | str) else {}
    except (redis.RedisError, ValueError):
        # Redis holds hints: without them whoever is connected, as the agent says, is at work.
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int:
    if isinstance(value, list):
        return len(value)
    return int(value) if isinstance(value, int | float) else 0


def _moment(value: Any) -> datetime | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # The workload owns the server that says so: a moment beyond the calendar is none.
        return datetime.fromtimestamp(value, UTC) if 0 <= value < LATEST else None
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return None
        return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return None
