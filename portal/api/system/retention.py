"""Implement the endpoints of the retention of samples and rollups."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import ResponseSerializer
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.services.fleet import sample_retention as verbs
from telemetry.rollups.stored_bytes import LEVELS, present_retention, stored_levels


@extend_schema_field({"oneOf": [{"type": "integer"}, {"type": "string", "enum": [verbs.UNLIMITED]}]})
class DaysField(serializers.Field[Any, Any, Any, Any]):
    """A number of days. The service checks it, so that the page and the commands have the same messages."""

    def __init__(self, **more: Any) -> None:
        """Let the service see each value, also null."""
        super().__init__(required=False, allow_null=True, **more)

    def to_internal_value(self, data: Any) -> Any:
        """Return the value as it is."""
        return data


class RetentionDays(StrictSerializer):
    sample_days = DaysField(help_text="days of raw samples")
    minute_days = DaysField(help_text="days of minute rollups, more than sample_days")
    hour_days = DaysField(help_text='days of hour rollups; null or "unlimited": without limit')
    day_days = DaysField(help_text='days of day rollups; null or "unlimited": without limit')


class RetentionWish(RetentionDays):
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class StoredLevelShape(ResponseSerializer):
    level = serializers.ChoiceField(choices=list(LEVELS))
    days = serializers.IntegerField(allow_null=True, help_text="null: without limit")
    stored_bytes = serializers.IntegerField(source="stored")
    bytes_per_day = serializers.FloatField(
        source="daily", allow_null=True, help_text="mean since the first stored day; null: no data"
    )
    full_bytes = serializers.IntegerField(
        source="expected", allow_null=True, help_text="bytes of the whole retention; null: without limit"
    )


class RetentionShape(ResponseSerializer):
    sample_days = serializers.IntegerField()
    minute_days = serializers.IntegerField()
    hour_days = serializers.IntegerField(allow_null=True, help_text="null: without limit")
    day_days = serializers.IntegerField(allow_null=True, help_text="null: without limit")
    levels = StoredLevelShape(many=True)


class LevelChangeShape(ResponseSerializer):
    level = serializers.ChoiceField(choices=list(LEVELS), source="level.level")
    days = serializers.IntegerField(source="level.days", allow_null=True, help_text="null: without limit")
    days_after = serializers.IntegerField(allow_null=True)
    stored_bytes = serializers.IntegerField(source="level.stored")
    full_bytes = serializers.IntegerField(source="level.expected", allow_null=True)
    full_bytes_after = serializers.IntegerField(source="expected_after", allow_null=True)
    deletes = serializers.BooleanField(source="is_shorter", help_text="older data are deleted")


class RetentionView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="retention_read", responses=RetentionShape)
    def get(self, request: Request) -> Response:
        """Return how long samples and rollups are kept, with their bytes. For operators and auditors."""
        policy.require(self.actor, "retention.see")
        return _response(self)

    @extend_schema(operation_id="retention_set", request=RetentionWish, responses=RetentionShape)
    def put(self, request: Request) -> Response:
        """Set how long samples and rollups are kept; absent fields keep their values. For operators."""
        verbs.set_sample_retention(**self.service_context, **self.validated_body(RetentionWish))
        return _response(self)


class RetentionPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="retention_preview", request=RetentionDays, responses=LevelChangeShape(many=True)
    )
    def post(self, request: Request) -> Response:
        """Return the days and bytes of each level before and after a change, without it. For operators."""
        given = self.validated_body(RetentionDays)
        changes = verbs.preview_retention(actor=self.actor, now=self.now, **given)
        return Response(LevelChangeShape(changes, many=True).data)


def _response(view: ApiView) -> Response:
    kept = present_retention()
    answer = {field: getattr(kept, field) for _, field in LEVELS.values() if field is not None}
    return view.object_response({**answer, "levels": stored_levels(view.now)}, RetentionShape)
