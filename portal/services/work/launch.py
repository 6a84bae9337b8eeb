"""Verbs that queue notebooks, jobs and arrays."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Unpack

from django.db import transaction

from portal import policy
from portal.errors import Invalid
from portal.hardware_request import PlacementConstraints
from portal.input_checks import InputChecks
from portal.models import Template, User
from portal.services import audit
from portal.services.work.impossible_starts import refuse_if_never_starts
from portal.services.work.request_checks import (
    WorkloadRequest,
    checked_job_request,
    checked_notebook_request,
    parse_array_indices,
    with_job_defaults,
    workload_columns,
)
from portal.services.work.workspaces import workspace_origin
from portal.wording.problems import administration_problems
from scheduler import services as engine
from scheduler.models import IfMemberEnds, JobArray, Pool, Project, Reservation, Workload, WorkloadKind

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
    """Queue a notebook.

    Arguments that are None come from the template. A notebook is not preemptible and may not borrow.
    ``placing``: placement constraints and preferences, and CPU and memory on its host. Raises Invalid,
    NotAllowed, and OperationRejected if too many workloads are waiting already.
    """
    policy.require(actor, "workload.launch", project)
    request = checked_notebook_request(
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
    return _queue_and_record(actor=actor, via=via, now=now, request=request, verb="launch_notebook")


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
    """Queue a job: ``units`` on each of ``hosts`` hosts, running ``command`` in a shell.

    ``priority`` is a name or a number. ``placing``: placement constraints and preferences, and CPU and memory
    on each host. ``after``: workloads or arrays that must end first, each with the required outcome (ok, any,
    not_ok). ``wanted_by``, ``labels_preferred`` and ``spread`` are preferences: they never delay the start.

    Raises Invalid, NotAllowed, and OperationRejected if too many workloads are waiting already.
    """
    policy.require(actor, "workload.launch", project)
    request = checked_job_request(
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
    """Queue one job for each index of ``array`` (see ``parse_array_indices``).

    Each job has GPUPOOL_ARRAY_INDEX in its environment. ``arguments`` are those of submit_job. Raises
    Invalid, NotAllowed, and OperationRejected if the array would exceed the limit on waiting workloads; then
    no task is queued.
    """
    policy.require(actor, "workload.launch", project)
    checks = InputChecks()
    indices, most_at_once = parse_array_indices(checks, array)
    checks.done()
    request = checked_job_request(project, pool, now, **with_job_defaults(arguments))
    refuse_if_never_starts(actor, request, now)
    with transaction.atomic():
        job_array = engine.queue_array(
            owner=actor,
            now=now,
            indices=indices,
            words=array.strip(),
            most_at_once=most_at_once,
            **workload_columns(request),
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
    """Queue a copy of a workload; ``changes`` replace arguments of the verb that created it.

    Raises Invalid, NotAllowed. Values of the environment may be secrets. Only the owner's copy keeps them;
    other people must give their own.
    """
    policy.require(actor, "workload.relaunch", workload)
    if workload.environment and workload.owner_id != actor.pk and "environment" not in changes:
        named = ", ".join(sorted(workload.environment))
        message = administration_problems.ENVIRONMENT_OF_ANOTHER.format(
            workload=workload.name, variables=named, owner=workload.owner
        )
        raise Invalid({"environment": message})
    arguments: dict[str, Any] = {
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
        return launch_notebook(actor=actor, now=now, via=via, **(arguments | changes))
    arguments |= {
        "command": workload.command,
        "hosts": workload.hosts,
        "priority": workload.priority,
        "preemptible": workload.preemptible,
        "most_retries": workload.most_retries,
        "if_member_ends": workload.if_member_ends,
        "environment": dict(workload.environment),
    }
    return submit_job(actor=actor, now=now, via=via, **(arguments | changes))


def _queue_and_record(
    *, actor: User, via: str, now: datetime, request: WorkloadRequest, verb: str
) -> Workload:
    refuse_if_never_starts(actor, request, now)
    with transaction.atomic():
        workload = engine.queue_workload(owner=actor, now=now, **workload_columns(request))
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
