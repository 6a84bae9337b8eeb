"""Implement the endpoints of the MIG geometry of GPUs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.reads.fleet import mig_geometry as reads
from portal.services.fleet import mig_geometry as verbs
from scheduler.models import GeometryChange, Host
from scheduler.state.states import GeometryState

GEOMETRY_EXAMPLE = "whole, or such as 1x3g.40gb+4x1g.10gb"


class GeometryChangeShape(serializers.Serializer[GeometryChange]):
    id = serializers.UUIDField(source="public_id")
    gpu = serializers.IntegerField(source="gpu.index")
    before = serializers.SerializerMethodField(help_text=GEOMETRY_EXAMPLE)
    after = serializers.SerializerMethodField(help_text=GEOMETRY_EXAMPLE)
    state = serializers.ChoiceField(choices=[s.value for s in GeometryState])
    detail = serializers.CharField(help_text="the host's report")
    created_at = serializers.DateTimeField()
    told_at = serializers.DateTimeField(
        allow_null=True, help_text="when the GPU was drained and its host received the command"
    )
    ended_at = serializers.DateTimeField(allow_null=True)

    def get_before(self, row: GeometryChange) -> str:
        """Return the geometry before the change."""
        return verbs.format_geometry(row.before)

    def get_after(self, row: GeometryChange) -> str:
        """Return the requested geometry."""
        return verbs.format_geometry(row.profiles)


class ProfileShape(serializers.Serializer[Any]):
    name = serializers.CharField(source="profile.name")
    slices = serializers.IntegerField(
        source="profile.slices", help_text="number of compute slices; a GPU has 7"
    )
    memory_mib = serializers.IntegerField()
    most = serializers.IntegerField(
        source="profile.most", help_text="number of instances that fit on an empty GPU"
    )


class GpuGeometryShape(serializers.Serializer[Any]):
    gpu = serializers.IntegerField(source="gpu.index")
    geometry = serializers.SerializerMethodField(
        help_text=f"{GEOMETRY_EXAMPLE}; null: split, without instances"
    )
    profiles = serializers.SerializerMethodField(help_text="possible profiles; empty: it can't be split")
    last_change = GeometryChangeShape(source="last", allow_null=True)

    def get_geometry(self, row: reads.GpuGeometry) -> str | None:
        """Return the present geometry. Return None if the GPU is in MIG mode but has no instances."""
        return None if row.present is None else row.present or verbs.WHOLE_GPU_TEXT

    def get_profiles(self, row: reads.GpuGeometry) -> list[dict[str, Any]]:
        """Return the MIG profiles that fit on the GPU, sorted by name.

        The list is empty if the GPU cannot be split.
        """
        offers = [row.offers[name] for name in sorted(row.offers)] if row.can_be_split else []
        return [dict(each) for each in ProfileShape(offers, many=True).data]


class GeometryWish(StrictSerializer):
    gpu = serializers.IntegerField(min_value=0, help_text="its index")
    geometry = serializers.CharField(max_length=300, help_text=GEOMETRY_EXAMPLE)
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class GeometryTry(StrictSerializer):
    gpu = serializers.IntegerField(min_value=0, help_text="its index")
    geometry = serializers.CharField(max_length=300, help_text=GEOMETRY_EXAMPLE)


class WithdrawnGeometryWish(StrictSerializer):
    gpu = serializers.IntegerField(min_value=0, help_text="its index")
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class LeavingShape(serializers.Serializer[Any]):
    id = serializers.UUIDField(source="workload.public_id")
    name = serializers.CharField(source="workload.name")
    team = serializers.CharField(source="workload.project.team.slug")
    owner = serializers.CharField(source="workload.owner.username")
    leaves = serializers.BooleanField(help_text="it is evicted with notice; otherwise it runs to its end")
    by = serializers.DateTimeField(help_text="latest end")


class GeometryEffectShape(serializers.Serializer[Any]):
    gpu = serializers.IntegerField(source="gpu.index")
    before = serializers.CharField()
    after = serializers.CharField()
    work = LeavingShape(many=True)
    reservations = serializers.IntegerField(
        source="bound", help_text="number of active reservations bound to the GPU"
    )
    unkept = serializers.SerializerMethodField(
        help_text="future reservations that would not fit without the GPU"
    )
    free_by = serializers.DateTimeField(allow_null=True, help_text="null: it is free now")

    def get_unkept(self, effect: Any) -> list[str]:
        return [reservation.name for reservation in effect.unkept]


class HostGeometryView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_geometry", responses=GpuGeometryShape(many=True))
    def get(self, request: Request, name: str) -> Response:
        """List the MIG geometry of a host's GPUs, and the possible geometries."""
        return Response(GpuGeometryShape(reads.host_geometries(_visible_host(self, name)), many=True).data)

    @extend_schema(
        operation_id="hosts_change_geometry", request=GeometryWish, responses={202: GeometryChangeShape}
    )
    def post(self, request: Request, name: str) -> Response:
        """Change the geometry of a GPU.

        The GPU accepts no new workloads and drains. Then its host applies the geometry. For operators.
        """
        host = _visible_host(self, name)
        made = verbs.change_geometry(**self.service_context, host=host, **self.validated_body(GeometryWish))
        return self.object_response(made, GeometryChangeShape, 202)


class GeometryPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="hosts_geometry_preview", request=GeometryTry, responses=GeometryEffectShape)
    def post(self, request: Request, name: str) -> Response:
        """List the workloads that the change would evict, and when. For operators."""
        host, given = _visible_host(self, name), self.validated_body(GeometryTry)
        return self.object_response(
            verbs.preview_geometry_change(actor=self.actor, host=host, now=self.now, **given),
            GeometryEffectShape,
        )


class WithdrawGeometryView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="hosts_withdraw_geometry", request=WithdrawnGeometryWish, responses=GeometryChangeShape
    )
    def post(self, request: Request, name: str) -> Response:
        """Withdraw the change while the GPU drains. For operators."""
        host = _visible_host(self, name)
        taken = verbs.withdraw_geometry(
            **self.service_context, host=host, **self.validated_body(WithdrawnGeometryWish)
        )
        return self.object_response(taken, GeometryChangeShape)


def _visible_host(view: ApiView, name: str) -> Host:
    return lookups.visible_host(view.actor, name, policy.visible_hosts(view.actor).select_related("pool"))
