"""Implement the endpoint of the health of the installation."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.base.fields import ResponseSerializer
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.reads.system.checks import HealthState
from portal.reads.system.health import system_health


class HealthCheckShape(ResponseSerializer):
    check = serializers.CharField(help_text="kind of the check, such as queue")
    subject = serializers.CharField(
        help_text="the checked object of this kind, such as the name of the queue"
    )
    label = serializers.CharField()  # type: ignore[assignment]
    value = serializers.FloatField(allow_null=True, help_text="null if it is unknown")
    unit = serializers.CharField(help_text="s, days, share, bytes; empty for a count")
    text = serializers.CharField(help_text="the value for people")
    state = serializers.ChoiceField(choices=[str(state) for state in HealthState])
    limit = serializers.CharField(help_text="the values from which the state is attention or bad")
    advice = serializers.CharField(help_text="what to do; empty if the state is good")
    link = serializers.CharField(help_text="path of the page that helps; empty if there is none")


class SystemHealthShape(ResponseSerializer):
    at = serializers.DateTimeField()
    version = serializers.CharField(help_text="version of this portal")
    state = serializers.ChoiceField(choices=[str(state) for state in HealthState], help_text="the worst one")
    checks = HealthCheckShape(many=True)


class SystemHealthView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="system_read", responses=SystemHealthShape)
    def get(self, request: Request) -> Response:
        """Return the checks of processes, queues, clocks, storage and backups. For operators and auditors."""
        return self.object_response(system_health(self.actor, self.now), SystemHealthShape)
