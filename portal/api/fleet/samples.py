"""Define the endpoint that sends raw samples as a file."""

from __future__ import annotations

from datetime import timedelta

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request

from portal import policy
from portal.api.base.fields import JsonObject, slug_field
from portal.api.base.lookups import get_named_row, hosts_of_files
from portal.api.base.periods import checked_period
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import AnyContentNegotiation, ApiView
from portal.models import TokenScope
from portal.streamed_file import StreamedFile
from telemetry.exports.sample_files import SampleScope, sample_file
from telemetry.exports.table_files import TABLE_FILES

MAX_SAMPLE_PERIOD = timedelta(days=31)
CONTENT_TYPES = tuple(content_type.partition(";")[0] for content_type, _ in TABLE_FILES.values())


class SampleQuery(StrictSerializer):
    start = serializers.DateTimeField(help_text="time of the first sample")
    end = serializers.DateTimeField(help_text="time after the last sample, at most 31 days later")
    kind = serializers.ChoiceField(choices=tuple(TABLE_FILES), default="csv")
    pool = slug_field(required=False, help_text="only hosts of this pool")
    host = serializers.CharField(max_length=63, required=False, help_text="only this host")
    workload = serializers.UUIDField(required=False, help_text="only samples of this workload")


class SampleFileView(ApiView):
    scope = TokenScope.READ
    content_negotiation_class = AnyContentNegotiation

    @extend_schema(
        operation_id="samples_export",
        parameters=[SampleQuery],
        responses={(200, kind): OpenApiTypes.BINARY for kind in CONTENT_TYPES},
    )
    def get(self, request: Request) -> StreamedFile:
        """Return a file of the samples of your teams' work. Operators and auditors get all samples."""
        query = self.validated_query(SampleQuery)
        scope = self._scope(query)
        name = f"gpupool-samples-{scope.start:%Y%m%dT%H%M}-{scope.end:%Y%m%dT%H%M}.{query['kind']}"
        return StreamedFile(name, TABLE_FILES[query["kind"]][0], sample_file(query["kind"], scope))

    def _scope(self, query: JsonObject) -> SampleScope:
        start, end = checked_period(query["start"], query["end"], MAX_SAMPLE_PERIOD)
        hosts = hosts_of_files(self.actor, query)
        workloads = None if policy.sees_all_teams(self.actor) else policy.visible_workloads(self.actor)
        if "workload" in query:
            wanted = policy.visible_workloads(self.actor)
            public_id = query["workload"]
            row = get_named_row(
                wanted, "workload", str(public_id), "the id of a workload", public_id=public_id
            )
            workloads = wanted.filter(pk=row.pk)
            hosts = hosts.filter(runs__workload=row)
        ids = hosts.order_by("name", "pk").values_list("pk", flat=True)
        return SampleScope(list(dict.fromkeys(ids)), start, end, self.now, workloads)
