"""Check the arguments of notebooks, jobs and arrays, and turn them into a ``WorkloadRequest``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from portal.hardware_request import (
    HardwareRequest,
    PlacementConstraints,
    check_hardware_request,
    check_pool,
    check_project,
    placement_constraints_in,
)
from portal.input_checks import InputChecks, display_value
from portal.models import Template, User
from scheduler import services as engine
from scheduler.core.model.snapshot import Priority
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
from scheduler.state.states import OPEN_RESERVATION_STATES

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
PRIORITY_NAMES = {priority.name.lower(): priority for priority in Priority}


@dataclass(frozen=True)
class WorkloadRequest:
    """The checked arguments of one workload."""

    kind: str
    project: Project
    pool: Pool
    name: str
    type: str
    hardware: HardwareRequest
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


def with_notebook_defaults(arguments: dict[str, Any]) -> dict[str, Any]:
    names = ("template", "name", "units", "models", "profile", "type", "max_runtime_seconds", "reservation")
    present = {name: arguments.get(name) for name in names if name != "name" or arguments.get("name")}
    return {"name": "", **present, "placing": placement_constraints_in(arguments)}


def with_job_defaults(arguments: dict[str, Any]) -> dict[str, Any]:
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
        | {name: value for name, value in arguments.items() if name in defaults}
        | {"placing": placement_constraints_in(arguments)}
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
    message = f"{template.name if template else 'Notebook'} of {actor.get_username()}"[:80]
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
    hardware = _checked_hardware(
        checks, project, pool, units=units, models=models, profile=profile, **placing
    )
    request = WorkloadRequest(
        kind=WorkloadKind.NOTEBOOK,
        project=project,
        pool=pool,
        name=checks.text("name", name or message),
        type=checks.choice(
            "type",
            type if type is not None else template.type if template else "interactive",
            WorkloadType.values,
        ),
        hardware=hardware,
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
    return request


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
    hardware = _checked_hardware(
        checks, project, pool, units=units, hosts=hosts, models=models, profile=profile, **placing
    )
    request = WorkloadRequest(
        kind=WorkloadKind.JOB,
        project=project,
        pool=pool,
        name=checks.text("name", name),
        type=checks.choice("type", type, WorkloadType.values),
        hardware=hardware,
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
    return request


def _checked_hardware(checks: InputChecks, project: Project, pool: Pool, **hardware: Any) -> HardwareRequest:
    check_project(checks, project)
    check_pool(checks, pool, project.team)
    return check_hardware_request(checks, pool=pool, **hardware)


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
    """Return the dependencies without duplicates.

    Adds a problem for a dependency that can no longer end as required.
    """
    dependencies = {(type(on), on.pk): (condition, on) for condition, on in after}
    if len(dependencies) > MAX_DEPENDENCIES:
        message = (
            f"after names {len(dependencies)} workloads and arrays; allowed: at most {MAX_DEPENDENCIES}."
        )
        checks.note("after", len(dependencies), message)
    for condition, _ in dependencies.values():
        checks.choice("after", condition, Dependency.Condition.values)
    if "after" not in checks.problems:
        unmet = engine.first_never_met(dependencies.values())
        if unmet is not None:
            if isinstance(unmet, JobArray):
                ended = "in which some tasks did not end as required"
            else:
                ended = f"which ended as {unmet.outcome.replace('_', ' ')}"
            message = f"after names {unmet.name}, {ended}; allowed: work that can still end as required."
            checks.note("after", unmet.name, message)
    return tuple(dependencies.values())


def _checked_wanted_by(checks: InputChecks, wanted_by: Any, now: datetime) -> datetime | None:
    """Return the time by which the workload should end, or None. It is a preference, not a limit."""
    if wanted_by is None:
        return None
    at = checks.aware_datetime("wanted_by", wanted_by)
    if "wanted_by" not in checks.problems and at <= now:
        message = (
            f"wanted_by is {at:%Y-%m-%d %H:%M} UTC, which is past; allowed: after {now:%Y-%m-%d %H:%M} UTC."
        )
        checks.note("wanted_by", at.isoformat(), message)
    return at


def parse_array_indices(checks: InputChecks, text: Any) -> tuple[list[int], int | None]:
    """Return the task indices of an array and its limit of concurrent tasks (None: no limit).

    Accepts ``0-9``, ``1,3,5-9:2``, ``0-99%4``.
    """
    allowed = (
        f"such as 0-9, 1,3,5-9:2 or 0-99%4: at most {MAX_ARRAY_TASKS:,} tasks, "
        f"with numbers up to {MAX_ARRAY_INDEX:,}"
    )
    matched = ARRAY_PATTERN.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= 200 else None
    if matched is None:
        checks.note("array", text, f"array is {display_value(text)}; allowed: {allowed}.")
        return [], None
    indices: set[int] = set()
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
        indices.update(range(low, high + 1, int(step or 1)))
    at_once = int(matched["at_once"]) if matched["at_once"] else None
    if len(indices) > MAX_ARRAY_TASKS or at_once == 0:
        checks.note(
            "array", text, f"array is {display_value(text)}, {len(indices):,} tasks; allowed: {allowed}."
        )
    return sorted(indices), at_once


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
            f"reservation is {reservation.name}; "
            f"allowed: a reservation of {project.name} in {pool.name} that is not over.",
        )
    return reservation


def workload_columns(request: WorkloadRequest) -> dict[str, Any]:
    return {
        "kind": request.kind,
        "type": request.type,
        "name": request.name,
        "project": request.project,
        "pool": request.pool,
        "reservation": request.reservation,
        "command": request.command,
        "environment": request.environment,
        "priority": request.priority,
        "preemptible": request.preemptible,
        "max_runtime_seconds": request.max_runtime_seconds,
        "most_retries": request.most_retries,
        "if_member_ends": request.if_member_ends,
        "after": request.after,
        "wanted_by": request.wanted_by,
        **request.hardware.columns,
    }
