"""Facts into notices. Facts are rows that other parts wrote; a notice names its fact, so that looking twice tells it once.

``tell(now)`` is idempotent and looks at what happened since the last look (``NoticeMark``), and a little before, since a
transaction may commit later than the times it wrote. Mail and webhooks will read the same Notification rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q

from portal import policy
from portal.models import (
    Approval,
    AuditEvent,
    Membership,
    NoticeMark,
    Notification,
    Submission,
    SubmissionState,
    ToldStart,
    User,
)
from portal.reads.fleet.host_history import ANONYMOUS_OPERATOR
from portal.reads.work import forced_moves, job_arrays, manual_stops
from portal.wording import request_texts
from scheduler.core.fit.mig_layout import layout_text
from scheduler.core.reasons import ReasonCode
from scheduler.models import (
    Allocation,
    BoundUnit,
    Command,
    Decision,
    Diagnostic,
    GeometryChange,
    Host,
    HostStateChange,
    MaintenanceWindow,
    Reservation,
    Run,
    StrayAction,
    Workload,
    WorkloadKind,
)
from scheduler.runs.commands import LIVE_STATES
from scheduler.services.powered_off import parse_powered_off
from scheduler.state import nudge
from scheduler.state.states import (
    OPEN_RESERVATION_STATES,
    DiagnosticState,
    GeometryState,
    LeaseState,
    RepairState,
    ReservationState,
    WorkloadState,
)
from scheduler.sweeps import time_limits
from scheduler.sync.home_volumes import has_other_storage
from telemetry.health import stray_processes
from telemetry.models import BudgetAlert, BudgetMeasure, HealthEvent, HealthRule, Stray

LOOKBACK_OVERLAP = timedelta(minutes=2)
DELETE_BATCH_SIZE = 5_000
INITIAL_LOOKBACK = timedelta(hours=1)
RESERVATION_REMINDER_BEFORE = timedelta(minutes=15)
MIN_START_SHIFT = timedelta(minutes=30)
DISK_FULL_NOTICE_AFTER = timedelta(minutes=10)  # a disk that ended work has filled is emptied sooner
MAX_STRAY_NOTICES_PER_HOUR = 5  # of one host in an hour; what comes after these is told together
STRAY_DIGEST_INTERVAL = timedelta(minutes=10)
MAX_STRAYS_NAMED = 5  # in one notice
IDLE_NOTICE_PERIOD = timedelta(minutes=5)  # between the warning of idleness and the stop


@dataclass(frozen=True)
class PendingNotice:
    """Something to tell some people once. ``source`` names the fact: (user, source) is unique."""

    kind: str
    source: str
    users: tuple[int, ...]
    numbers: dict[str, Any] = field(default_factory=dict)
    workload: int | None = None
    reservation: int | None = None
    submission: int | None = None


def write_notices(now: datetime) -> int:
    """Write the notices of every fact since the last look; how many notices are new."""
    with transaction.atomic():
        since = _lookback_start(now)
        rows: dict[tuple[int, str], Notification] = {}
        for fact in (fact for source in NOTICE_SOURCES for fact in source(since, now)):
            for user in fact.users:
                told = Notification(
                    user_id=user,
                    kind=fact.kind,
                    numbers=fact.numbers,
                    workload_id=fact.workload,
                    reservation_id=fact.reservation,
                    submission_id=fact.submission,
                    source=fact.source,
                    at=now,
                )
                rows.setdefault((user, fact.source), told)
        sources = {source for _, source in rows}
        known = set(Notification.objects.filter(source__in=sources).values_list("user_id", "source"))
        fresh = [row for key, row in rows.items() if key not in known]
        Notification.objects.bulk_create(fresh, ignore_conflicts=True)
        NoticeMark.objects.update_or_create(pk=1, defaults={"looked_until": now})
        nudge.pages(*(user_topic(user) for user in sorted({row.user_id for row in fresh})))
    return len(fresh)


def delete_old_notices(now: datetime) -> int:
    """Forget notices that are older than the setting keeps, read or not, a bounded part at a time; how many."""
    before = now - timedelta(days=settings.GPUPOOL_NOTICE_DAYS)
    old = Notification.objects.filter(at__lt=before).order_by("at").values_list("pk", flat=True)
    return Notification.objects.filter(pk__in=list(old[:DELETE_BATCH_SIZE])).delete()[0]


def user_topic(user_id: int) -> str:
    """The live topic of what is one user's own (portal/edge/page_events.py)."""
    return f"user:{user_id}"


