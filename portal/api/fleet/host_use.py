"""Implement the endpoint of the use of a host, and of the counters of its GPUs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.fields import ResponseSerializer
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.wording import host_texts
from telemetry.models import SlowReading
from telemetry.reads.usage.gpu_counters import GpuCounter, gpu_counters
from telemetry.reads.usage.host_use import host_use_summary


class UsedAmountShape(ResponseSerializer):
    """A use now, and its mean and peak in the last hour. Null: not measured."""

    now = serializers.FloatField(allow_null=True)
    mean = serializers.FloatField(allow_null=True, help_text="of the last hour")
    peak = serializers.FloatField(allow_null=True, help_text="of the last hour")


class DiskUseShape(ResponseSerializer):
    name = serializers.CharField()
    read = UsedAmountShape(source="bytes_in", help_text="bytes per second")
    written = UsedAmountShape(source="bytes_out", help_text="bytes per second")


class NetworkUseShape(ResponseSerializer):
    name = serializers.CharField(help_text="network interface")
    received = UsedAmountShape(source="bytes_in", help_text="bytes per second")
    sent = UsedAmountShape(source="bytes_out", help_text="bytes per second")


class HostUseShape(ResponseSerializer):
    at = serializers.DateTimeField(help_text="time of the last reading")
    cpu_cores = UsedAmountShape(help_text="cores in use")
    memory_mib = UsedAmountShape(help_text="memory without caches")
    disk_bytes = serializers.IntegerField(
        allow_null=True, help_text="size of the disk of the agent's state; null: not measured"
    )
    disk_free_bytes = serializers.IntegerField(allow_null=True)
    disks = DiskUseShape(many=True)
    networks = NetworkUseShape(many=True)


class GpuCounterShape(ResponseSerializer):
    gpu = serializers.IntegerField(help_text="its index on the host")
    reading = serializers.CharField()
    label = serializers.SerializerMethodField()  # type: ignore[assignment]
    value = serializers.IntegerField()
    source = serializers.ChoiceField(choices=SlowReading.Source.values)  # type: ignore[assignment]
    since = serializers.DateTimeField(help_text="time at which it got this value")

    def get_label(self, counter: GpuCounter) -> str:
        """Return the name of the reading that pages show."""
        return host_texts.READING_LABELS[counter.reading][0]


class HostUseAnswer(ResponseSerializer):
    use = HostUseShape(allow_null=True, help_text="null: its agent reported none in the last hour")
    counters = GpuCounterShape(many=True, help_text="errors and throttled time that are not 0")


class HostUseView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="hosts_use", responses=HostUseAnswer)
    def get(self, request: Request, name: str) -> Response:
        """Return the use of a host's CPU, memory, disks and networks, and the counters of its GPUs."""
        host = lookups.visible_host(self.actor, name, policy.visible_hosts(self.actor))
        body: dict[str, Any] = {"use": host_use_summary(host, self.now), "counters": gpu_counters(host)}
        return self.object_response(body, HostUseAnswer)
