"""Implement the endpoints of recordings.

A recording is the input of one planning cycle. When it is replayed, the planner produces the same plan, byte
for byte.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.lookups import get_named_row
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.reads.work import recordings


class RecordingQuery(PageQuery):
    workload = serializers.UUIDField(
        required=False, help_text="only cycles with a decision about this workload"
    )


class RecordingShape(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    placed = serializers.IntegerField(help_text="number of started workloads")
    evicted = serializers.IntegerField(help_text="number of evicted workloads")
    refused = serializers.IntegerField(help_text="number of workloads that stay in the queue")
    plan_sha256 = serializers.CharField(help_text="hash of the plan that replay_snapshot writes")


class RecordingListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="recordings_list", parameters=[RecordingQuery], responses=page_schema(RecordingShape)
    )
    def get(self, request: Request) -> Response:
        """List the recorded cycles that changed something, latest first. For operators and auditors."""
        policy.require(self.actor, "recording.see")
        query = self.validated_query(RecordingQuery)
        about = None
        if "workload" in query:
            given = query["workload"]
            rows = policy.visible_workloads(self.actor)
            about = get_named_row(
                rows, "workload", str(given), "the id of a notebook or job", public_id=given
            )
        return self.list_response(recordings.latest_recordings(about), RecordingShape, query)


class RecordingDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="recordings_read", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, id: int) -> HttpResponse:
        """Return one recording as the file that replay_snapshot reads. For operators and auditors."""
        policy.require(self.actor, "recording.see")
        return recordings.as_download(id)
