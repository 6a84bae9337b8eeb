"""Implement the endpoints of homes and their sizes, and of the software environments on hosts."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.reads.fleet import volumes as reads
from scheduler.models import Host


class VolumeShape(serializers.Serializer[Any]):
    name = serializers.CharField(source="volume.name", help_text="the owner's name")
    hosts = serializers.ListField(
        child=serializers.CharField(), help_text="visible hosts that have this home"
    )
    size_bytes = serializers.IntegerField(
        source="volume.size_bytes", allow_null=True, help_text="on the disk; null: unknown"
    )
    size_complete = serializers.BooleanField(
        source="volume.size_complete",
        help_text="false: a lower bound, as not all files could be counted",
    )
    limit_bytes = serializers.IntegerField(
        source="volume.limit_bytes", allow_null=True, help_text="largest size; null: no limit, or unknown"
    )
    files = serializers.IntegerField(source="volume.files", allow_null=True, help_text="null: unknown")
    running_workloads = serializers.IntegerField(
        source="workloads", help_text="number of visible workloads that use it now"
    )
    changed_at = serializers.DateTimeField(
        source="volume.changed_at",
        allow_null=True,
        help_text="last change of a file in it; null: unknown",
    )
    measured_at = serializers.DateTimeField(
        source="volume.measured_at", allow_null=True, help_text="null: not measured yet"
    )


class EnvironmentShape(serializers.Serializer[Any]):
    host = serializers.CharField(source="name")
    pool = serializers.CharField(source="pool.slug")
    isolation = serializers.CharField(help_text="bubblewrap or plain")
    python = serializers.SerializerMethodField(help_text="empty: not reported")
    packages = serializers.SerializerMethodField(
        help_text="versions by name, of the packages that agents report"
    )
    exposed = serializers.SerializerMethodField(help_text="further paths that its workloads may read")

    def get_python(self, host: Host) -> str:
        """Return the version of the Python interpreter; empty if the agent does not report it."""
        return str((reads.reported_environment(host) or {}).get("python", ""))

    def get_packages(self, host: Host) -> dict[str, str]:
        """Return the versions of the packages that the agent reports, by name."""
        return dict((reads.reported_environment(host) or {}).get("packages", {}))

    def get_exposed(self, host: Host) -> list[str]:
        """Return the additional paths that workloads on the host may read."""
        return list((reads.reported_environment(host) or {}).get("exposed", []))


class VolumeListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="volumes_list", parameters=[PageQuery], responses=page_schema(VolumeShape))
    def get(self, request: Request) -> Response:
        """List your homes and the homes of people in teams that you lead: names and sizes, never files."""
        query = self.validated_query(PageQuery)
        rows = reads.visible_homes(self.actor)
        number, size = query["page"], query["page_size"]
        start = (number - 1) * size
        found = reads.home_details(self.actor, list(rows[start : start + size]))
        return Response(
            {
                "count": rows.count(),
                "page": number,
                "page_size": size,
                "results": VolumeShape(found, many=True).data,
            }
        )


class EnvironmentListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="environments_list", parameters=[PageQuery], responses=page_schema(EnvironmentShape)
    )
    def get(self, request: Request) -> Response:
        """List the environment on each host that you may see, as its agent reports it."""
        return self.list_response(
            reads.joined_hosts(self.actor), EnvironmentShape, self.validated_query(PageQuery)
        )
