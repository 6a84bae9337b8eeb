"""Queue notebooks, jobs and arrays."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.errors import Invalid
from portal.input_checks import InputChecks
from portal.models import Template, User
from portal.services import audit
from portal.services.work.impossible_starts import refuse_if_never_starts
from portal.services.work.request_checks import (
    checked_job_request,
    checked_notebook_request,
    parse_array_indices,
)
from portal.services.work.workspaces import workspace_origin
from portal.wording.problems import administration_problems
from scheduler import services as scheduling
from scheduler.models import JobArray, Pool, Project, Workload, WorkloadKind
from scheduler.requests import WorkloadRequest

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


def launch_notebook(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    now: datetime,
    template: Template | None = None,
    via: str = "web",
    **arguments: Any,
) -> Workload:
    """Queue a notebook. Notebooks are not preemptible and may not borrow.

    ``arguments`` contains fields of a ``WorkloadRequest``, under the field names of the API. If a field is
    absent or None, the template's value is used. Raises Invalid, NotAllowed. Raises OperationRejected if too
    many workloads are waiting.
    """
    policy.require(actor, "workload.launch", project)
    request = checked_notebook_request(actor, project, pool, now, template, **arguments)
    return _queue_and_record(actor=actor, via=via, now=now, request=request, verb="launch_notebook")


def submit_job(
    *, actor: User, project: Project, pool: Pool, now: datetime, via: str = "web", **arguments: Any
) -> Workload:
    """Queue a job. It gets ``units`` on each of ``hosts`` hosts and runs ``command`` in a shell.

    ``arguments`` contains fields of a ``WorkloadRequest``, under the field names of the API. ``priority`` is
    a name or a number. ``after`` lists the workloads or arrays that must end first, each with the required
    outcome (ok, any, not_ok). ``wanted_by``, ``labels_preferred`` and ``spread`` are preferences, which never
    delay the start.

    Raises Invalid, NotAllowed. Raises OperationRejected if too many workloads are waiting.
    """
    policy.require(actor, "workload.launch", project)
    request = checked_job_request(project, pool, now, **arguments)
    return _queue_and_record(actor=actor, via=via, now=now, request=request, verb="submit_job")


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
    """Queue one job for each index of ``array``, such as ``0-9`` (see ``parse_array_indices``).

    GPUPOOL_ARRAY_INDEX in the environment of each job is its index. ``arguments`` are those of
    ``submit_job``. Raises Invalid, NotAllowed. If the array would exceed the limit on waiting workloads,
    raises OperationRejected and queues no job.
    """
    policy.require(actor, "workload.launch", project)
    checks = InputChecks()
    indices, most_at_once = parse_array_indices(checks, array)
    checks.done()
    request = checked_job_request(project, pool, now, **arguments)
    refuse_if_never_starts(actor, request, now)
    with transaction.atomic():
        job_array = scheduling.queue_array(
            request,
            indices=indices,
            words=array.strip(),
            most_at_once=most_at_once,
            owner=actor,
            now=now,
        )
        audited = {
            **{name: getattr(request, name) for name in ("name", "priority", "max_runtime_seconds")},
            "array": array,
        }
        audit.record(actor=actor, via=via, now=now, verb="submit_array", target=job_array, after=audited)
    return job_array


def relaunch_workload(
    *, actor: User, workload: Workload, now: datetime, via: str = "web", **changes: Any
) -> Workload:
    """Queue a copy of a workload. ``changes`` replaces arguments of the original.

    Values of the environment may be secrets. So only the owner's copy keeps these values; other people must
    give their own values. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "workload.relaunch", workload)
    if workload.environment and workload.owner_id != actor.pk and "environment" not in changes:
        named = ", ".join(sorted(workload.environment))
        message = administration_problems.ENVIRONMENT_OF_ANOTHER.format(
            workload=workload.name, variables=named, owner=workload.owner
        )
        raise Invalid({"environment": message})
    request = WorkloadRequest.from_row(workload)
    arguments: dict[str, Any] = request.arguments() | {
        "max_runtime_seconds": min(workload.max_runtime_seconds, workload.pool.longest_runtime_seconds),
    }
    # The copy does not keep the reservation, the dependencies and the wanted end of the original.
    arguments |= dict.fromkeys({"reservation", "after", "wanted_by"} & arguments.keys())
    verb = launch_notebook if workload.kind == WorkloadKind.NOTEBOOK else submit_job
    return verb(actor=actor, now=now, via=via, **(arguments | changes))


def _queue_and_record(
    *, actor: User, via: str, now: datetime, request: WorkloadRequest, verb: str
) -> Workload:
    refuse_if_never_starts(actor, request, now)
    with transaction.atomic():
        workload = scheduling.queue_workload(request, owner=actor, now=now)
        if request.kind == WorkloadKind.NOTEBOOK:
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
