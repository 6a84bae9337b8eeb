"""Verbs on notebooks and jobs."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Unpack
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction

from portal import policy
from portal.errors import Conflict, Invalid
from portal.hardware_request import (
    HardwareRequest,
    PlacementConstraints,
    check_hardware_request,
    check_pool,
    check_project,
    field_to_change,
    gpu_models_of_pool,
    network_warnings,
    placement_constraints_in,
    whole_gpus_of,
)
from portal.input_checks import InputChecks, display_value
from portal.models import ApiToken, EntryCode, Template, User, WorkspaceOrigin
from portal.planner_budget import cached_answer, metered_planning
from portal.redis_state.access_revocation import session_hash
from portal.services import audit
from portal.services.money import rates_and_budgets
from portal.wording import reason_texts, request_texts
from scheduler import services as engine
from scheduler.core.model.snapshot import Priority
from scheduler.core.reasons import ReasonCode
from scheduler.models import (
    Dependency,
    IfMemberEnds,
    JobArray,
    Pool,
    Project,
    Reservation,
    Workload,
    WorkloadKind,
    WorkloadType,
)
from scheduler.state.states import OPEN_RESERVATION_STATES, WorkloadState
from telemetry.core.amounts import round_amount

MIN_RUNTIME_SECONDS = 60
MAX_RETRIES = 10
MAX_COMMAND_LENGTH = 20_000
MAX_DEPENDENCIES = 20
MAX_ARRAY_TASKS = 1_000
MAX_ARRAY_INDEX = 1_000_000
INDEX_RANGE_REGEX = r"[0-9]{1,7}(-[0-9]{1,7}(:[0-9]{1,7})?)?"
ARRAY_PATTERN = re.compile(
    rf"(?P<parts>{INDEX_RANGE_REGEX}(,{INDEX_RANGE_REGEX})*)(%(?P<at_once>[0-9]{{1,4}}))?"
)
MAX_KEEP_SECONDS = 24 * 3600
ENTRY_CODE_LIFETIME = timedelta(seconds=60)
PRIORITY_NAMES = {priority.name.lower(): priority for priority in Priority}
AUDITED_FIELDS = (
    "name",
    "kind",
    "type",
    "units",
    "hosts",
    "models_wanted",
    "profile",
    "priority",
    "preemptible",
    "max_runtime_seconds",
)


@dataclass(frozen=True)
class WorkloadRequest:
    """Everything of a workload, checked."""

    kind: str
    project: Project
    pool: Pool
    name: str
    type: str
    ask: HardwareRequest
    command: str
    environment: dict[str, str]
    priority: int
    preemptible: bool
    max_runtime_seconds: int
    most_retries: int
    if_member_ends: str
    reservation: Reservation | None
    after: tuple[tuple[str, Workload | JobArray], ...] = ()
    wanted_by: datetime | None = None


def launch_notebook(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    now: datetime,
    template: Template | None = None,
    name: str = "",
    units: int | None = None,
    models: list[str] | None = None,
    profile: str | None = None,
    type: str | None = None,
    max_runtime_seconds: int | None = None,
    reservation: Reservation | None = None,
    via: str = "web",
    **placing: Unpack[PlacementConstraints],
) -> Workload:
    """Queue a notebook; what is not given comes from the template. Notebooks are not preemptible and may not borrow.

    ``placing``: where it has to be and would rather be, and the CPU and memory beside its GPUs. Raises Invalid, NotAllowed;
    Conflict when too many wait already.
    """
    policy.require(actor, "workload.launch", project)
    wish = checked_notebook_request(
        actor,
        project,
        pool,
        now,
        template,
        name,
        units,
        models,
        profile,
        type,
        max_runtime_seconds,
        reservation,
        placing,
    )
    return _queue_and_record(actor=actor, via=via, now=now, wish=wish, verb="launch_notebook")


def submit_job(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    name: str,
    command: str,
    units: int,
    now: datetime,
    hosts: int = 1,
    models: list[str] | None = None,
    profile: str = "",
    type: str = "training",
    priority: int | str = "normal",
    preemptible: bool = True,
    max_runtime_seconds: int = 24 * 3600,
    most_retries: int = 0,
    if_member_ends: str = IfMemberEnds.RESTART,
    reservation: Reservation | None = None,
    environment: dict[str, str] | None = None,
    after: list[tuple[str, Workload | JobArray]] | None = None,
    wanted_by: datetime | None = None,
    via: str = "web",
    **placing: Unpack[PlacementConstraints],
) -> Workload:
    """Queue a job: ``units`` on each of ``hosts`` hosts, running ``command`` in a shell. ``priority`` is its name or number.
    ``placing``: where it has to be and would rather be, and the CPU and memory beside its GPUs on each host.

    ``after`` is earlier work, or whole arrays, that it waits for, each with how that has to end: ok, any or not_ok. ``wanted_by``,
    ``labels_preferred`` and ``spread`` are wishes: nothing waits for them. Raises Invalid, NotAllowed; Conflict when too many
    wait already.
    """
    policy.require(actor, "workload.launch", project)
    wish = checked_job_request(
        project,
        pool,
        now,
        name=name,
        command=command,
        units=units,
        hosts=hosts,
        models=models,
        profile=profile,
        type=type,
        priority=priority,
        preemptible=preemptible,
        max_runtime_seconds=max_runtime_seconds,
        most_retries=most_retries,
        if_member_ends=if_member_ends,
        reservation=reservation,
        environment=environment,
        after=after,
        wanted_by=wanted_by,
        placing=placing,
    )
    return _queue_and_record(actor=actor, via=via, now=now, wish=wish, verb="submit_job")


def submit_array(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    now: datetime,
    array: str,
    via: str = "web",
    **arguments: Any,
) -> JobArray:
    """Queue one job for each index of ``array`` (see ``parse_array_indices``), each with GPUPOOL_ARRAY_INDEX in its environment.

    ``arguments`` are those of submit_job. Raises Invalid, NotAllowed; Conflict when that would be too many that wait: then none
    is queued.
    """
    policy.require(actor, "workload.launch", project)
    checks = InputChecks()
    indices, most_at_once = parse_array_indices(checks, array)
    checks.done()
    wish = checked_job_request(project, pool, now, **with_job_defaults(arguments))
    refuse_if_never_starts(actor, wish, now)
    with transaction.atomic():
        with _conflict_on_full_queue():
            made = engine.queue_array(
                owner=actor,
                now=now,
                indices=indices,
                words=array.strip(),
                most_at_once=most_at_once,
                **workload_columns(wish),
            )
        told = {
            **{name: getattr(wish, name) for name in ("name", "priority", "max_runtime_seconds")},
            "array": array,
        }
        audit.record(actor=actor, via=via, now=now, verb="submit_array", target=made, after=told)
    return made


def cancel_array(*, actor: User, array: JobArray, now: datetime, why: str = "", via: str = "web") -> int:
    """Cancel every task that has not ended; how many. Raises Conflict when none is left, NotAllowed, Invalid."""
    policy.require(actor, "workload.change", array)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        cancelled = engine.cancel_array(array, now=now)
        if not cancelled:
            raise Conflict(
                f"Every task of {array.name} has ended or is stopping; there is nothing to cancel."
            )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="cancel_array",
            target=array,
            why=why,
            after={"tasks": cancelled},
        )
    return cancelled


def relaunch_workload(
    *, actor: User, workload: Workload, now: datetime, via: str = "web", **changes: Any
) -> Workload:
    """Queue a copy of a workload, with ``changes`` to any argument of the verb that made it. Values of its environment may be
    secrets: they go over to its owner only, anybody else gives their own. Raises Invalid, NotAllowed."""
    policy.require(actor, "workload.relaunch", workload)
    if workload.environment and workload.owner_id != actor.pk and "environment" not in changes:
        named = ", ".join(sorted(workload.environment))
        words = f"environment of {workload.name} ({named:.200}) is {workload.owner}'s; allowed: your own values, or none."
        raise Invalid({"environment": words})
    given: dict[str, Any] = {
        "project": workload.project,
        "pool": workload.pool,
        "name": workload.name,
        "units": workload.units,
        "models": list(workload.models_wanted),
        "profile": workload.profile,
        "type": workload.type,
        "max_runtime_seconds": min(workload.max_runtime_seconds, workload.pool.longest_runtime_seconds),
        **{name: getattr(workload, name) for name in PlacementConstraints.__optional_keys__},
    }
    if workload.kind == WorkloadKind.NOTEBOOK:
        return launch_notebook(actor=actor, now=now, via=via, **(given | changes))
    given |= {
        "command": workload.command,
        "hosts": workload.hosts,
        "priority": workload.priority,
        "preemptible": workload.preemptible,
        "most_retries": workload.most_retries,
        "if_member_ends": workload.if_member_ends,
        "environment": dict(workload.environment),
    }
    return submit_job(actor=actor, now=now, via=via, **(given | changes))


def cancel_workload(
    *, actor: User, workload: Workload, now: datetime, why: str = "", via: str = "web"
) -> Workload:
    """Stop it, or take it out of the queue. Raises Conflict when it has ended, NotAllowed, Invalid."""
    policy.require(actor, "workload.change", workload)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(workload, "state")
        if not engine.cancel_workload(workload, now=now):
            raise Conflict(f"{workload.name} has already ended; there is nothing to cancel.")
        workload.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="cancel_workload",
            target=workload,
            why=why,
            before=before,
            after=audit.audited_fields(workload, "state", "stop_requested"),
        )
    return workload


def extend_workload(
    *, actor: User, workload: Workload, seconds: int, now: datetime, via: str = "web"
) -> Workload:
    """Let it run ``seconds`` longer, within the pool's longest runtime. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "workload.change", workload)
    longest = workload.pool.longest_runtime_seconds
    room = longest - workload.max_runtime_seconds
    if room < MIN_RUNTIME_SECONDS:
        raise Conflict(
            f"{workload.name} already has the longest runtime of {workload.pool.name}, {longest:,} seconds."
        )
    checks = InputChecks()
    seconds = checks.count("seconds", seconds, MIN_RUNTIME_SECONDS, room, "seconds")
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(workload, "max_runtime_seconds")
        try:
            extended = engine.extend_workload(workload, seconds=seconds, now=now)
        except engine.OperationRejected as refused:
            # Somebody else extended it meanwhile, or its GPUs are promised.
            late = refused.code == ReasonCode.OVER_RUNTIME_CAP
            what = "was extended just now, so this is too much" if late else "can't be extended so far"
            words = f"{workload.name} {what}. {reason_texts.reason_sentence(refused.code, refused.numbers)}"
            raise Conflict(words, field="seconds", code=refused.code, numbers=refused.numbers) from None
        if not extended:
            raise Conflict(
                f"{workload.name} is ending or has ended; it can't be extended. Launch it again instead."
            )
        workload.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="extend_workload",
            target=workload,
            before=before,
            after=audit.audited_fields(workload, "max_runtime_seconds"),
        )
    return workload


