"""Implement the endpoints of notebooks, jobs and the queue."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import EmptyBody, PageQuery, WhyBody
from portal.api.base.views import ApiView
from portal.api.work import (
    array_serializers,
    preview_serializers,
    report_serializers,
    request_serializers,
    workload_serializers,
)
from portal.errors import Invalid
from portal.models import ApiToken, TokenScope
from portal.reads.work.job_arrays import with_task_counts
from portal.reads.work.run_reports import run_report
from portal.services.work import launch, workload_changes, workload_preview, workspaces
from portal.wording import reason_texts
from portal.wording.pages import api_answers
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
    """List notebooks and jobs together."""

    scope = TokenScope.READ

    @extend_schema(
        operation_id="workloads_list",
        parameters=[request_serializers.WorkloadQuery],
        responses=page_schema(workload_serializers.WorkloadShape),
    )
    def get(self, request: Request) -> Response:
        """List the workloads that you may see, newest first."""
        query = self.validated_query(request_serializers.WorkloadQuery)
        return self.list_response(_filtered_workloads(self, query), workload_serializers.WorkloadShape, query)


class NotebookListView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="notebooks_list",
        parameters=[request_serializers.KindQuery],
        responses=page_schema(workload_serializers.WorkloadShape),
    )
    def get(self, request: Request) -> Response:
        """List the notebooks that you may see, newest first."""
        query = self.validated_query(request_serializers.KindQuery)
        return self.list_response(
            _filtered_workloads(self, {**query, "kind": WorkloadKind.NOTEBOOK}),
            workload_serializers.WorkloadShape,
            query,
        )

    @extend_schema(
        operation_id="notebooks_launch",
        request=request_serializers.NotebookWish,
        responses={201: workload_serializers.Submitted},
    )
    def post(self, request: Request) -> Response:
        """Launch a notebook. Its template supplies absent fields."""
        given = lookups.workload_arguments(self.actor, self.validated_body(request_serializers.NotebookWish))
        return self.object_response(
            launch.launch_notebook(**self.service_context, **given), workload_serializers.Submitted, 201
        )


class JobListView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="jobs_list",
        parameters=[request_serializers.JobQuery],
        responses=page_schema(workload_serializers.WorkloadShape),
    )
    def get(self, request: Request) -> Response:
        """List the jobs that you may see, newest first. Tasks of an array are sorted by index."""
        query = self.validated_query(request_serializers.JobQuery)
        return self.list_response(
            _filtered_workloads(self, {**query, "kind": WorkloadKind.JOB}),
            workload_serializers.WorkloadShape,
            query,
        )

    @extend_schema(
        operation_id="jobs_submit",
        request=request_serializers.JobWish,
        responses={201: workload_serializers.Submitted},
    )
    def post(self, request: Request) -> Response:
        """Submit a job."""
        given = lookups.workload_arguments(self.actor, self.validated_body(request_serializers.JobWish))
        return self.object_response(
            launch.submit_job(**self.service_context, **given), workload_serializers.Submitted, 201
        )


class ArrayListView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="arrays_list",
        parameters=[PageQuery],
        responses=page_schema(array_serializers.ArrayShape),
    )
    def get(self, request: Request) -> Response:
        """List the job arrays that you may see, newest first, with the numbers of tasks by state."""
        query = self.validated_query(PageQuery)
        return self.list_response(_visible_arrays(self), array_serializers.ArrayShape, query)

    @extend_schema(
        operation_id="arrays_submit",
        request=request_serializers.ArrayWish,
        responses={201: array_serializers.SubmittedArray},
    )
    def post(self, request: Request) -> Response:
        """Submit a job array: one job for each index, in one request."""
        made = launch.submit_array(
            **self.service_context,
            **lookups.workload_arguments(self.actor, self.validated_body(request_serializers.ArrayWish)),
        )
        return self.object_response(
            _visible_arrays(self).get(pk=made.pk), array_serializers.SubmittedArray, 201
        )


class ArrayDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="arrays_read", responses=array_serializers.ArrayShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Return one job array."""
        return self.object_response(
            get_visible_or_404(_visible_arrays(self), public_id=id), array_serializers.ArrayShape
        )


class CancelArrayView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="arrays_cancel", request=WhyBody, responses=array_serializers.CancelledTasks)
    def post(self, request: Request, id: UUID) -> Response:
        """Cancel every task that has not ended."""
        row = get_visible_or_404(_visible_arrays(self), public_id=id)
        cancelled = workload_changes.cancel_array(
            **self.service_context, array=row, **self.validated_body(WhyBody)
        )
        return self.object_response({"cancelled": cancelled}, array_serializers.CancelledTasks)


class NotebookPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="notebooks_preview",
        request=request_serializers.NotebookWish,
        responses=preview_serializers.PreviewShape,
    )
    def post(self, request: Request) -> Response:
        """Preview the launch of a notebook now. Changes nothing."""
        return _preview_response(
            self,
            lookups.workload_arguments(self.actor, self.validated_body(request_serializers.NotebookWish)),
            "notebook",
        )


class JobPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="jobs_preview",
        request=request_serializers.JobWish,
        responses=preview_serializers.PreviewShape,
    )
    def post(self, request: Request) -> Response:
        """Preview the submission of a job now. Changes nothing."""
        return _preview_response(
            self,
            lookups.workload_arguments(self.actor, self.validated_body(request_serializers.JobWish)),
            "job",
        )


