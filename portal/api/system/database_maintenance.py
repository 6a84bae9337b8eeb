"""Implement the endpoints of the planned maintenance of the database."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import ResponseSerializer
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.reads.fleet.database_maintenance import database_maintenance_status
from portal.services.fleet import database_maintenance as verbs


class DatabaseMaintenanceWish(StrictSerializer):
    minutes = serializers.IntegerField(help_text="1 to 240: the announced duration")
    why = serializers.CharField(max_length=300, help_text="shown to everybody")


class DatabaseMaintenanceEnd(StrictSerializer):
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class DatabaseMaintenanceShape(ResponseSerializer):
    starts_at = serializers.DateTimeField(allow_null=True, help_text="null: there is no maintenance")
    ends_at = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField()
    announced_by = serializers.CharField()
    edges = serializers.IntegerField(help_text="edge processes in contact with the database")
    edges_ready = serializers.IntegerField(help_text="those that renew leases until ends_at")
    may_stop_database = serializers.BooleanField(help_text="true: every edge knows the announced end")


class DatabaseMaintenanceView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="database_maintenance_read", responses=DatabaseMaintenanceShape)
    def get(self, request: Request) -> Response:
        """Return the current maintenance of the database. For operators and auditors."""
        policy.require(self.actor, "database_maintenance.see")
        return _response(self)

    @extend_schema(
        operation_id="database_maintenance_begin",
        request=DatabaseMaintenanceWish,
        responses={201: DatabaseMaintenanceShape},
    )
    def post(self, request: Request) -> Response:
        """Begin a maintenance: nothing is placed, and running work keeps its leases. For operators."""
        verbs.begin_database_maintenance(
            **self.service_context, **self.validated_body(DatabaseMaintenanceWish)
        )
        return _response(self, 201)


class EndDatabaseMaintenanceView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="database_maintenance_end",
        request=DatabaseMaintenanceEnd,
        responses=DatabaseMaintenanceShape,
    )
    def post(self, request: Request) -> Response:
        """End the maintenance of the database before its announced end. For operators."""
        verbs.end_database_maintenance(**self.service_context, **self.validated_body(DatabaseMaintenanceEnd))
        return _response(self)


def _response(view: ApiView, status: int = 200) -> Response:
    found = database_maintenance_status(view.now)
    row = found.maintenance
    answer = {
        "starts_at": row.starts_at if row else None,
        "ends_at": row.ends_at if row else None,
        "reason": row.reason if row else "",
        "announced_by": row.announced_by if row else "",
        "edges": found.edges,
        "edges_ready": found.edges_ready,
        "may_stop_database": found.may_stop_database,
    }
    return view.object_response(answer, DatabaseMaintenanceShape, status)