def keep_workload(
    *, actor: User, workload: Workload, seconds: int, now: datetime, via: str = "web"
) -> Workload:
    """Don't stop a notebook for idleness in the next ``seconds``. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "workload.change", workload)
    checks = InputChecks()
    seconds = checks.count("seconds", seconds, MIN_RUNTIME_SECONDS, MAX_KEEP_SECONDS, "seconds")
    checks.done()
    if workload.kind != WorkloadKind.NOTEBOOK:
        raise Conflict(f"{workload.name} is a job; only notebooks are stopped when they are idle.")
    with transaction.atomic():
        before = audit.audited_fields(workload, "keep_until")
        if not engine.postpone_idle_stop(workload, until=now + timedelta(seconds=seconds)):
            raise Conflict(f"{workload.name} is ending or has ended; it can't be kept.")
        workload.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="keep_workload",
            target=workload,
            before=before,
            after=audit.audited_fields(workload, "keep_until"),
        )
    return workload


def open_workspace(
    *,
    actor: User,
    workload: Workload,
    session_key: str,
    now: datetime,
    token: ApiToken | None = None,
    via: str = "web",
) -> str:
    """The URL that opens what a running notebook or job serves, on its own origin, with a one-time code that is good for a minute.

    ``session_key`` is the portal session's: signing out there cuts the workspace too. Empty for a caller with a ``token``, whose
    end cuts it.
    Raises Conflict when it does not run, NotAllowed.
    """
    policy.require(actor, "workload.open", workload)
    if workload.state not in (WorkloadState.RUNNING, WorkloadState.NOTICE):
        raise Conflict(f"{workload.name} is {workload.state}; it can be opened while it runs.")
    if workload.kind != WorkloadKind.NOTEBOOK and not _serves_http(workload):
        raise Conflict(
            f"{workload.name} is a job that serves nothing; one that listens on $GPUPOOL_DOOR can be opened."
        )
    code = secrets.token_urlsafe(32)
    with transaction.atomic():
        origin = workspace_origin(workload, now)
        EntryCode.objects.create(
            code_hash=_hash_secret(code),
            user=actor,
            workload=workload,
            session_key_hash=session_hash(session_key) if session_key else "",
            api_token=token,
            created_at=now,
            expires_at=now + ENTRY_CODE_LIFETIME,
        )
        audit.record(actor=actor, via=via, now=now, verb="open_workspace", target=workload)
    scheme = urlsplit(settings.GPUPOOL_EDGE_URL).scheme
    return f"{scheme}://{origin.label}.{settings.GPUPOOL_NOTEBOOK_DOMAIN}/.gpupool/enter?code={code}"


def _serves_http(workload: Workload) -> bool:
    """Does its first host answer?"""
    return workload.runs.filter(attempt=workload.attempt, rank=0, ready_at__isnull=False).exists()


def workspace_origin(workload: Workload, now: datetime) -> WorkspaceOrigin:
    """The random name under which this notebook is reached, made when it is first asked for."""
    made = {"label": f"w{secrets.token_hex(12)}", "created_at": now}
    return WorkspaceOrigin.objects.get_or_create(workload=workload, defaults=made)[0]


def preview_workload(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    now: datetime,
    kind: str = "job",
    via: str = "web",
    **arguments: Any,
) -> dict[str, Any]:
    """What would happen, without doing it. ``arguments`` are those of submit_job or launch_notebook (``kind`` says which).

    Returns ``starts_now`` (bool), ``code`` and ``numbers`` (the engine's reason), ``expected_start`` (datetime or None),
    ``never`` (``scheduler.services.Never``: why
    it would never start, or None), ``borrowed_slots``, ``quota_effect`` (list of ``scheduler.reads.capacity.QuotaUse``),
    ``gpus`` (float, in whole GPUs), ``price_per_hour`` and ``longest_cost`` (Decimal, or
    None when there is no price), ``currency``, ``wish`` (a warning, or empty), ``warnings`` (sentences that don't block).
    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "workload.launch", project)
    wish = (
        checked_notebook_request(actor, project, pool, now, **with_notebook_defaults(arguments))
        if kind == WorkloadKind.NOTEBOOK
        else checked_job_request(project, pool, now, **with_job_defaults(arguments))
    )
    return _preview_of(actor, wish, now)


# -- checks ------------------------------------------------------------------------------------------------------------


def with_notebook_defaults(given: dict[str, Any]) -> dict[str, Any]:
    names = ("template", "name", "units", "models", "profile", "type", "max_runtime_seconds", "reservation")
    found = {"name": ""} | {name: given.get(name) for name in names if name != "name" or given.get("name")}
    return found | {"placing": placement_constraints_in(given)}


def with_job_defaults(given: dict[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "name": "",
        "command": "",
        "units": 1,
        "hosts": 1,
        "models": None,
        "profile": "",
        "type": "training",
        "priority": "normal",
        "preemptible": True,
        "max_runtime_seconds": 24 * 3600,
        "most_retries": 0,
        "if_member_ends": "restart",
        "reservation": None,
        "environment": None,
        "after": None,
        "wanted_by": None,
    }
    return (
        defaults
        | {name: value for name, value in given.items() if name in defaults}
        | {"placing": placement_constraints_in(given)}
    )


def checked_notebook_request(
    actor: User,
    project: Project,
    pool: Pool,
    now: datetime,
    template: Template | None,
    name: str,
    units: int | None,
    models: list[str] | None,
    profile: str | None,
    type: str | None,
    max_runtime_seconds: int | None,
    reservation: Reservation | None,
    placing: PlacementConstraints,
) -> WorkloadRequest:
    checks = InputChecks()
    if template is not None and template.kind != WorkloadKind.NOTEBOOK:
        checks.note(
            "template",
            template.slug,
            f"template is {template.name}, which is for jobs; allowed: a template for notebooks.",
        )
        template = None
    words = f"{template.name if template else 'Notebook'} of {actor.get_username()}"[:80]
    units = units if units is not None else template.units if template else 1
    profile = profile if profile is not None else template.profile if template else ""
    longest = min(8 * 3600, pool.longest_runtime_seconds)
    seconds = (
        max_runtime_seconds
        if max_runtime_seconds is not None
        else template.max_runtime_seconds
        if template
        else longest
    )
    ask = _checked_hardware(checks, project, pool, units=units, models=models, profile=profile, **placing)
    wish = WorkloadRequest(
        kind=WorkloadKind.NOTEBOOK,
        project=project,
        pool=pool,
        name=checks.text("name", name or words),
        type=checks.choice(
            "type",
            type if type is not None else template.type if template else "interactive",
            WorkloadType.values,
        ),
        ask=ask,
        command="",
        environment={},
        priority=int(Priority.NORMAL),
        preemptible=False,
        max_runtime_seconds=checks.count(
            "max_runtime_seconds", seconds, MIN_RUNTIME_SECONDS, pool.longest_runtime_seconds, "seconds"
        ),
        most_retries=0,
        if_member_ends=IfMemberEnds.RESTART,
        reservation=_checked_reservation(checks, reservation, project, pool, now),
    )
    checks.done()
    return wish


def checked_job_request(
    project: Project,
    pool: Pool,
    now: datetime,
    *,
    name: Any,
    command: Any,
    units: Any,
    hosts: Any,
    models: Any,
    profile: Any,
    type: Any,
    priority: Any,
    preemptible: Any,
    max_runtime_seconds: Any,
    most_retries: Any,
    if_member_ends: Any,
    reservation: Reservation | None,
    environment: Any,
    placing: PlacementConstraints,
    after: Any = None,
    wanted_by: Any = None,
) -> WorkloadRequest:
    checks = InputChecks()
    ask = _checked_hardware(
        checks, project, pool, units=units, hosts=hosts, models=models, profile=profile, **placing
    )
    wish = WorkloadRequest(
        kind=WorkloadKind.JOB,
        project=project,
        pool=pool,
        name=checks.text("name", name),
        type=checks.choice("type", type, WorkloadType.values),
        ask=ask,
        command=checks.text("command", command, most=MAX_COMMAND_LENGTH, lines=True),
        environment=checks.environment("environment", environment or {}),
        priority=_checked_priority(checks, priority, project),
        preemptible=checks.flag("preemptible", preemptible),
        max_runtime_seconds=checks.count(
            "max_runtime_seconds",
            max_runtime_seconds,
            MIN_RUNTIME_SECONDS,
            pool.longest_runtime_seconds,
            "seconds",
        ),
        most_retries=checks.count("most_retries", most_retries, 0, MAX_RETRIES),
        if_member_ends=checks.choice("if_member_ends", if_member_ends, IfMemberEnds.values),
        reservation=_checked_reservation(checks, reservation, project, pool, now),
        after=_checked_dependencies(checks, after or ()),
        wanted_by=_checked_wanted_by(checks, wanted_by, now),
    )
    checks.done()
    return wish


def _checked_hardware(checks: InputChecks, project: Project, pool: Pool, **ask: Any) -> HardwareRequest:
    check_project(checks, project)
    check_pool(checks, pool, project.team)
    return check_hardware_request(checks, pool=pool, **ask)


def _checked_priority(checks: InputChecks, value: Any, project: Project) -> int:
    highest = project.team.highest_priority
    allowed = [name for name, priority in PRIORITY_NAMES.items() if int(priority) <= highest]
    number = PRIORITY_NAMES[value] if isinstance(value, str) and value in PRIORITY_NAMES else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= highest:
        checks.note(
            "priority",
            value,
            f"priority is {value!a:.60}; allowed for {project.team.name}: {', '.join(allowed)}.",
        )
        return int(Priority.NORMAL)
    return int(number)


def _checked_dependencies(
    checks: InputChecks, after: Iterable[tuple[str, Workload | JobArray]]
) -> tuple[tuple[str, Workload | JobArray], ...]:
    """What it waits for: earlier work and arrays that may still end as they have to."""
    found = {(type(on), on.pk): (condition, on) for condition, on in after}
    if len(found) > MAX_DEPENDENCIES:
        words = f"after names {len(found)} workloads and arrays; allowed: at most {MAX_DEPENDENCIES}."
        checks.note("after", len(found), words)
    for condition, _ in found.values():
        checks.choice("after", condition, Dependency.Condition.values)
    if "after" not in checks.problems:
        late = engine.first_never_met(found.values())
        if late is not None:
            ended = (
                "in which not all ended"
                if isinstance(late, JobArray)
                else f"which ended as {late.outcome.replace('_', ' ')}"
            )
            words = (
                f"after names {late.name}, {ended}{' as they had to' if isinstance(late, JobArray) else ''}"
            )
            checks.note("after", late.name, f"{words}; allowed: work that can still end as it has to.")
    return tuple(found.values())


def _checked_wanted_by(checks: InputChecks, wanted_by: Any, now: datetime) -> datetime | None:
    """When it should be done; nothing holds it to that."""
    if wanted_by is None:
        return None
    at = checks.aware_datetime("wanted_by", wanted_by)
    if "wanted_by" not in checks.problems and at <= now:
        words = (
            f"wanted_by is {at:%Y-%m-%d %H:%M} UTC, which is past; allowed: after {now:%Y-%m-%d %H:%M} UTC."
        )
        checks.note("wanted_by", at.isoformat(), words)
    return at


def parse_array_indices(checks: InputChecks, text: Any) -> tuple[list[int], int | None]:
    """The tasks of an array and how many of them at once (None: all): ``0-9``, ``1,3,5-9:2``, ``0-99%4``."""
    allowed = f"such as 0-9, 1,3,5-9:2 or 0-99%4: at most {MAX_ARRAY_TASKS:,} tasks, with numbers up to {MAX_ARRAY_INDEX:,}"
    matched = ARRAY_PATTERN.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= 200 else None
    if matched is None:
        checks.note("array", text, f"array is {display_value(text)}; allowed: {allowed}.")
        return [], None
    found: set[int] = set()
    for part in matched["parts"].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        low, high = int(first), int(last or first)
        if (
            high < low
            or high > MAX_ARRAY_INDEX
            or int(step or 1) < 1
            or (high - low) // int(step or 1) >= MAX_ARRAY_TASKS
        ):
            checks.note("array", text, f"array has the part {part}; allowed: {allowed}.")
            return [], None
        found.update(range(low, high + 1, int(step or 1)))
    at_once = int(matched["at_once"]) if matched["at_once"] else None
    if len(found) > MAX_ARRAY_TASKS or at_once == 0:
        checks.note(
            "array", text, f"array is {display_value(text)}, {len(found):,} tasks; allowed: {allowed}."
        )
    return sorted(found), at_once


def _checked_reservation(
    checks: InputChecks, reservation: Reservation | None, project: Project, pool: Pool, now: datetime
) -> Reservation | None:
    if reservation is None:
        return None
    fits = reservation.project_id == project.pk and reservation.pool_id == pool.pk
    if not fits or reservation.state not in OPEN_RESERVATION_STATES or reservation.end <= now:
        checks.note(
            "reservation",
            str(reservation.public_id),
            f"reservation is {reservation.name}; allowed: a reservation of {project.name} in {pool.name} that is not over.",
        )
    return reservation


# -- doing -------------------------------------------------------------------------------------------------------------


def _queue_and_record(*, actor: User, via: str, now: datetime, wish: WorkloadRequest, verb: str) -> Workload:
    refuse_if_never_starts(actor, wish, now)
    with transaction.atomic():
        with _conflict_on_full_queue():
            workload = engine.queue_workload(owner=actor, now=now, **workload_columns(wish))
        if wish.kind == WorkloadKind.NOTEBOOK:
            workspace_origin(workload, now)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb=verb,
            target=workload,
            after=audit.audited_fields(workload, *AUDITED_FIELDS),
        )
    return workload


def refuse_if_never_starts(actor: User, wish: WorkloadRequest, now: datetime) -> None:
    """Raises Invalid where it would wait for ever. What its team may be granted yet is taken: see ``submission_warning``."""
    never = _cached_never_starts(now, owner=actor, **workload_columns(wish))
    if never is not None and not never.may_be_granted:
        field = field_to_change(never.code, never.numbers)
        value = wish.ask.columns["models_wanted" if field == "models" else field]
        raise Invalid(
            {field: reason_texts.never_starts_sentence(never.code, never.numbers, actor)},
            {field: display_value(value)},
        )


def submission_warning(workload: Workload, viewer: User, now: datetime) -> str:
    """What a person should know who submitted this just now: that it does not start before its team is granted more, that its hosts
    would not reach each other. Else empty."""
    names = ("project", "pool", "owner", "preemptible", "priority", "max_runtime_seconds", "reservation")
    never = _cached_never_starts(
        now, **{name: getattr(workload, name) for name in (*names, *HardwareRequest.__dataclass_fields__)}
    )
    said = [] if never is None else [reason_texts.never_starts_sentence(never.code, never.numbers, viewer)]
    return " ".join([*said, *network_warnings(workload.pool, workload)])


def _cached_never_starts(now: datetime, **columns: Any) -> engine.ImpossibleStart | None:
    """Planned for; what was asked a moment ago is not planned for again, so that many alike are submitted fast."""
    asked = {
        name: str(value) for name, value in columns.items() if name in HardwareRequest.__dataclass_fields__
    }
    rows = [getattr(columns[name], "pk", None) for name in ("pool", "project", "owner", "reservation")]
    facts = [
        columns["preemptible"],
        columns["priority"],
        columns["max_runtime_seconds"],
        *sorted(asked.items()),
    ]
    question = hashlib.sha256(repr((rows, facts)).encode()).hexdigest()
    return cached_answer(("never", question), now, lambda: engine.impossible_start(now=now, **columns))


@contextmanager
def _conflict_on_full_queue() -> Iterator[None]:
    """The engine's refusal to take more into its queue, in words."""
    try:
        yield
    except engine.OperationRejected as refused:
        numbers = dict(refused.numbers)
        raise Conflict(
            reason_texts.reason_sentence(refused.code, numbers), code=refused.code, numbers=numbers
        ) from None


def workload_columns(wish: WorkloadRequest) -> dict[str, Any]:
    return {
        "kind": wish.kind,
        "type": wish.type,
        "name": wish.name,
        "project": wish.project,
        "pool": wish.pool,
        "reservation": wish.reservation,
        "command": wish.command,
        "environment": wish.environment,
        "priority": wish.priority,
        "preemptible": wish.preemptible,
        "max_runtime_seconds": wish.max_runtime_seconds,
        "most_retries": wish.most_retries,
        "if_member_ends": wish.if_member_ends,
        "after": wish.after,
        "wanted_by": wish.wanted_by,
        **wish.ask.columns,
    }


def _preview_of(actor: User, wish: WorkloadRequest, now: datetime) -> dict[str, Any]:
    with metered_planning(actor, now):
        answer = engine.preview_workload(owner=actor, now=now, **workload_columns(wish))
    gpus = whole_gpus_of(wish.pool, wish.ask)
    price = rates_and_budgets.gpu_hour_price(
        pool=wish.pool, models=wish.ask.models_wanted or gpu_models_of_pool(wish.pool), now=now
    )
    per_hour = None if price is None else round_amount(price * Decimal(str(gpus)))
    longest = (
        None
        if price is None
        else round_amount(price * Decimal(str(gpus)) * Decimal(wish.max_runtime_seconds) / 3600)
    )
    answer["numbers"] |= reason_texts.requested_hardware(answer["code"], wish.ask)
    if answer["code"] == ReasonCode.DEPENDENCY and wish.after:
        answer["numbers"]["condition"] = _condition_of_dependency(wish, answer["numbers"])
    return {
        **answer,
        "gpus": gpus,
        "price_per_hour": per_hour,
        "longest_cost": longest,
        "currency": rates_and_budgets.organisation_currency(),
        "wish": _late_warning(wish, answer, now),
        "warnings": network_warnings(wish.pool, wish.ask),
    }


def _condition_of_dependency(wish: WorkloadRequest, numbers: dict[str, Any]) -> str:
    """How that has to end which the reason names."""
    sort, pk = (JobArray, numbers["array"]) if "array" in numbers else (Workload, numbers.get("workload"))
    return next((condition for condition, on in wish.after if isinstance(on, sort) and on.pk == pk), "")


def _late_warning(wish: WorkloadRequest, answer: dict[str, Any], now: datetime) -> str:
    """A warning when it would not be done when it is wanted; empty when it would, or nobody said."""
    start = answer["expected_start"]
    if wish.wanted_by is None or start is None:
        return ""
    predicted = timedelta(seconds=answer["predicted_seconds"])
    return request_texts.late_warning(wish.wanted_by, start + predicted)


def _hash_secret(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
