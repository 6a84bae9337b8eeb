"""Implement the endpoints of alerts and of the alert rules of pools."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.lookups import get_visible_or_404, visible_pool
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery, StrictSerializer
from portal.api.base.views import ApiView
from portal.api.fleet import serializers as shapes
from portal.models import TokenScope
from portal.reads.fleet import alerts as reads
from portal.services.fleet import alerts as verbs
from scheduler.models import Pool
from telemetry.core.alerts.judgement import AlertState
from telemetry.core.alerts.kinds import AlertKind, AlertSubject
from telemetry.models import Alert

KINDS = [kind.value for kind in AlertKind]


class AlertShape(serializers.Serializer[Any]):
    id = serializers.UUIDField(source="alert.public_id")
    kind = serializers.ChoiceField(choices=KINDS, source="alert.kind")
    label = serializers.CharField()  # type: ignore[assignment]
    pool = serializers.CharField(source="alert.pool.slug")
    state = serializers.ChoiceField(choices=[state.value for state in AlertState], source="alert.state")
    subject_kind = serializers.ChoiceField(choices=[subject.value for subject in AlertSubject])
    subject = serializers.CharField(help_text="name of the workload, reservation, GPU, host or pool")
    workload = serializers.UUIDField(source="alert.workload.public_id", allow_null=True, default=None)
    reservation = serializers.UUIDField(source="alert.reservation.public_id", allow_null=True, default=None)
    host = serializers.CharField(source="alert.host.name", allow_null=True, default=None)
    gpu = serializers.IntegerField(
        source="alert.gpu.index", allow_null=True, default=None, help_text="index on its host"
    )
    value = serializers.FloatField(source="alert.value", help_text="value at the begin")
    unit = serializers.CharField()
    evidence = serializers.CharField(help_text="the evidence in a sentence")
    began_at = serializers.DateTimeField(source="alert.began_at")
    ended_at = serializers.DateTimeField(source="alert.ended_at", allow_null=True)
    acknowledged_at = serializers.DateTimeField(source="alert.acknowledged_at", allow_null=True)
    acknowledged_by = serializers.CharField(
        source="alert.acknowledged_by.username", allow_null=True, default=None
    )
    snoozed_until = serializers.DateTimeField(source="alert.snoozed_until", allow_null=True)
    stop_at = serializers.DateTimeField(
        source="alert.stop_at", allow_null=True, help_text="the unused work is stopped at this time"
    )
    postponed = serializers.IntegerField(
        source="alert.postponed", help_text="how often its owner postponed the stop"
    )


class AlertQuery(PageQuery):
    kind = serializers.ChoiceField(choices=KINDS, required=False)
    pool = serializers.CharField(max_length=40, required=False, help_text="slug of a pool")
    state = serializers.ChoiceField(
        choices=reads.ALERT_FILTER_STATES, required=False, help_text="default: open, all that have not ended"
    )


class SnoozeWish(StrictSerializer):
    minutes = serializers.IntegerField()
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class AlertThresholdShape(serializers.Serializer[Any]):
    enabled = serializers.BooleanField()
    begin = serializers.FloatField(help_text="an alert begins at this value or more")
    end = serializers.FloatField(help_text="an alert ends at this value or less")
    begin_minutes = serializers.IntegerField(help_text="time for which the value must hold to begin")
    end_minutes = serializers.IntegerField(help_text="time for which the value must hold to end")
    stop_work = serializers.BooleanField(help_text="stop unused work after a warning")
    notice_minutes = serializers.IntegerField(help_text="time from the warning to the stop")
    postpone_times = serializers.IntegerField(help_text="how often owners may postpone the stop of a job")
    postpone_minutes = serializers.IntegerField(help_text="longest time of one postponement")


class AlertRuleShape(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=KINDS)
    unit = serializers.CharField(source="definition.unit", help_text="unit of begin and end")
    is_default = serializers.SerializerMethodField()
    rule = AlertThresholdShape(source="thresholds")
    default = AlertThresholdShape(source="definition.defaults")  # type: ignore[assignment]

    def get_is_default(self, row: reads.PoolAlertRule) -> bool:
        """Return True if operators have not changed the rule."""
        return not row.is_own


class AlertRuleWish(StrictSerializer):
    enabled = serializers.BooleanField(required=False)
    begin = serializers.FloatField(required=False)
    end = serializers.FloatField(required=False)
    begin_minutes = serializers.IntegerField(required=False)
    end_minutes = serializers.IntegerField(required=False)
    stop_work = serializers.BooleanField(required=False)
    notice_minutes = serializers.IntegerField(required=False)
    postpone_times = serializers.IntegerField(required=False)
    postpone_minutes = serializers.IntegerField(required=False)
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class AlertListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="alerts_list", parameters=[AlertQuery], responses=page_schema(AlertShape))
    def get(self, request: Request) -> Response:
        """List alerts, new ones first. Members see those of the work and reservations of their teams."""
        query = self.validated_query(AlertQuery)
        given = {name: query[name] for name in ("kind", "pool", "state") if name in query}
        if "pool" in given:
            visible_pool(self.actor, given["pool"])
        rows = reads.alerts(self.actor, **given)
        return self.list_response(
            rows, AlertShape, query, lambda page: [reads.alert_row(row) for row in page]
        )


class AlertDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="alerts_read", responses=AlertShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Return one alert."""
        return _response(self, _visible_alert(self, id))


