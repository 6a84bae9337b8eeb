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
from portal.models import ApiToken, EntryCode, Template, User, WorkspaceOrigin
from portal.questions import asking, kept
from portal.services import audit, money
from portal.services.asks import (
    AskFields,
    Placing,
    check_ask,
    check_pool,
    check_project,
    field_at_fault,
    gpus_of,
    models_of,
    network_warnings,
    placing_of,
)
from portal.sign_out import session_hash
from portal.validation import Checks, shown
from portal.wording import ask_texts, reasons
from scheduler import services as engine
from scheduler.core.model import Priority
from scheduler.core.reasons import Code
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
from scheduler.states import PROMISED, WorkloadState
from telemetry.core.money import rounded

SHORTEST_RUNTIME = 60
MOST_RETRIES = 10
LONGEST_COMMAND = 20_000
MOST_DEPENDENCIES = 20
MOST_TASKS = 1_000
LARGEST_INDEX = 1_000_000
INDICES = r"[0-9]{1,7}(-[0-9]{1,7}(:[0-9]{1,7})?)?"
ARRAY = re.compile(rf"(?P<parts>{INDICES}(,{INDICES})*)(%(?P<at_once>[0-9]{{1,4}}))?")
LONGEST_KEEP = 24 * 3600
CODE_LIFE = timedelta(seconds=60)
PRIORITY_NAMES = {priority.name.lower(): priority for priority in Priority}
TOLD = (
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
class _Wish:
    """Everything of a workload, checked."""

    kind: str
    project: Project
    pool: Pool
    name: str
    type: str
    ask: AskFields
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
    **placing: Unpack[Placing],
) -> Workload:
    """Queue a notebook; what is not given comes from the template. Notebooks are not preemptible and may not borrow.

    ``placing``: where it has to be and would rather be, and the CPU and memory beside its GPUs. Raises Invalid, NotAllowed;
    Conflict when too many wait already.
    """
    policy.require(actor, "workload.launch", project)
    wish = _notebook_wish(
        actor, project, pool, now, template, name, units, models, profile, type, max_runtime_seconds, reservation, placing
    )
    return _submit(actor=actor, via=via, now=now, wish=wish, verb="launch_notebook")


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
    **placing: Unpack[Placing],
) -> Workload:
    """Queue a job: ``units`` on each of ``hosts`` hosts, running ``command`` in a shell. ``priority`` is its name or number.
    ``placing``: where it has to be and would rather be, and the CPU and memory beside its GPUs on each host.

    ``after`` is earlier work, or whole arrays, that it waits for, each with how that has to end: ok, any or not_ok. ``wanted_by``,
    ``labels_preferred`` and ``spread`` are wishes: nothing waits for them. Raises Invalid, NotAllowed; Conflict when too many
    wait already.
    """
    policy.require(actor, "workload.launch", project)
    wish = _job_wish(
        project, pool, now, name=name, command=command, units=units, hosts=hosts, models=models, profile=profile,
        type=type, priority=priority, preemptible=preemptible, max_runtime_seconds=max_runtime_seconds,
        most_retries=most_retries, if_member_ends=if_member_ends, reservation=reservation, environment=environment, after=after,
        wanted_by=wanted_by, placing=placing,
    )  # fmt: skip
    return _submit(actor=actor, via=via, now=now, wish=wish, verb="submit_job")


def submit_array(
    *, actor: User, project: Project, pool: Pool, now: datetime, array: str, via: str = "web", **arguments: Any
) -> JobArray:
    """Queue one job for each index of ``array`` (see ``indices_of``), each with GPUPOOL_ARRAY_INDEX in its environment.

    ``arguments`` are those of submit_job. Raises Invalid, NotAllowed; Conflict when that would be too many that wait: then none
    is queued.
    """
    policy.require(actor, "workload.launch", project)
    checks = Checks()
    indices, most_at_once = indices_of(checks, array)
    checks.done()
    wish = _job_wish(project, pool, now, **_job_defaults(arguments))
    _refuse_what_never_starts(actor, wish, now)
    with transaction.atomic():
        with _taken():
            made = engine.queue_array(
                owner=actor, now=now, indices=indices, words=array.strip(), most_at_once=most_at_once, **_columns(wish)
            )
        told = {**{name: getattr(wish, name) for name in ("name", "priority", "max_runtime_seconds")}, "array": array}
        audit.record(actor=actor, via=via, now=now, verb="submit_array", target=made, after=told)
    return made


