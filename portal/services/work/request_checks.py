"""Check the arguments of notebooks, jobs and arrays, and build a ``WorkloadRequest`` from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from portal.hardware_request import (
    check_hardware_request,
    checked_value,
    given_values,
    hardware_arguments_in,
)
from portal.input_checks import InputChecks, display_value
from portal.models import Template, User
from portal.wording.problems import request_problems
from scheduler import services as scheduling
from scheduler.core.model.snapshot import Priority
from scheduler.models import Dependency, JobArray, Pool, Project, Reservation, Workload, WorkloadKind
from scheduler.requests import (
    HARDWARE_COLUMNS,
    MAX_DEPENDENCIES,
    PRIORITY_NAMES,
    RequestField,
    WorkloadRequest,
    request_fields,
)
from scheduler.state.states import OPEN_RESERVATION_STATES

MAX_ARRAY_TASKS = 1_000
MAX_ARRAY_INDEX = 1_000_000
INDEX_RANGE_REGEX = r"[0-9]{1,7}(-[0-9]{1,7}(:[0-9]{1,7})?)?"
ARRAY_PATTERN = re.compile(
    rf"(?P<parts>{INDEX_RANGE_REGEX}(,{INDEX_RANGE_REGEX})*)(%(?P<at_once>[0-9]{{1,4}}))?"
)
DEFAULT_NOTEBOOK_SECONDS = 8 * 3600  # the default runtime limit; a request may exceed it
JOB_DEFAULTS: dict[str, Any] = {
    "name": "",
    "command": "",
    "units": 1,
    "type": "training",
    "priority": "normal",
    "preemptible": True,
    "max_runtime_seconds": 24 * 3600,
}


def checked_notebook_request(
    actor: User,
    project: Project,
    pool: Pool,
    now: datetime,
    template: Template | None = None,
    **arguments: Any,
) -> WorkloadRequest:
    """Check the arguments of a notebook and return its request.

    If an argument is absent or None, the template's value is used. Raises Invalid with all problems.
    """
    checks = InputChecks()
    if template is not None and template.kind != WorkloadKind.NOTEBOOK:
        checks.note(
            "template",
            template.slug,
            request_problems.TEMPLATE_FOR_JOBS.format(template=template.name),
        )
        template = None
    defaults: dict[str, Any] = {
        "units": 1,
        "type": "interactive",
        "max_runtime_seconds": min(DEFAULT_NOTEBOOK_SECONDS, pool.longest_runtime_seconds),
    }
    if template is not None:
        names = ("units", "profile", "type", "max_runtime_seconds")
        defaults |= {name: getattr(template, name) for name in names}
    given = defaults | {name: value for name, value in arguments.items() if value is not None}
    given["name"] = (
        arguments.get("name") or f"{template.name if template else 'Notebook'} of {actor.get_username()}"[:80]
    )
    return _checked_request(checks, WorkloadKind.NOTEBOOK, project, pool, now, given)


def checked_job_request(project: Project, pool: Pool, now: datetime, **arguments: Any) -> WorkloadRequest:
    """Check the arguments of a job and return its request. Raises Invalid with all problems."""
    given = JOB_DEFAULTS | arguments
    return _checked_request(InputChecks(), WorkloadKind.JOB, project, pool, now, given)


def _checked_request(
    checks: InputChecks,
    kind: WorkloadKind,
    project: Project,
    pool: Pool,
    now: datetime,
    arguments: Mapping[str, Any],
) -> WorkloadRequest:
    """Check every argument and return the request.

    Each argument must be valid for its declared field, for the project and the pool, and at the time ``now``.
    Raises Invalid with all problems.
    """
    hardware_arguments = hardware_arguments_in(arguments)
    hardware = check_hardware_request(checks, project, pool, hardware_arguments)
    own = [
        each
        for each in request_fields(WorkloadRequest, kind)
        if each.name not in (*HARDWARE_COLUMNS, "project", "pool")
    ]
    given = given_values(
        own, {name: value for name, value in arguments.items() if name not in hardware_arguments}
    )
    clean = {each.name: _checked_field(checks, each, given[each.name], project, pool, now) for each in own}
    checks.done()
    return WorkloadRequest(**vars(hardware), kind=str(kind), project=project, pool=pool, **clean)


def _checked_field(
    checks: InputChecks, declared: RequestField, value: Any, project: Project, pool: Pool, now: datetime
) -> Any:
    """Check the value of one field and return it.

    The value must be valid for its declared field, for the project and the pool, and at the time ``now``.
    """
    match declared.name:
        case "command":
            return checks.text("command", value, most=declared.max_length, lines=True)
        case "environment":
            return checks.environment("environment", value)
        case "priority":
            return _checked_priority(checks, value, project)
        case "max_runtime_seconds":
            return checked_value(checks, replace(declared, high=pool.longest_runtime_seconds), value)
        case "reservation":
            return _checked_reservation(checks, value, project, pool, now)
        case "after":
            return _checked_dependencies(checks, value)
        case "wanted_by":
            return _checked_wanted_by(checks, value, now)
    return checked_value(checks, declared, value)


def _checked_priority(checks: InputChecks, value: Any, project: Project) -> int:
    highest = project.team.highest_priority
    allowed = [name for name, priority in PRIORITY_NAMES.items() if int(priority) <= highest]
    number = PRIORITY_NAMES[value] if isinstance(value, str) and value in PRIORITY_NAMES else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= highest:
        checks.note(
            "priority",
            value,
            request_problems.PRIORITY_TOO_HIGH.format(
                given=value, team=project.team.name, allowed=", ".join(allowed)
            ),
        )
        return int(Priority.NORMAL)
    return int(number)


def _checked_dependencies(
    checks: InputChecks, after: Iterable[tuple[str, Workload | JobArray]]
) -> tuple[tuple[str, Workload | JobArray], ...]:
    """Return the dependencies without duplicates.

    Add a problem to ``checks`` for each dependency that can no longer end with the required outcome.
    """
    dependencies = {(type(on), on.pk): (condition, on) for condition, on in after}
    if len(dependencies) > MAX_DEPENDENCIES:
        message = request_problems.TOO_MANY_DEPENDENCIES.format(
            count=len(dependencies), most=MAX_DEPENDENCIES
        )
        checks.note("after", len(dependencies), message)
    for condition, _ in dependencies.values():
        checks.choice("after", condition, Dependency.Condition.values)
    if "after" not in checks.problems:
        unmet = scheduling.first_never_met(dependencies.values())
        if unmet is not None:
            if isinstance(unmet, JobArray):
                ended = request_problems.ARRAY_ENDED_OTHERWISE
            else:
                outcome = unmet.outcome.replace("_", " ")
                ended = request_problems.WORKLOAD_ENDED_OTHERWISE.format(outcome=outcome)
            message = request_problems.DEPENDENCY_NEVER_MET.format(name=unmet.name, ended=ended)
            checks.note("after", unmet.name, message)
    return tuple(dependencies.values())


def _checked_wanted_by(checks: InputChecks, wanted_by: Any, now: datetime) -> datetime | None:
    """Return the time by which the workload should end, or None. This time is a preference, not a limit."""
    if wanted_by is None:
        return None
    at = checks.aware_datetime("wanted_by", wanted_by)
    if "wanted_by" not in checks.problems and at <= now:
        message = request_problems.DEADLINE_IS_PAST.format(given=at, now=now)
        checks.note("wanted_by", at.isoformat(), message)
    return at


def parse_array_indices(checks: InputChecks, text: Any) -> tuple[list[int], int | None]:
    """Return the indices of an array's tasks, and the number of tasks that may run at the same time.

    The number is None if there is no limit. Examples of the text are ``0-9``, ``1,3,5-9:2`` (every second
    index from 5 to 9) and ``0-99%4`` (at most 4 tasks at the same time).
    """
    matched = ARRAY_PATTERN.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= 200 else None
    if matched is None:
        message = request_problems.ARRAY_INVALID.format(given=display_value(text))
        checks.note("array", text, message)
        return [], None
    indices: set[int] = set()
    for part in matched["parts"].split(","):
        found = _indices_of_part(part)
        if found is None:
            message = request_problems.ARRAY_PART_INVALID.format(
                part=part, highest=MAX_ARRAY_INDEX, tasks=MAX_ARRAY_TASKS
            )
            checks.note("array", text, message)
            return [], None
        indices.update(found)
    at_once = int(matched["at_once"]) if matched["at_once"] else None
    if len(indices) > MAX_ARRAY_TASKS:
        message = request_problems.ARRAY_TOO_LARGE.format(
            given=display_value(text), tasks=len(indices), most=MAX_ARRAY_TASKS
        )
        checks.note("array", text, message)
    if at_once == 0:
        checks.note("array", text, request_problems.ARRAY_AT_ONCE.format(given=display_value(text)))
    return sorted(indices), at_once


def _indices_of_part(part: str) -> range | None:
    """Return the indices of a part such as ``5-9:2``, which means 5, 7 and 9.

    Return None if an index or the number of indices is out of bounds.
    """
    span, _, step_text = part.partition(":")
    first, _, last = span.partition("-")
    low, high, step = int(first), int(last or first), int(step_text or 1)
    if high < low or high > MAX_ARRAY_INDEX or step < 1 or (high - low) // step >= MAX_ARRAY_TASKS:
        return None
    return range(low, high + 1, step)


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
            request_problems.RESERVATION_UNUSABLE.format(
                reservation=reservation.name, project=project.name, pool=pool.name
            ),
        )
    return reservation
