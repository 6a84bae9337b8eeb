"""Endpoints of notebooks, jobs and the queue."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.pagination import page_schema
from portal.api.base.views import ApiView, EmptyBody, PageQuery, Why, get_visible_or_404
from portal.api.work import serializers as shapes
from portal.errors import Invalid
from portal.models import ApiToken
from portal.reads.work.job_arrays import with_task_counts
from portal.services.work import launch, workload_changes, workload_preview, workspaces
from portal.wording import reason_texts
from scheduler.models import JobArray, Run, Workload, WorkloadKind
from scheduler.runs import logs
from scheduler.state.states import RunState, WorkloadState

LOG_CHUNK_BYTES = 64 * 1024


def _visible_workloads(view: ApiView) -> QuerySet[Workload]:
    rows = policy.visible_workloads(view.actor)
    return rows.select_related("pool", "project__team", "owner", "reservation", "array")


def _visible_arrays(view: ApiView) -> QuerySet[JobArray]:
    rows = with_task_counts(policy.visible_arrays(view.actor))
    return rows.select_related("pool", "project__team", "owner").order_by("-created_at", "-pk")


def _filtered_workloads(view: ApiView, query: dict[str, Any]) -> QuerySet[Workload]:
    rows = _visible_workloads(view)
    if query.get("state") == "open":
        rows = rows.exclude(state=WorkloadState.ENDED)
    elif query.get("state"):
        rows = rows.filter(state=query["state"])
    for name, path in (("kind", "kind"), ("pool", "pool__slug"), ("team", "project__team__slug")):
        if query.get(name):
            rows = rows.filter(**{path: query[name]})
    if query.get("mine"):
        rows = rows.filter(owner=view.actor)
    if query.get("array"):
        return rows.filter(array__public_id=query["array"]).order_by("array_index", "pk")
    return rows.order_by("-submitted_at", "-pk")


class WorkloadListView(ApiView):
    """Notebooks and jobs together."""

    @extend_schema(
        operation_id="workloads_list",
        parameters=[shapes.WorkloadQuery],
        responses=page_schema(shapes.WorkloadShape),
    )
    def get(self, request: Request) -> Response:
        """Work that you may see, newest first."""
        query = self.query(shapes.WorkloadQuery)
        return self.page(_filtered_workloads(self, query), shapes.WorkloadShape, query)


class NotebookListView(ApiView):
    @extend_schema(
        operation_id="notebooks_list",
        parameters=[shapes.KindQuery],
        responses=page_schema(shapes.WorkloadShape),
    )
    def get(self, request: Request) -> Response:
        """Notebooks that you may see, newest first."""
        query = self.query(shapes.KindQuery)
        return self.page(
            _filtered_workloads(self, {**query, "kind": WorkloadKind.NOTEBOOK}), shapes.WorkloadShape, query
        )

    @extend_schema(
        operation_id="notebooks_launch", request=shapes.NotebookWish, responses={201: shapes.Submitted}
    )
    def post(self, request: Request) -> Response:
        """Launch a notebook; what is not given comes from the template."""
        given = lookups.workload_arguments(self.actor, self.given(shapes.NotebookWish))
        return self.one(launch.launch_notebook(**self.by, **given), shapes.Submitted, 201)


class JobListView(ApiView):
    @extend_schema(
        operation_id="jobs_list", parameters=[shapes.JobQuery], responses=page_schema(shapes.WorkloadShape)
    )
    def get(self, request: Request) -> Response:
        """Jobs that you may see, newest first; tasks of an array by their index."""
        query = self.query(shapes.JobQuery)
        return self.page(
            _filtered_workloads(self, {**query, "kind": WorkloadKind.JOB}), shapes.WorkloadShape, query
        )

    @extend_schema(operation_id="jobs_submit", request=shapes.JobWish, responses={201: shapes.Submitted})
    def post(self, request: Request) -> Response:
        """Submit a job."""
        given = lookups.workload_arguments(self.actor, self.given(shapes.JobWish))
        return self.one(launch.submit_job(**self.by, **given), shapes.Submitted, 201)


class ArrayListView(ApiView):
    @extend_schema(
        operation_id="arrays_list", parameters=[PageQuery], responses=page_schema(shapes.ArrayShape)
    )
    def get(self, request: Request) -> Response:
        """Arrays of jobs that you may see, newest first, with how many tasks wait, run and ended."""
        query = self.query(PageQuery)
        return self.page(_visible_arrays(self), shapes.ArrayShape, query)

    @extend_schema(
        operation_id="arrays_submit", request=shapes.ArrayWish, responses={201: shapes.SubmittedArray}
    )
    def post(self, request: Request) -> Response:
        """Submit a job for each index, in one request."""
        made = launch.submit_array(
            **self.by, **lookups.workload_arguments(self.actor, self.given(shapes.ArrayWish))
        )
        return self.one(_visible_arrays(self).get(pk=made.pk), shapes.SubmittedArray, 201)


class ArrayDetailView(ApiView):
    @extend_schema(operation_id="arrays_read", responses=shapes.ArrayShape)
    def get(self, request: Request, id: UUID) -> Response:
        """One array of jobs."""
        return self.one(get_visible_or_404(_visible_arrays(self), public_id=id), shapes.ArrayShape)


class CancelArrayView(ApiView):
    @extend_schema(operation_id="arrays_cancel", request=Why, responses=shapes.CancelledTasks)
    def post(self, request: Request, id: UUID) -> Response:
        """Cancel every task that has not ended."""
        row = get_visible_or_404(_visible_arrays(self), public_id=id)
        cancelled = workload_changes.cancel_array(**self.by, array=row, **self.given(Why))
        return self.one({"cancelled": cancelled}, shapes.CancelledTasks)


class NotebookPreviewView(ApiView):
    @extend_schema(
        operation_id="notebooks_preview", request=shapes.NotebookWish, responses=shapes.PreviewShape
    )
    def post(self, request: Request) -> Response:
        """What would happen to a notebook if you launched it now. Changes nothing."""
        return _preview_response(
            self, lookups.workload_arguments(self.actor, self.given(shapes.NotebookWish)), "notebook"
        )


class JobPreviewView(ApiView):
    @extend_schema(operation_id="jobs_preview", request=shapes.JobWish, responses=shapes.PreviewShape)
    def post(self, request: Request) -> Response:
        """What would happen to a job if you submitted it now. Changes nothing."""
        return _preview_response(
            self, lookups.workload_arguments(self.actor, self.given(shapes.JobWish)), "job"
        )


def _preview_response(view: ApiView, given: dict[str, Any], kind: str) -> Response:
    answer = workload_preview.preview_workload(**view.by, **given, kind=kind)
    never = answer["never"]
    answer["sentence"] = (
        reason_texts.never_starts_sentence(never.code, never.numbers, view.actor)
        if never
        else reason_texts.reason_sentence(answer["code"], answer["numbers"], view.actor)
    )
    return view.one(answer, shapes.PreviewShape)


class WorkloadDetailView(ApiView):
    @extend_schema(operation_id="workloads_read", responses=shapes.WorkloadDetail)
    def get(self, request: Request, id: UUID) -> Response:
        """One notebook or job, with the runs of its attempts."""
        return self.one(get_visible_or_404(_visible_workloads(self), public_id=id), shapes.WorkloadDetail)


class WorkloadLogView(ApiView):
    @extend_schema(operation_id="workloads_logs", parameters=[shapes.LogQuery], responses=shapes.LogShape)
    def get(self, request: Request, id: UUID) -> Response:
        """A piece of what it wrote, from a byte on; ask again from ``next_offset``."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        policy.require(self.actor, "workload.logs", workload)
        query = self.query(shapes.LogQuery)
        if query["rank"] >= workload.hosts:
            allowed = f"0 to {workload.hosts - 1}" if workload.hosts > 1 else "0: it runs on one host"
            raise Invalid(
                {"rank": f"rank is {query['rank']}; allowed for {workload.name}: {allowed}."},
                {"rank": query["rank"]},
            )
        rows = Run.objects.filter(
            workload=workload, rank=query["rank"], attempt=query.get("attempt", workload.attempt)
        )
        run = rows.first()
        if run is None:
            ended = workload.state == WorkloadState.ENDED
            return self.one({"text": "", "next_offset": query["offset"], "ended": ended}, shapes.LogShape)
        text, after = logs.read_log(run.public_id, query["offset"], LOG_CHUNK_BYTES)
        ended = run.state == RunState.ENDED and not text
        return self.one({"text": text, "next_offset": after, "ended": ended}, shapes.LogShape)