def cancel_array(*, actor: User, array: JobArray, now: datetime, why: str = "", via: str = "web") -> int:
    """Cancel every task that has not ended; how many. Raises Conflict when none is left, NotAllowed, Invalid."""
    policy.require(actor, "workload.change", array)
    checks = Checks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        cancelled = engine.cancel_array(array, now=now)
        if not cancelled:
            raise Conflict(f"Every task of {array.name} has ended or is stopping; there is nothing to cancel.")
        audit.record(
            actor=actor, via=via, now=now, verb="cancel_array", target=array, why=why, after={"tasks": cancelled}
        )
    return cancelled


def relaunch_workload(*, actor: User, workload: Workload, now: datetime, via: str = "web", **changes: Any) -> Workload:
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
        **{name: getattr(workload, name) for name in Placing.__optional_keys__},
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


def cancel_workload(*, actor: User, workload: Workload, now: datetime, why: str = "", via: str = "web") -> Workload:
    """Stop it, or take it out of the queue. Raises Conflict when it has ended, NotAllowed, Invalid."""
    policy.require(actor, "workload.change", workload)
    checks = Checks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        before = audit.facts(workload, "state")
        if not engine.cancel_workload(workload, now=now):
            raise Conflict(f"{workload.name} has already ended; there is nothing to cancel.")
        workload.refresh_from_db()
        audit.record(
            actor=actor, via=via, now=now, verb="cancel_workload", target=workload, why=why,
            before=before, after=audit.facts(workload, "state", "stop_requested"),
        )  # fmt: skip
    return workload


def extend_workload(*, actor: User, workload: Workload, seconds: int, now: datetime, via: str = "web") -> Workload:
    """Let it run ``seconds`` longer, within the pool's longest runtime. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "workload.change", workload)
    longest = workload.pool.longest_runtime_seconds
    room = longest - workload.max_runtime_seconds
    if room < SHORTEST_RUNTIME:
        raise Conflict(f"{workload.name} already has the longest runtime of {workload.pool.name}, {longest:,} seconds.")
    checks = Checks()
    seconds = checks.count("seconds", seconds, SHORTEST_RUNTIME, room, "seconds")
    checks.done()
    with transaction.atomic():
        before = audit.facts(workload, "max_runtime_seconds")
        try:
            extended = engine.extend_workload(workload, seconds=seconds, now=now)
        except engine.Refused as refused:
            # Somebody else extended it meanwhile, or its GPUs are promised.
            late = refused.code == Code.OVER_RUNTIME_CAP
            what = "was extended just now, so this is too much" if late else "can't be extended so far"
            words = f"{workload.name} {what}. {reasons.reason(refused.code, refused.numbers)}"
            raise Conflict(words, field="seconds", code=refused.code, numbers=refused.numbers) from None
        if not extended:
            raise Conflict(f"{workload.name} is ending or has ended; it can't be extended. Launch it again instead.")
        workload.refresh_from_db()
        audit.record(
            actor=actor, via=via, now=now, verb="extend_workload", target=workload,
            before=before, after=audit.facts(workload, "max_runtime_seconds"),
        )  # fmt: skip
    return workload


def keep_workload(*, actor: User, workload: Workload, seconds: int, now: datetime, via: str = "web") -> Workload:
    """Don't stop a notebook for idleness in the next ``seconds``. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "workload.change", workload)
    checks = Checks()
    seconds = checks.count("seconds", seconds, SHORTEST_RUNTIME, LONGEST_KEEP, "seconds")
    checks.done()
    if workload.kind != WorkloadKind.NOTEBOOK:
        raise Conflict(f"{workload.name} is a job; only notebooks are stopped when they are idle.")
    with transaction.atomic():
        before = audit.facts(workload, "keep_until")
        if not engine.keep_workload(workload, until=now + timedelta(seconds=seconds)):
            raise Conflict(f"{workload.name} is ending or has ended; it can't be kept.")
        workload.refresh_from_db()
        audit.record(
            actor=actor, via=via, now=now, verb="keep_workload", target=workload,
            before=before, after=audit.facts(workload, "keep_until"),
        )  # fmt: skip
    return workload