def _lookback_start(now: datetime) -> datetime:
    mark = NoticeMark.objects.filter(pk=1).first()
    return (mark.looked_until if mark else now - INITIAL_LOOKBACK) - LOOKBACK_OVERLAP


# -- facts -------------------------------------------------------------------------------------------------------------


def _started_workloads(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    runs = Run.objects.filter(
        running_at__gt=since, running_at__lte=now, rank=0, workload__simulated=False, workload__array=None
    )
    for run in runs.select_related("workload", "host"):
        yield PendingNotice(
            "started" if run.attempt <= 1 else "resumed",
            f"started:{run.pk}",
            (run.workload.owner_id,),
            {
                "name": run.workload.name,
                "host": run.host.name,
                "attempt": run.attempt,
                **_checkpoint_location(run),
            },
            workload=run.workload_id,
        )


def _checkpoint_location(run: Run) -> dict[str, bool]:
    """Where its last checkpoint lies in the homes of other hosts, and it can't find it."""
    return {"other_homes": True} if has_other_storage(run.workload.homes_id, run.host) else {}


def _ended_workloads(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    ended = list(
        Workload.objects.filter(
            ended_at__gt=since, ended_at__lte=now, state=WorkloadState.ENDED, simulated=False, array=None
        )
    )
    by_hand = manual_stops.manual_stops_of(ended)
    for workload in ended:
        numbers = {**workload.outcome_numbers, "name": workload.name, "outcome": workload.outcome}
        if manual_stops.is_manual_stop(workload):
            numbers["ran"] = workload.attempt > 0
        if workload.pk in by_hand:
            numbers |= {"by": by_hand[workload.pk].name, "why": by_hand[workload.pk].why}
        yield PendingNotice(
            "ended", f"ended:{workload.pk}", (workload.owner_id,), numbers, workload=workload.pk
        )


def _started_arrays(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """One notice for a whole array, when the first of its tasks runs."""
    for array, run in job_arrays.arrays_started_between(since, now):
        numbers = {"name": array.name, "tasks": array.tasks_all, "host": run.host.name}
        yield PendingNotice(
            "array_started", f"array started:{array.pk}", (array.owner_id,), numbers, workload=run.workload_id
        )


def _ended_arrays(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """One notice when the last task has ended, with how many did how; before that one when a task fails, and again each time
    twice as many have: at most eleven for a thousand."""
    for array, task in job_arrays.arrays_ended_between(since, now):
        numbers: dict[str, Any] = {"name": array.name, "tasks": array.tasks_all, "failed": array.failed}
        if array.failed:
            numbers |= {**task.outcome_numbers, "task": task.name, "outcome": task.outcome}
        owner = (array.owner_id,)
        if array.waiting + array.running == 0:
            numbers |= {"finished": array.finished, "cancelled": array.cancelled}
            yield PendingNotice("array_ended", f"array ended:{array.pk}", owner, numbers, workload=task.pk)
        elif array.failed:
            source = f"array failed:{array.pk}:{array.failed.bit_length()}"
            yield PendingNotice("array_fails", source, owner, numbers, workload=task.pk)


def _evicted_workloads(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Of a whole array once an hour: where one of its tasks makes room, others soon do."""
    decisions = Decision.objects.filter(
        kind=Decision.Kind.EVICTED, at__gt=since, at__lte=now, workload__simulated=False
    )
    for decision in decisions.select_related("workload__array").order_by("pk"):
        name, source = _grouped_by_array(decision.workload, f"evicted:{decision.pk}", decision.at)
        numbers = {**decision.numbers, "name": name, "code": decision.code}
        yield PendingNotice(
            "preemption_notice", source, (decision.workload.owner_id,), numbers, workload=decision.workload_id
        )


def _grouped_by_array(workload: Workload, source: str, at: datetime) -> tuple[str, str]:
    """The name and the source of what is told of a workload; of tasks of an array together, once an hour."""
    if workload.array is None:
        return workload.name, source
    return (
        f"{workload.array.name}, or a part of it,",
        f"{source.partition(':')[0]}:array {workload.array_id}:{at:%Y%m%d%H}",
    )


def _idle_warnings(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    for workload in Workload.objects.filter(
        idle_warned_at__gt=since, idle_warned_at__lte=now, state=WorkloadState.RUNNING
    ):
        warned = workload.idle_warned_at
        if warned is not None:
            numbers = {"name": workload.name, "stop_at": (warned + IDLE_NOTICE_PERIOD).timestamp()}
            source = f"idle:{workload.pk}:{warned.timestamp():.0f}"
            yield PendingNotice("idle_warning", source, (workload.owner_id,), numbers, workload=workload.pk)


def _shifted_expected_starts(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """A start that was told and moved by more than half an hour and a quarter of the wait. Keeps what was told last."""
    waiting = Workload.objects.filter(
        state=WorkloadState.QUEUED, expected_start__isnull=False, simulated=False
    )
    # Of an array its first task speaks for all; that the others start later is what an array is.
    waiting = waiting.exclude(Exists(Workload.objects.filter(array=OuterRef("array"), pk__lt=OuterRef("pk"))))
    untold = waiting.filter(told_start=None).only("pk", "expected_start")
    ToldStart.objects.bulk_create(
        [
            ToldStart(workload=workload, expected_start=workload.expected_start, at=now)
            for workload in untold
            if workload.expected_start
        ],
        ignore_conflicts=True,
    )
    earlier = Q(told_start__expected_start__gt=F("expected_start") + MIN_START_SHIFT)
    later = Q(told_start__expected_start__lt=F("expected_start") - MIN_START_SHIFT)
    for workload in waiting.filter(earlier | later).select_related("told_start", "array"):
        told, expected = workload.told_start, workload.expected_start
        if expected is None or abs(expected - told.expected_start) < abs(told.expected_start - told.at) / 4:
            continue
        numbers = {
            "name": workload.array.name if workload.array else workload.name,
            "expected_start": expected.timestamp(),
            "before": told.expected_start.timestamp(),
        }
        ToldStart.objects.filter(pk=told.pk).update(expected_start=expected, at=now)
        source = f"moved:{workload.pk}:{expected.timestamp():.0f}"
        yield PendingNotice(
            "expected_start_moved", source, (workload.owner_id,), numbers, workload=workload.pk
        )


def _upcoming_reservations(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    for reservation in Reservation.objects.filter(
        state=ReservationState.CONFIRMED, start__gt=now, start__lte=now + RESERVATION_REMINDER_BEFORE
    ):
        start = reservation.start.timestamp()
        numbers = {"name": reservation.name, "start": start}
        source = f"soon:{reservation.pk}:{start:.0f}"
        yield PendingNotice(
            "reservation_soon", source, (reservation.owner_id,), numbers, reservation=reservation.pk
        )


def _released_reservations(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    for reservation in Reservation.objects.filter(
        state=ReservationState.RELEASED, ended_at__gt=since, ended_at__lte=now
    ):
        numbers = {"name": reservation.name}
        owner = (reservation.owner_id,)
        yield PendingNotice(
            "reservation_released", f"released:{reservation.pk}", owner, numbers, reservation=reservation.pk
        )


def _reservations_without_units(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To the owner and to operators, who may be able to return a host: one that has begun and can't be served at present."""
    waiting = Reservation.objects.filter(
        reason_code=ReasonCode.RESERVED_UNITS_MISSING,
        reason_at__gt=since,
        reason_at__lte=now,
        state__in=OPEN_RESERVATION_STATES,
    )
    for row in waiting:
        numbers = {**row.reason_numbers, "name": row.name, "code": row.reason_code}
        source = f"waits:{row.pk}:{row.reason_at:%Y%m%d%H%M%S}"
        yield PendingNotice(
            "reservation_waits", source, (row.owner_id, *_operator_ids()), numbers, reservation=row.pk
        )


def _submissions_to_approve(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    waiting = Submission.objects.filter(
        state=SubmissionState.WAITING, created_at__gt=since, created_at__lte=now
    )
    operators: tuple[int, ...] | None = None
    for submission in waiting.select_related("team", "author"):
        if operators is None:
            operators = _operator_ids()
        deciders = set(operators) | (
            _lead_ids(submission.team_id) if submission.kind == Submission.Kind.MEMBERSHIP else set()
        )
        numbers = {
            "author": submission.author.get_username(),
            "what": request_texts.submission_summary(submission.kind, submission.payload),
            "team": submission.team.name,
        }
        users = tuple(sorted(deciders - {submission.author_id}))
        yield PendingNotice(
            "approval_wanted", f"wanted:{submission.pk}", users, numbers, submission=submission.pk
        )


def _decided_submissions(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    decided = Approval.objects.filter(decided_at__gt=since, decided_at__lte=now)
    for approval in decided.select_related("submission", "decided_by"):
        submission = approval.submission
        changed = approval.changed_payload
        numbers = {
            "by": approval.decided_by.get_username(),
            "what": request_texts.submission_summary(submission.kind, changed or submission.payload),
            "comment": approval.comment,
        }
        kind = "declined" if not approval.approved else "approved_changed" if changed else "approved"
        yield PendingNotice(
            kind, f"decided:{approval.pk}", (submission.author_id,), numbers, submission=submission.pk
        )


def _host_failures(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To operators, and to the owners of what runs there."""
    bad = Q(lease_state=LeaseState.SILENT) | ~Q(repair_state=RepairState.WELL)
    for change in HostStateChange.objects.filter(bad, at__gt=since, at__lte=now).select_related("host"):
        before = HostStateChange.objects.filter(host=change.host, pk__lt=change.pk).order_by("-pk").first()
        off = parse_powered_off(change.reason)
        if before is not None and not off and _same_health(change, before):
            continue  # something else about it changed
        owners = Run.objects.filter(host=change.host, ended_at=None).values_list(
            "workload__owner_id", flat=True
        )
        trouble = (
            "it fell silent"
            if change.lease_state == LeaseState.SILENT
            else f"its repair state is {change.repair_state}"
        )
        numbers: dict[str, Any] = {"host": change.host.name}
        if off is None:
            numbers |= {"trouble": f"{trouble}{f' ({change.reason})' if change.reason else ''}"}
            yield PendingNotice("host_trouble", f"host:{change.pk}", (*_operator_ids(), *owners), numbers)
            continue
        name, why = off
        numbers |= {"off_since": change.at.timestamp(), "why": why}
        # As on the host's page: who it was is for those who see everybody's work.
        told = User.objects.filter(pk__in=(*_operator_ids(), *owners))
        knows = tuple(user.pk for user in told if policy.sees_all_teams(user))
        yield PendingNotice(
            "host_trouble", f"host:{change.pk}", knows, {**numbers, "by": _display_name(name)}
        )
        others = tuple(user.pk for user in told if user.pk not in knows)
        yield PendingNotice(
            "host_trouble", f"host:{change.pk}", others, {**numbers, "by": ANONYMOUS_OPERATOR}
        )


def _display_name(username: str) -> str:
    """As pages name people."""
    user = User.objects.filter(username=username).first()
    return (user.get_full_name() if user else "") or username


def _same_health(change: HostStateChange, before: HostStateChange) -> bool:
    return (change.lease_state, change.repair_state) == (before.lease_state, before.repair_state)


def _full_disks(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To operators: a host that has been closed by its full disk for so long that nobody seems to be emptying it. Once, until it
    had room and filled again."""
    full = Host.objects.filter(
        disk_full=True,
        disk_full_since__gt=since - DISK_FULL_NOTICE_AFTER,
        disk_full_since__lte=now - DISK_FULL_NOTICE_AFTER,
    )
    for host in full.order_by("pk"):
        begun = host.disk_full_since.timestamp() if host.disk_full_since else 0
        yield PendingNotice(
            "disk_is_full",
            f"full:{host.pk}:{begun:.0f}",
            _operator_ids(),
            {"host": host.name, "since": begun},
        )


def _hardware_events(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To operators: what the table of hardware events wants somebody to know, of one kind on one GPU once an hour. Processes of no
    workload each (``_stray_digests``): another one is another person's, say."""
    events = (
        HealthEvent.objects.filter(handled_at__gt=since, handled_at__lte=now)
        .exclude(action_taken__in=("", HealthRule.Action.NOTE))
        .exclude(code=stray_processes.STRAY_CODE)
    )
    meanings = dict(HealthRule.objects.values_list("code", "meaning"))
    for event in events.select_related("host", "gpu").order_by("pk"):
        numbers = {
            "host": event.host.name,
            "gpu": event.gpu.index if event.gpu else None,
            "event": event.code,
            "meaning": meanings.get(event.code, ""),
            "detail": event.detail,
            "action": event.action_taken,
        }
        source = f"hardware:{event.host_id}:{event.gpu_id or 0}:{event.code}"[:60] + f":{event.at:%Y%m%d%H}"
        yield PendingNotice("hardware_event", source, _operator_ids(), numbers)


def _stray_digests(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To operators: each process of no workload once, at once, those that were looked at together in one notice. Where they keep
    coming to a host, what comes after the first notices of a clock hour is told every ten minutes."""
    hour = (since - STRAY_DIGEST_INTERVAL).replace(minute=0, second=0, microsecond=0)
    found = HealthEvent.objects.filter(
        code=stray_processes.STRAY_CODE, handled_at__gte=hour, handled_at__lte=now
    )
    found = found.exclude(action_taken__in=("", HealthRule.Action.NOTE)).select_related("host__pool", "gpu")
    events = list(found.order_by("handled_at", "pk"))
    before = stray_processes.previously_reported(events) if events else set()
    looks: dict[tuple[int, datetime], list[datetime]] = defaultdict(list)
    together: dict[tuple[str, datetime], list[HealthEvent]] = defaultdict(list)
    for event in events:
        at = event.handled_at
        if at is None or event.pk in before:
            continue
        looked = looks[event.host_id, at.replace(minute=0, second=0, microsecond=0)]
        if at not in looked:
            looked.append(at)
        is_late = looked.index(at) >= MAX_STRAY_NOTICES_PER_HOUR
        due = _end_of_digest_interval(at) if is_late else at
        source = f"stray{'s' if is_late else ''} on {event.host_id}:{event.action_taken}:{due:%Y%m%d%H%M%S%f}"
        together[source, due].append(event)
    for (source, due), those in together.items():
        if since < due <= now:
            told = [
                f"GPU {event.gpu.index}: {event.detail}" if event.gpu else event.detail for event in those
            ]
            numbers = {
                "host": those[0].host.name,
                "told": told[:MAX_STRAYS_NAMED],
                "more": max(0, len(told) - MAX_STRAYS_NAMED),
                "action": those[0].action_taken,
                "ends": those[0].host.pool.stray_action == StrayAction.END,
            }
            yield PendingNotice("strays_found", source, _operator_ids(), numbers)


def _end_of_digest_interval(at: datetime) -> datetime:
    return at.replace(minute=at.minute // 10 * 10, second=0, microsecond=0) + STRAY_DIGEST_INTERVAL


def _finished_diagnostics(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To operators: a GPU that failed its diagnostic, and one that came back by it."""
    ended = Diagnostic.objects.filter(ended_at__gt=since, ended_at__lte=now).select_related("host", "gpu")
    for row in ended.order_by("pk"):
        numbers = {"host": row.host.name, "gpu": row.gpu.index, "detail": row.detail}
        if row.state == DiagnosticState.FAILED:
            numbers["out"] = row.gpu.repair_state == RepairState.OUT
            yield PendingNotice("diagnostic_failed", f"diagnostic:{row.pk}", _operator_ids(), numbers)
        elif row.state == DiagnosticState.PASSED and row.why == Diagnostic.Why.QUARANTINED:
            yield PendingNotice("gpu_is_back", f"diagnostic:{row.pk}", _operator_ids(), numbers)


def _finished_geometry_changes(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To operators: a GPU that was split otherwise, or could not be."""
    ended = GeometryChange.objects.filter(
        ended_at__gt=since, ended_at__lte=now, state__in=(GeometryState.DONE, GeometryState.FAILED)
    )
    for row in ended.select_related("host", "gpu").order_by("pk"):
        numbers = {
            "host": row.host.name,
            "gpu": row.gpu.index,
            "geometry": layout_text(row.profiles),
            "detail": row.detail,
            "in_service": row.gpu.repair_state in (RepairState.WELL, RepairState.RESHAPING),
        }
        kind = "geometry_changed" if row.state == GeometryState.DONE else "geometry_failed"
        yield PendingNotice(kind, f"geometry:{row.pk}", _operator_ids(), numbers)


def _strays_of_users(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To the person a process of no workload belongs to, by its name on the host, where the pool wants that."""
    seen = Stray.objects.filter(first_seen__gt=since, first_seen__lte=now, run="").exclude(
        host__pool__stray_action=StrayAction.REPORT
    )
    for stray in seen.select_related("host", "gpu").order_by("pk"):
        users = tuple(User.objects.filter(username=stray.user, is_active=True).values_list("pk", flat=True))
        numbers = {
            "process": stray.name or "?",
            "pid": stray.pid,
            "gpu": stray.gpu.index,
            "host": stray.host.name,
        }
        yield PendingNotice("stray_is_yours", f"stray:{stray.pk}", users, numbers)


def _rebound_reservations(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To the owner: its GPUs can't be used any more, and it gets others."""
    for row in Reservation.objects.filter(moved_at__gt=since, moved_at__lte=now):
        moved = row.moved_at.timestamp() if row.moved_at else 0
        numbers = {"name": row.name, "host": row.moved_from}
        yield PendingNotice(
            "reservation_moves", f"moved:{row.pk}:{moved:.0f}", (row.owner_id,), numbers, reservation=row.pk
        )


def _reservations_with_unusable_units(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To the owner: GPUs of it can't be used, and it keeps them while work runs inside it. Once for the same hosts and GPUs."""
    inside = Allocation.objects.filter(reservation=OuterRef("reservation"), period__upper_inf=True)
    found: dict[int, list[BoundUnit]] = defaultdict(list)
    rows = (
        time_limits.unusable_bound_units(now)
        .filter(Exists(inside))
        .select_related("reservation", "unit__gpu__host")
    )
    for bound in rows.order_by("reservation_id", "pk"):
        found[bound.reservation_id].append(bound)
    for pk, units in found.items():
        reservation = units[0].reservation
        hosts = sorted({bound.unit.gpu.host.name for bound in units})
        numbers = {
            "name": reservation.name,
            "host": ", ".join(hosts),
            "units": len(units),
            "of": reservation.units * reservation.hosts,
            "workloads": Workload.objects.filter(reservation=pk, state__in=LIVE_STATES).count(),
        }
        source = f"stuck:{pk}:{units[0].pk}:{len(units)}"
        yield PendingNotice("reservation_stuck", source, (reservation.owner_id,), numbers, reservation=pk)


def _maintenance_windows(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To the owners of what a window touches: when it is announced, and when it is taken back."""
    for window in MaintenanceWindow.objects.filter(created_at__gt=since, created_at__lte=now).select_related(
        "host"
    ):
        told = {"host": window.host.name, "end": window.end.timestamp(), "reason": window.reason}
        yield from _affected_by_window(
            "maintenance_announced", f"window:{window.pk}", window.host, window.start, window.end, told
        )
    taken_back = AuditEvent.objects.filter(verb="cancel_maintenance", at__gt=since, at__lte=now)
    for event in taken_back.order_by("pk"):
        host = Host.objects.filter(name=event.target_name).first()
        before = event.before or {}
        if host is not None and "start" in before and "end" in before:
            start, end = datetime.fromisoformat(before["start"]), datetime.fromisoformat(before["end"])
            yield from _affected_by_window(
                "maintenance_cancelled", f"no window:{event.pk}", host, start, end, {"host": host.name}
            )


def _affected_by_window(
    kind: str, source: str, host: Host, start: datetime, end: datetime, told: dict[str, Any]
) -> Iterator[PendingNotice]:
    """Work on the host that may still run when the window begins, and reservations bound to its GPUs in the window."""
    told = {**told, "start": start.timestamp()}
    running = Workload.objects.filter(runs__host=host, runs__ended_at=None, simulated=False).distinct()
    for workload in running.exclude(state=WorkloadState.ENDED).select_related("array"):
        if (workload.started_at or start) + timedelta(seconds=workload.max_runtime_seconds) > start:
            of = f"a{workload.array_id}" if workload.array else workload.pk
            numbers = {
                **told,
                "name": workload.array.name if workload.array else workload.name,
                "moves": True,
            }
            yield PendingNotice(kind, f"{source}:{of}", (workload.owner_id,), numbers, workload=workload.pk)
    bound = Reservation.objects.filter(
        state=ReservationState.ACTIVE, end__gt=start, start__lt=end, bound_units__unit__gpu__host=host
    ).distinct()
    for reservation in bound:
        numbers = {**told, "name": reservation.name, "moves": False}
        owner = (reservation.owner_id,)
        yield PendingNotice(kind, f"{source}:r{reservation.pk}", owner, numbers, reservation=reservation.pk)


def _forced_moves(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To the owner of work that has to go elsewhere because its host or its GPU is taken out."""
    told = Command.objects.filter(
        verb__in=(Command.Verb.NOTICE, Command.Verb.STOP),
        code__in=(ReasonCode.DRAINED, ReasonCode.GPU_ERROR),
        created_at__gt=since,
        created_at__lte=now,
    )
    commands = list(told.select_related("run__workload__array", "host").order_by("pk"))
    behind = forced_moves.forced_moves_of_commands(commands)
    told_together: dict[tuple[int, int], list[Command]] = defaultdict(list)
    for command in commands:
        told_together[command.run.workload_id, command.run.attempt].append(command)
    for members in told_together.values():
        # Of a gang the one on the host that is taken out: the others go with it.
        known = (c for c in members if behind[c.run_id].numbers.keys() & {"event", "words"})
        command = next(known, members[0])
        workload, move = command.run.workload, behind[command.run_id]
        # A notebook whose GPU failed has nothing to go on from.
        ends = command.code == ReasonCode.GPU_ERROR and workload.kind == WorkloadKind.NOTEBOOK
        name, source = _grouped_by_array(workload, f"moves:{command.run_id}", command.created_at)
        numbers = {**move.numbers, "name": name, "host": command.host.name, "code": move.code, "ends": ends}
        yield PendingNotice("has_to_move", source, (workload.owner_id,), numbers, workload=workload.pk)


def _budgets_reached(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """To finance and the leads of the team."""
    for alert in BudgetAlert.objects.filter(at__gt=since, at__lte=now).select_related(
        "budget__team", "budget__project"
    ):
        budget = alert.budget
        whose = budget.team or budget.project
        team_id = budget.team_id or (budget.project.team_id if budget.project else None)
        finance = User.objects.filter(finance=True, is_active=True).values_list("pk", flat=True)
        users = (*finance, *(_lead_ids(team_id) if team_id is not None else ()))
        numbers = {"name": whose.name if whose else "", "percent": alert.percent, "forecast": alert.forecast}
        if budget.measure == BudgetMeasure.GPU_HOURS:
            numbers["measure"] = budget.measure
        yield PendingNotice("budget_reached", f"budget:{alert.pk}", users, numbers)


NOTICE_SOURCES = (
    _started_workloads,
    _ended_workloads,
    _started_arrays,
    _ended_arrays,
    _evicted_workloads,
    _idle_warnings,
    _shifted_expected_starts,
    _upcoming_reservations,
    _released_reservations,
    _reservations_without_units,
    _submissions_to_approve,
    _decided_submissions,
    _host_failures,
    _full_disks,
    _hardware_events,
    _stray_digests,
    _finished_diagnostics,
    _finished_geometry_changes,
    _strays_of_users,
    _rebound_reservations,
    _reservations_with_unusable_units,
    _maintenance_windows,
    _forced_moves,
    _budgets_reached,
)


def _operator_ids() -> tuple[int, ...]:
    return tuple(User.objects.filter(operator=True, is_active=True).values_list("pk", flat=True))


def _lead_ids(team_id: int) -> set[int]:
    leads: Iterable[int] = Membership.objects.filter(team_id=team_id, role=Membership.Role.LEAD).values_list(
        "user_id", flat=True
    )
    return set(leads)