class CancelWorkloadView(ApiView):
    @extend_schema(operation_id="workloads_cancel", request=Why, responses=shapes.WorkloadShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Stop it, or take it out of the queue."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        return self.one(
            workload_changes.cancel_workload(**self.by, workload=workload, **self.given(Why)),
            shapes.WorkloadShape,
        )


class ExtendWorkloadView(ApiView):
    @extend_schema(
        operation_id="workloads_extend", request=shapes.SecondsWish, responses=shapes.WorkloadShape
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Let it run longer, within the pool's longest runtime; what may not be evicted, while its GPUs are promised to nobody."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        given = self.given(shapes.SecondsWish)
        return self.one(
            workload_changes.extend_workload(**self.by, workload=workload, **given), shapes.WorkloadShape
        )


class KeepWorkloadView(ApiView):
    @extend_schema(operation_id="workloads_keep", request=shapes.SecondsWish, responses=shapes.WorkloadShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Don't stop a notebook for idleness for so long."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        given = self.given(shapes.SecondsWish)
        return self.one(
            workload_changes.keep_workload(**self.by, workload=workload, **given), shapes.WorkloadShape
        )


class RelaunchWorkloadView(ApiView):
    @extend_schema(
        operation_id="workloads_relaunch", request=shapes.RelaunchWish, responses={201: shapes.Submitted}
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Queue a copy of it, with changes."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        given = self.given(shapes.RelaunchWish)
        return self.one(
            launch.relaunch_workload(**self.by, workload=workload, **given), shapes.Submitted, 201
        )


class OpenWorkloadView(ApiView):
    @extend_schema(operation_id="workloads_open", request=EmptyBody, responses=shapes.OpenShape)
    def post(self, request: Request, id: UUID) -> Response:
        """The address that opens a running notebook, or what a job serves, once, within a minute."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        self.given(EmptyBody)
        session = getattr(request, "session", None)
        token = request.auth if isinstance(request.auth, ApiToken) else None
        key = (session.session_key or "") if session is not None and token is None else ""
        url = workspaces.open_workspace(**self.by, workload=workload, session_key=key, token=token)
        return self.one({"url": url}, shapes.OpenShape)


class QueueView(ApiView):
    @extend_schema(
        operation_id="queue_list", parameters=[shapes.QueueQuery], responses=page_schema(shapes.WorkloadShape)
    )
    def get(self, request: Request) -> Response:
        """What waits, of what you may see, in the order the engine last judged it."""
        query = self.query(shapes.QueueQuery)
        rows = _visible_workloads(self).filter(state=WorkloadState.QUEUED)
        if query.get("pool"):
            rows = rows.filter(pool__slug=query["pool"])
        return self.page(
            rows.order_by("pool__slug", "position", "submitted_at", "pk"), shapes.WorkloadShape, query
        )