def open_workspace(
    *, actor: User, workload: Workload, session_key: str, now: datetime, token: ApiToken | None = None, via: str = "web"
) -> str:
    """The URL that opens what a running notebook or job serves, on its own origin, with a one-time code that is good for a minute.

    ``session_key`` is the portal session's: signing out there cuts the workspace too. Empty for a caller with a ``token``, whose
    end cuts it.
    Raises Conflict when it does not run, NotAllowed.
    """
    policy.require(actor, "workload.open", workload)
    if workload.state not in (WorkloadState.RUNNING, WorkloadState.NOTICE):
        raise Conflict(f"{workload.name} is {workload.state}; it can be opened while it runs.")
    if workload.kind != WorkloadKind.NOTEBOOK and not _has_a_door(workload):
        raise Conflict(f"{workload.name} is a job that serves nothing; one that listens on $GPUPOOL_DOOR can be opened.")
    code = secrets.token_urlsafe(32)
    with transaction.atomic():
        origin = workspace_origin(workload, now)
        EntryCode.objects.create(
            code_hash=_hash(code), user=actor, workload=workload, session_key_hash=session_hash(session_key) if session_key else "",
            api_token=token, created_at=now, expires_at=now + CODE_LIFE,
        )  # fmt: skip
        audit.record(actor=actor, via=via, now=now, verb="open_workspace", target=workload)
    scheme = urlsplit(settings.GPUPOOL_EDGE_URL).scheme
    return f"{scheme}://{origin.label}.{settings.GPUPOOL_NOTEBOOK_DOMAIN}/.gpupool/enter?code={code}"


def _has_a_door(workload: Workload) -> bool:
    """Does its first host answer?"""
    return workload.runs.filter(attempt=workload.attempt, rank=0, ready_at__isnull=False).exists()


def workspace_origin(workload: Workload, now: datetime) -> WorkspaceOrigin:
    """The random name under which this notebook is reached, made when it is first asked for."""
    made = {"label": f"w{secrets.token_hex(12)}", "created_at": now}
    return WorkspaceOrigin.objects.get_or_create(workload=workload, defaults=made)[0]


