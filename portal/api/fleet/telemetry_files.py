"""Define the endpoints that send rollups and cubes as files."""

from __future__ import annotations

from datetime import timedelta

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request

from portal import policy
from portal.api.base.fields import JsonObject, slug_field
from portal.api.base.lookups import hosts_of_files, visible_pool
from portal.api.base.periods import checked_period
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import AnyContentNegotiation, ApiView
from portal.models import TokenScope
from portal.streamed_file import StreamedFile
from telemetry.exports.rollup_files import (
    CUBE_LEVELS,
    LEVELS,
    CubeScope,
    RollupScope,
    cube_file,
    rollup_file,
)
from telemetry.exports.table_files import TABLE_FILES

# The longest period of a file: a minute has 60 times the rows of an hour.
LONGEST = {"minute": timedelta(days=31), "hour": timedelta(days=400), "day": timedelta(days=400)}
FILE_RESPONSES = {
    (200, content_type.partition(";")[0]): OpenApiTypes.BINARY for content_type, _ in TABLE_FILES.values()
}


class FileQuery(StrictSerializer):
    start = serializers.DateTimeField(help_text="start of the first bucket")
    end = serializers.DateTimeField(help_text="end of the period, at most 400 days later; minutes: 31 days")
    kind = serializers.ChoiceField(choices=tuple(TABLE_FILES), default="csv")
    pool = slug_field(required=False, help_text="only this pool")


class RollupQuery(FileQuery):
    level = serializers.ChoiceField(choices=tuple(LEVELS), default="hour")
    host = serializers.CharField(max_length=63, required=False, help_text="only this host")


class CubeQuery(FileQuery):
    level = serializers.ChoiceField(choices=tuple(CUBE_LEVELS), default="day")


class RollupFileView(ApiView):
    scope = TokenScope.READ
    content_negotiation_class = AnyContentNegotiation

    @extend_schema(operation_id="rollups_export", parameters=[RollupQuery], responses=FILE_RESPONSES)
    def get(self, request: Request) -> StreamedFile:
        """Return a file of the rollups of your teams' work. Operators and auditors get all rollups."""
        query = self.validated_query(RollupQuery)
        start, end = checked_period(query["start"], query["end"], LONGEST[query["level"]])
        hosts = hosts_of_files(self.actor, query)
        workloads = None if policy.sees_all_teams(self.actor) else policy.visible_workloads(self.actor)
        ids = list(hosts.order_by("name", "pk").values_list("pk", flat=True))
        scope = RollupScope(query["level"], ids, start, end, workloads)
        return _file("rollups", query, rollup_file(query["kind"], scope))


class CubeFileView(ApiView):
    scope = TokenScope.READ
    content_negotiation_class = AnyContentNegotiation

    @extend_schema(operation_id="cubes_export", parameters=[CubeQuery], responses=FILE_RESPONSES)
    def get(self, request: Request) -> StreamedFile:
        """Return a file of the cubes of your teams. Operators, auditors and finance get all cubes."""
        query = self.validated_query(CubeQuery)
        start, end = checked_period(query["start"], query["end"], LONGEST[query["level"]])
        everything = policy.sees_all_charges(self.actor) or policy.sees_all_teams(self.actor)
        teams = None if everything else list(policy.visible_teams(self.actor).values_list("pk", flat=True))
        pools = [visible_pool(self.actor, query["pool"]).pk] if "pool" in query else None
        scope = CubeScope(query["level"], start, end, teams, pools)
        return _file("cubes", query, cube_file(query["kind"], scope))


def _file(name: str, query: JsonObject, parts: object) -> StreamedFile:
    kind, level = query["kind"], query["level"]
    times = f"{query['start']:%Y%m%dT%H%M}-{query['end']:%Y%m%dT%H%M}"
    return StreamedFile(f"gpupool-{name}-{level}-{times}.{kind}", TABLE_FILES[kind][0], parts)  # type: ignore[arg-type]
