"""Define the serializers of previews."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.api.base.fields import CurrencyAmount, ResponseSerializer, numbers_field
from portal.wording import expected_start_texts
from scheduler.core.explain.start_ranges import EstimateAccuracy
from scheduler.core.what_if.alternatives import Alternative, ChangedField
from scheduler.requests import PRIORITY_NAMES


class AnotherWay(ResponseSerializer):
    """An alternative request for nearly the same hardware, which the planner suggests."""

    words = serializers.CharField()
    starts_now = serializers.BooleanField()
    expected_start = serializers.DateTimeField(allow_null=True)
    changed = serializers.ListField(child=serializers.ChoiceField(choices=[str(c) for c in ChangedField]))
    units = serializers.IntegerField(help_text="on each host")
    hosts = serializers.IntegerField()
    models = serializers.ListField(child=serializers.CharField())
    profile = serializers.CharField(allow_blank=True)
    max_runtime_seconds = serializers.IntegerField()
    preemptible = serializers.BooleanField()
    priority = serializers.ChoiceField(choices=list(PRIORITY_NAMES))


def alternative_body(other: Alternative) -> dict[str, Any]:
    """Return an alternative request as a dict for ``AnotherWay``."""
    start = other.expected_start
    return {
        "words": expected_start_texts.alternative_request_text(other),
        "starts_now": other.starts_now,
        "expected_start": None if start is None else datetime.fromtimestamp(start, UTC),
        "changed": [str(changed) for changed in other.changed],
        "units": other.ask.units,
        "hosts": other.ask.hosts,
        "models": list(other.ask.models),
        "profile": other.ask.profile,
        "max_runtime_seconds": other.max_runtime_seconds,
        "preemptible": other.preemptible,
        "priority": next(
            name for name, number in PRIORITY_NAMES.items() if int(number) == int(other.priority)
        ),
    }


class PastStartsShape(ResponseSerializer):
    """The accuracy of the expected starts of workloads in a pool."""

    counted = serializers.IntegerField(
        source="started_count", help_text="number of started workloads among the latest that waited"
    )
    median_error_seconds = serializers.IntegerField(allow_null=True, source="median_error")
    ranged = serializers.IntegerField(
        source="with_range", help_text="number of starts for which a range was shown"
    )
    in_time = serializers.IntegerField(
        source="started_in_range_count", help_text="number of starts within the shown range, or before it"
    )
    simulated = serializers.IntegerField(
        help_text="the part of ``counted`` that is simulated history of a demo"
    )
    sentence = serializers.SerializerMethodField()

    def get_sentence(self, past: EstimateAccuracy) -> str:
        """Return a sentence about the accuracy."""
        return expected_start_texts.forecast_accuracy_text(past)


class PreviewShape(ResponseSerializer):
    starts_now = serializers.BooleanField()
    code = serializers.CharField()
    numbers = numbers_field()
    sentence = serializers.CharField()
    expected_start = serializers.DateTimeField(allow_null=True)
    likely_from = serializers.SerializerMethodField(help_text="null with too few past starts")
    likely_by = serializers.SerializerMethodField(help_text="the upper end of the range; never a guarantee")
    sooner = serializers.SerializerMethodField(help_text="other requests that would start sooner")
    never_starts = serializers.SerializerMethodField(
        help_text="it could never start; it is rejected unless a larger quota would let it start"
    )
    may_be_granted = serializers.SerializerMethodField(
        help_text="it starts only after a larger quota of its team"
    )
    gpus = serializers.FloatField()
    price_per_hour = CurrencyAmount(allow_null=True)
    longest_cost = CurrencyAmount(allow_null=True)
    price_factor = serializers.DecimalField(
        max_digits=14, decimal_places=8, help_text="factor of its priority and type, included in both prices"
    )
    currency = serializers.CharField()
    wish = serializers.CharField(help_text="a warning if it would end after wanted_by; otherwise empty")
    warnings = serializers.ListField(child=serializers.CharField(), help_text="warnings that block nothing")

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_likely_from(self, answer: dict[str, Any]) -> datetime | None:
        """Return the start of the range in which the workload likely starts.

        Return None if too few past starts are known for a range.
        """
        return answer["likely"][0] if answer["likely"] else None

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_likely_by(self, answer: dict[str, Any]) -> datetime | None:
        """Return the end of the range in which the workload likely starts.

        Return None if too few past starts are known for a range.
        """
        return answer["likely"][1] if answer["likely"] else None

    def get_never_starts(self, answer: dict[str, Any]) -> bool:
        """Return True if the requested workload could never start."""
        return answer["never"] is not None

    def get_may_be_granted(self, answer: dict[str, Any]) -> bool:
        """Return True if the workload could start only after its team gets a larger quota.

        Such a workload may be queued nevertheless.
        """
        return answer["never"] is not None and answer["never"].may_be_granted

    @extend_schema_field(AnotherWay(many=True))
    def get_sooner(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the requests that would start sooner, as the planner found them."""
        return list(AnotherWay([alternative_body(other) for other in answer["sooner"]], many=True).data)