def preview_workload(
    *, actor: User, project: Project, pool: Pool, now: datetime, kind: str = "job", via: str = "web", **arguments: Any
) -> dict[str, Any]:
    """What would happen, without doing it. ``arguments`` are those of submit_job or launch_notebook (``kind`` says which).

    Returns ``starts_now`` (bool), ``code`` and ``numbers`` (the engine's reason), ``expected_start`` (datetime or None),
    ``never`` (``scheduler.services.Never``: why
    it would never start, or None), ``borrowed_slots``, ``quota_effect`` (list of ``scheduler.selectors.QuotaUse``),
    ``gpus`` (float, in whole GPUs), ``price_per_hour`` and ``longest_cost`` (Decimal, or
    None when there is no price), ``currency``, ``wish`` (a warning, or empty), ``warnings`` (sentences that don't block).
    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "workload.launch", project)
    wish = (
        _notebook_wish(actor, project, pool, now, **_notebook_defaults(arguments))
        if kind == WorkloadKind.NOTEBOOK
        else _job_wish(project, pool, now, **_job_defaults(arguments))
    )
    return _preview(actor, wish, now)


# -- checks ------------------------------------------------------------------------------------------------------------


def _notebook_defaults(given: dict[str, Any]) -> dict[str, Any]:
    names = ("template", "name", "units", "models", "profile", "type", "max_runtime_seconds", "reservation")
    found = {"name": ""} | {name: given.get(name) for name in names if name != "name" or given.get("name")}
    return found | {"placing": placing_of(given)}


def _job_defaults(given: dict[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "name": "", "command": "", "units": 1, "hosts": 1, "models": None, "profile": "", "type": "training",
        "priority": "normal", "preemptible": True, "max_runtime_seconds": 24 * 3600, "most_retries": 0,
        "if_member_ends": "restart", "reservation": None, "environment": None, "after": None, "wanted_by": None,
    }  # fmt: skip
    return defaults | {name: value for name, value in given.items() if name in defaults} | {"placing": placing_of(given)}


def _notebook_wish(
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
    placing: Placing,
) -> _Wish:
    checks = Checks()
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
    ask = _checked_common(checks, project, pool, units=units, models=models, profile=profile, **placing)
    wish = _Wish(
        kind=WorkloadKind.NOTEBOOK,
        project=project,
        pool=pool,
        name=checks.text("name", name or words),
        type=checks.choice(
            "type", type if type is not None else template.type if template else "interactive", WorkloadType.values
        ),
        ask=ask,
        command="",
        environment={},
        priority=int(Priority.NORMAL),
        preemptible=False,
        max_runtime_seconds=checks.count(
            "max_runtime_seconds", seconds, SHORTEST_RUNTIME, pool.longest_runtime_seconds, "seconds"
        ),
        most_retries=0,
        if_member_ends=IfMemberEnds.RESTART,
        reservation=_checked_reservation(checks, reservation, project, pool, now),
    )
    checks.done()
    return wish


def _job_wish(
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
    placing: Placing,
    after: Any = None,
    wanted_by: Any = None,
) -> _Wish:
    checks = Checks()
    ask = _checked_common(checks, project, pool, units=units, hosts=hosts, models=models, profile=profile, **placing)
    wish = _Wish(
        kind=WorkloadKind.JOB,
        project=project,
        pool=pool,
        name=checks.text("name", name),
        type=checks.choice("type", type, WorkloadType.values),
        ask=ask,
        command=checks.text("command", command, most=LONGEST_COMMAND, lines=True),
        environment=checks.environment("environment", environment or {}),
        priority=_checked_priority(checks, priority, project),
        preemptible=checks.flag("preemptible", preemptible),
        max_runtime_seconds=checks.count(
            "max_runtime_seconds", max_runtime_seconds, SHORTEST_RUNTIME, pool.longest_runtime_seconds, "seconds"
        ),
        most_retries=checks.count("most_retries", most_retries, 0, MOST_RETRIES),
        if_member_ends=checks.choice("if_member_ends", if_member_ends, IfMemberEnds.values),
        reservation=_checked_reservation(checks, reservation, project, pool, now),
        after=_checked_after(checks, after or ()),
        wanted_by=_checked_wish(checks, wanted_by, now),
    )
    checks.done()
    return wish


def _checked_common(checks: Checks, project: Project, pool: Pool, **ask: Any) -> AskFields:
    check_project(checks, project)
    check_pool(checks, pool, project.team)
    return check_ask(checks, pool=pool, **ask)


def _checked_priority(checks: Checks, value: Any, project: Project) -> int:
    highest = project.team.highest_priority
    allowed = [name for name, priority in PRIORITY_NAMES.items() if int(priority) <= highest]
    number = PRIORITY_NAMES[value] if isinstance(value, str) and value in PRIORITY_NAMES else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= highest:
        checks.note(
            "priority", value, f"priority is {value!a:.60}; allowed for {project.team.name}: {', '.join(allowed)}."
        )
        return int(Priority.NORMAL)
    return int(number)


def _checked_after(checks: Checks, after: Iterable[tuple[str, Workload | JobArray]]) -> tuple[tuple[str, Workload | JobArray], ...]:
    """What it waits for: earlier work and arrays that may still end as they have to."""
    found = {(type(on), on.pk): (condition, on) for condition, on in after}
    if len(found) > MOST_DEPENDENCIES:
        words = f"after names {len(found)} workloads and arrays; allowed: at most {MOST_DEPENDENCIES}."
        checks.note("after", len(found), words)
    for condition, _ in found.values():
        checks.choice("after", condition, Dependency.Condition.values)
    if "after" not in checks.problems:
        late = engine.never_met(found.values())
        if late is not None:
            ended = "in which not all ended" if isinstance(late, JobArray) else f"which ended as {late.outcome.replace('_', ' ')}"
            words = f"after names {late.name}, {ended}{' as they had to' if isinstance(late, JobArray) else ''}"
            checks.note("after", late.name, f"{words}; allowed: work that can still end as it has to.")
    return tuple(found.values())


def _checked_wish(checks: Checks, wanted_by: Any, now: datetime) -> datetime | None:
    """When it should be done; nothing holds it to that."""
    if wanted_by is None:
        return None
    at = checks.moment("wanted_by", wanted_by)
    if "wanted_by" not in checks.problems and at <= now:
        words = f"wanted_by is {at:%Y-%m-%d %H:%M} UTC, which is past; allowed: after {now:%Y-%m-%d %H:%M} UTC."
        checks.note("wanted_by", at.isoformat(), words)
    return at


def indices_of(checks: Checks, text: Any) -> tuple[list[int], int | None]:
    """The tasks of an array and how many of them at once (None: all): ``0-9``, ``1,3,5-9:2``, ``0-99%4``."""
    allowed = f"such as 0-9, 1,3,5-9:2 or 0-99%4: at most {MOST_TASKS:,} tasks, with numbers up to {LARGEST_INDEX:,}"
    matched = ARRAY.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= 200 else None
    if matched is None:
        checks.note("array", text, f"array is {shown(text)}; allowed: {allowed}.")
        return [], None
    found: set[int] = set()
    for part in matched["parts"].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        low, high = int(first), int(last or first)
        if high < low or high > LARGEST_INDEX or int(step or 1) < 1 or (high - low) // int(step or 1) >= MOST_TASKS:
            checks.note("array", text, f"array has the part {part}; allowed: {allowed}.")
            return [], None
        found.update(range(low, high + 1, int(step or 1)))
    at_once = int(matched["at_once"]) if matched["at_once"] else None
    if len(found) > MOST_TASKS or at_once == 0:
        checks.note("array", text, f"array is {shown(text)}, {len(found):,} tasks; allowed: {allowed}.")
    return sorted(found), at_once


def _checked_reservation(
    checks: Checks, reservation: Reservation | None, project: Project, pool: Pool, now: datetime
) -> Reservation | None:
    if reservation is None:
        return None
    fits = reservation.project_id == project.pk and reservation.pool_id == pool.pk
    if not fits or reservation.state not in PROMISED or reservation.end <= now:
        checks.note(
            "reservation", str(reservation.public_id),
            f"reservation is {reservation.name}; allowed: a reservation of {project.name} in {pool.name} that is not over.",
        )  # fmt: skip
    return reservation


# -- doing -------------------------------------------------------------------------------------------------------------


def _submit(*, actor: User, via: str, now: datetime, wish: _Wish, verb: str) -> Workload:
    _refuse_what_never_starts(actor, wish, now)
    with transaction.atomic():
        with _taken():
            workload = engine.queue_workload(owner=actor, now=now, **_columns(wish))
        if wish.kind == WorkloadKind.NOTEBOOK:
            workspace_origin(workload, now)
        audit.record(actor=actor, via=via, now=now, verb=verb, target=workload, after=audit.facts(workload, *TOLD))
    return workload


def _refuse_what_never_starts(actor: User, wish: _Wish, now: datetime) -> None:
    """Raises Invalid where it would wait for ever. What its team may be granted yet is taken: see ``warning_of``."""
    never = _never(now, owner=actor, **_columns(wish))
    if never is not None and not never.may_be_granted:
        field = field_at_fault(never.code, never.numbers)
        value = wish.ask.columns["models_wanted" if field == "models" else field]
        raise Invalid({field: reasons.never_starts(never.code, never.numbers, actor)}, {field: shown(value)})


def warning_of(workload: Workload, viewer: User, now: datetime) -> str:
    """What a person should know who submitted this just now: that it does not start before its team is granted more, that its hosts
    would not reach each other. Else empty."""
    names = ("project", "pool", "owner", "preemptible", "priority", "max_runtime_seconds", "reservation")
    never = _never(now, **{name: getattr(workload, name) for name in (*names, *AskFields.__dataclass_fields__)})
    said = [] if never is None else [reasons.never_starts(never.code, never.numbers, viewer)]
    return " ".join([*said, *network_warnings(workload.pool, workload)])


def _never(now: datetime, **columns: Any) -> engine.Never | None:
    """Planned for; what was asked a moment ago is not planned for again, so that many alike are submitted fast."""
    asked = {name: str(value) for name, value in columns.items() if name in AskFields.__dataclass_fields__}
    rows = [getattr(columns[name], "pk", None) for name in ("pool", "project", "owner", "reservation")]
    facts = [columns["preemptible"], columns["priority"], columns["max_runtime_seconds"], *sorted(asked.items())]
    question = hashlib.sha256(repr((rows, facts)).encode()).hexdigest()
    return kept(("never", question), now, lambda: engine.never_starts(now=now, **columns))


@contextmanager
def _taken() -> Iterator[None]:
    """The engine's refusal to take more into its queue, in words."""
    try:
        yield
    except engine.Refused as refused:
        numbers = dict(refused.numbers)
        raise Conflict(reasons.reason(refused.code, numbers), code=refused.code, numbers=numbers) from None


