"""Implement the endpoints of the dcgm-exporter of a host."""

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
from portal.api.fleet import serializers as shapes
from portal.models import TokenScope
from portal.services.fleet import dcgm_targets as verbs
from portal.wording import host_texts
from scheduler.models import Host
from telemetry.models import DcgmTarget


class DcgmTargetWish(StrictSerializer):
    url = serializers.CharField(max_length=300, help_text="such as http://gpu-01:9400/metrics")
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class DcgmTargetShape(serializers.Serializer[Any]):
    url = serializers.CharField(help_text="empty: the host has no dcgm-exporter that is read")
    scraped_at = serializers.DateTimeField(allow_null=True, help_text="last attempt; null: none yet")
    succeeded_at = serializers.DateTimeField(allow_null=True)
    problem = serializers.ChoiceField(
        choices=DcgmTarget.Problem.values,
        allow_blank=True,
        help_text="problem of the last attempt; empty: none",
    )
    problem_text = serializers.CharField(help_text="the problem in words")
    fields_read = serializers.IntegerField(allow_null=True, help_text="fields of DCGM with a value")
    units_read = serializers.IntegerField(allow_null=True, help_text="GPUs and MIG instances with a value")
    unreadable_lines = serializers.IntegerField(allow_null=True)
    refused_gpus = serializers.IntegerField(
        allow_null=True, help_text="GPUs and MIG instances that the host does not have"
    )


class HostDcgmView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_dcgm", responses=DcgmTargetShape)
    def get(self, request: Request, name: str) -> Response:
        """Return the dcgm-exporter of a host, and the result of its last scrape."""
        return _response(self, _visible_host(self, name))

    @extend_schema(operation_id="hosts_set_dcgm", request=DcgmTargetWish, responses=DcgmTargetShape)
    def put(self, request: Request, name: str) -> Response:
        """Enter or change the dcgm-exporter of a host. It is scraped at once. For operators."""
        host = _visible_host(self, name)
        verbs.set_dcgm_target(**self.service_context, host=host, **self.validated_body(DcgmTargetWish))
        return _response(self, host)


class RemoveHostDcgmView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_remove_dcgm", request=shapes.ReasonWish, responses=DcgmTargetShape)
    def post(self, request: Request, name: str) -> Response:
        """Stop reading the dcgm-exporter of a host. 409 if it has none. For operators."""
        host = _visible_host(self, name)
        verbs.remove_dcgm_target(**self.service_context, host=host, **self.validated_body(shapes.ReasonWish))
        return _response(self, host)


def _visible_host(view: ApiView, name: str) -> Host:
    return lookups.visible_host(view.actor, name, policy.visible_hosts(view.actor))


def _response(view: ApiView, host: Host) -> Response:
    target = DcgmTarget.objects.filter(host=host).first() or DcgmTarget(host=host)
    target.problem_text = host_texts.DCGM_PROBLEMS[target.problem]  # type: ignore[attr-defined]
    return view.object_response(target, DcgmTargetShape)
