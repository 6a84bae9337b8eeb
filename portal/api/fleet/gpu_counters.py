"""Implement the endpoint of the counters of a host's GPUs over time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.fields import ResponseSerializer
from portal.api.base.periods import checked_period
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import ApiView
from portal.models import TokenScope
from telemetry.dcgm.fields import SLOW_READINGS
from telemetry.models import SlowReading
from telemetry.reads.usage.gpu_counters import CounterSeries, counter_series

MAX_PERIOD = timedelta(days=400)


class CounterQuery(StrictSerializer):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField(help_text="at most 400 days after the start")
    reading = serializers.ChoiceField(
        choices=SLOW_READINGS, required=False, default="", help_text="only this counter or flag"
    )


class CounterPointShape(ResponseSerializer):
    at = serializers.DateTimeField(help_text="time of the change; the value holds until the next one")
    value = serializers.IntegerField()


class CounterSeriesShape(ResponseSerializer):
    gpu = serializers.IntegerField(help_text="index of the GPU")
    uuid = serializers.CharField()
    reading = serializers.CharField()
    source = serializers.ChoiceField(choices=SlowReading.Source.values)  # type: ignore[assignment]
    points = serializers.SerializerMethodField(help_text="at most 601, in order of time")

    @extend_schema_field(CounterPointShape(many=True))
    def get_points(self, series: CounterSeries) -> list[dict[str, Any]]:
        """Return the changes of the counter."""
        return [{"at": at, "value": value} for at, value in series.points]


class HostCountersShape(ResponseSerializer):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    series = CounterSeriesShape(many=True, help_text="one for each GPU, counter and source")


class HostCountersView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="hosts_counters", parameters=[CounterQuery], responses=HostCountersShape)
    def get(self, request: Request, name: str) -> Response:
        """Return the counters of a host's GPUs over time: memory errors, remapped rows, throttled time."""
        host = lookups.visible_host(self.actor, name, policy.visible_hosts(self.actor))
        query = self.validated_query(CounterQuery)
        start, end = checked_period(query["start"], query["end"], MAX_PERIOD)
        series = counter_series(host, start, end, query["reading"])
        return self.object_response({"start": start, "end": end, "series": series}, HostCountersShape)