def _preview_response(view: ApiView, given: dict[str, Any], kind: str) -> Response:
    answer = workload_preview.preview_workload(**view.service_context, **given, kind=kind)
    never = answer["never"]
    answer["sentence"] = (
        reason_texts.never_starts_sentence(never.code, never.numbers, view.actor)
        if never
        else reason_texts.reason_sentence(answer["code"], answer["numbers"], view.actor)
    )
    return view.object_response(answer, preview_serializers.PreviewShape)


class WorkloadDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="workloads_read", responses=workload_serializers.WorkloadDetail)
    def get(self, request: Request, id: UUID) -> Response:
        """Return one notebook or job, with the runs of its attempts."""
        return self.object_response(
            get_visible_or_404(_visible_workloads(self), public_id=id), workload_serializers.WorkloadDetail
        )


class WorkloadLogView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="workloads_logs",
        parameters=[request_serializers.LogQuery],
        responses=workload_serializers.LogShape,
    )
    def get(self, request: Request, id: UUID) -> Response:
        """Return the log from byte ``offset`` on; continue at ``next_offset``."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        policy.require(self.actor, "workload.logs", workload)
        query = self.validated_query(request_serializers.LogQuery)
        if query["rank"] >= workload.hosts:
            allowed = f"0 to {workload.hosts - 1}" if workload.hosts > 1 else "0: it runs on one host"
            raise Invalid(
                {
                    "rank": api_answers.RANK_NOT_ALLOWED.format(
                        rank=query["rank"], name=workload.name, allowed=allowed
                    )
                },
                {"rank": query["rank"]},
            )
        rows = Run.objects.filter(
            workload=workload, rank=query["rank"], attempt=query.get("attempt", workload.attempt)
        )
        run = rows.first()
        if run is None:
            ended = workload.state == WorkloadState.ENDED
            return self.object_response(
                {"text": "", "next_offset": query["offset"], "ended": ended}, workload_serializers.LogShape
            )
        text, after = logs.read_log(run.public_id, query["offset"], LOG_CHUNK_BYTES)
        ended = run.state == RunState.ENDED and not text
        return self.object_response(
            {"text": text, "next_offset": after, "ended": ended}, workload_serializers.LogShape
        )


class WorkloadReportView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="workloads_report", responses=report_serializers.WorkloadReportShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Return what a workload used on each GPU, its waits, its cost, and what to ask for next time."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        details = run_report(workload, self.actor, self.now)
        if details is None:
            raise Invalid({"id": api_answers.NO_REPORT.format(name=workload.name)}, {"id": str(id)})
        return self.object_response(details, report_serializers.WorkloadReportShape)


class CancelWorkloadView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="workloads_cancel", request=WhyBody, responses=workload_serializers.WorkloadShape
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Stop a workload, or remove it from the queue."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        return self.object_response(
            workload_changes.cancel_workload(
                **self.service_context, workload=workload, **self.validated_body(WhyBody)
            ),
            workload_serializers.WorkloadShape,
        )


class ExtendWorkloadView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="workloads_extend",
        request=request_serializers.SecondsWish,
        responses=workload_serializers.WorkloadShape,
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Extend a workload's runtime limit, up to the pool's limit.

        A workload that is not preemptible is extended only if no reservation or maintenance window needs its
        GPUs.
        """
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        given = self.validated_body(request_serializers.SecondsWish)
        return self.object_response(
            workload_changes.extend_workload(**self.service_context, workload=workload, **given),
            workload_serializers.WorkloadShape,
        )


class KeepWorkloadView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="workloads_keep",
        request=request_serializers.SecondsWish,
        responses=workload_serializers.WorkloadShape,
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Protect a notebook from the idle stop, or postpone the planned stop of an unused job."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        given = self.validated_body(request_serializers.SecondsWish)
        return self.object_response(
            workload_changes.keep_workload(**self.service_context, workload=workload, **given),
            workload_serializers.WorkloadShape,
        )


class RelaunchWorkloadView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="workloads_relaunch",
        request=request_serializers.RelaunchWish,
        responses={201: workload_serializers.Submitted},
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Queue a copy of a workload, with changes."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        given = self.validated_body(request_serializers.RelaunchWish)
        return self.object_response(
            launch.relaunch_workload(**self.service_context, workload=workload, **given),
            workload_serializers.Submitted,
            201,
        )


class OpenWorkloadView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="workloads_open", request=EmptyBody, responses=workload_serializers.OpenShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Return a URL that opens a running notebook or job. It works once, and expires after a minute."""
        workload = get_visible_or_404(_visible_workloads(self), public_id=id)
        self.validated_body(EmptyBody)
        session = getattr(request, "session", None)
        token = request.auth if isinstance(request.auth, ApiToken) else None
        key = (session.session_key or "") if session is not None and token is None else ""
        url = workspaces.open_workspace(
            **self.service_context, workload=workload, session_key=key, token=token
        )
        return self.object_response({"url": url}, workload_serializers.OpenShape)


class QueueView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="queue_list",
        parameters=[request_serializers.QueueQuery],
        responses=page_schema(workload_serializers.WorkloadShape),
    )
    def get(self, request: Request) -> Response:
        """List the waiting workloads that you may see, in the order of the engine's last evaluation."""
        query = self.validated_query(request_serializers.QueueQuery)
        rows = _visible_workloads(self).filter(state=WorkloadState.QUEUED)
        if query.get("pool"):
            rows = rows.filter(pool__slug=query["pool"])
        return self.list_response(
            rows.order_by("pool__slug", "position", "submitted_at", "pk"),
            workload_serializers.WorkloadShape,
            query,
        )