class AcknowledgeAlertView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="alerts_acknowledge", request=shapes.ReasonWish, responses=AlertShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Record that an operator has seen an alert. 409 if it has ended. For operators."""
        alert = _visible_alert(self, id)
        given = self.validated_body(shapes.ReasonWish)
        return _response(self, verbs.acknowledge_alert(**self.service_context, alert=alert, **given))


class SnoozeAlertView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="alerts_snooze", request=SnoozeWish, responses=AlertShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Silence an alert for some minutes. 409 if it has ended. For operators."""
        alert = _visible_alert(self, id)
        given = self.validated_body(SnoozeWish)
        return _response(self, verbs.snooze_alert(**self.service_context, alert=alert, **given))


class AlertRuleListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="alert_rules_list", responses=AlertRuleShape(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List the alert rules of a pool with their defaults."""
        rows = reads.pool_alert_rules(_pool(self, slug))
        return Response(AlertRuleShape(rows, many=True).data)


class AlertRuleDetailView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="alert_rules_set", request=AlertRuleWish, responses=AlertRuleShape)
    def put(self, request: Request, slug: str, kind: str) -> Response:
        """Change an alert rule of a pool; absent fields keep their values. For operators."""
        pool = _pool(self, slug)
        verbs.set_alert_rule(
            **self.service_context, pool=pool, kind=kind, **self.validated_body(AlertRuleWish)
        )
        return self.object_response(_rule(pool, kind), AlertRuleShape)


class ResetAlertRuleView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="alert_rules_reset", request=shapes.ReasonWish, responses=AlertRuleShape)
    def post(self, request: Request, slug: str, kind: str) -> Response:
        """Restore the default of an alert rule of a pool. 409 if the rule is the default. For operators."""
        pool = _pool(self, slug)
        verbs.reset_alert_rule(
            **self.service_context, pool=pool, kind=kind, **self.validated_body(shapes.ReasonWish)
        )
        return self.object_response(_rule(pool, kind), AlertRuleShape)


def _visible_alert(view: ApiView, public_id: UUID) -> Alert:
    return get_visible_or_404(reads.alerts(view.actor, state="all"), public_id=public_id)


def _pool(view: ApiView, slug: str) -> Pool:
    return get_visible_or_404(policy.visible_pools(view.actor), slug=slug)


def _rule(pool: Pool, kind: str) -> reads.PoolAlertRule:
    return next(row for row in reads.pool_alert_rules(pool) if row.kind == kind)


def _response(view: ApiView, alert: Alert) -> Response:
    return view.object_response(reads.alert_row(alert), AlertShape)