def _columns(wish: _Wish) -> dict[str, Any]:
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


def _preview(actor: User, wish: _Wish, now: datetime) -> dict[str, Any]:
    with asking(actor, now):
        answer = engine.preview_workload(owner=actor, now=now, **_columns(wish))
    gpus = gpus_of(wish.pool, wish.ask)
    price = money.price_of(pool=wish.pool, models=wish.ask.models_wanted or models_of(wish.pool), now=now)
    per_hour = None if price is None else rounded(price * Decimal(str(gpus)))
    longest = None if price is None else rounded(price * Decimal(str(gpus)) * Decimal(wish.max_runtime_seconds) / 3600)
    answer["numbers"] |= reasons.asked_for(answer["code"], wish.ask)
    if answer["code"] == Code.DEPENDENCY and wish.after:
        answer["numbers"]["condition"] = _first_awaited(wish, answer["numbers"])
    return {
        **answer,
        "gpus": gpus,
        "price_per_hour": per_hour,
        "longest_cost": longest,
        "currency": money.currency(),
        "wish": _wish_in_words(wish, answer, now),
        "warnings": network_warnings(wish.pool, wish.ask),
    }


def _first_awaited(wish: _Wish, numbers: dict[str, Any]) -> str:
    """How that has to end which the reason names."""
    sort, pk = (JobArray, numbers["array"]) if "array" in numbers else (Workload, numbers.get("workload"))
    return next((condition for condition, on in wish.after if isinstance(on, sort) and on.pk == pk), "")


def _wish_in_words(wish: _Wish, answer: dict[str, Any], now: datetime) -> str:
    """A warning when it would not be done when it is wanted; empty when it would, or nobody said."""
    start = answer["expected_start"]
    if wish.wanted_by is None or start is None:
        return ""
    predicted = timedelta(seconds=answer["predicted_seconds"])
    return ask_texts.late_for_its_wish(wish.wanted_by, start + predicted)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
