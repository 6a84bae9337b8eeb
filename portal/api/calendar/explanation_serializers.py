"""Define the serializers of explanations: reasons of waits, comparisons, fair shares, alternative windows."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.api.base.fields import ResponseSerializer, numbers_field
from portal.api.calendar.serializers import ReservationWish, WindowShape
from portal.api.work.preview_serializers import PastStartsShape
from portal.api.work.workload_serializers import BlockerShape
from portal.reads.work.wait_explanation import AlternativeWindow, WorkloadAhead
from portal.wording import expected_start_texts, queue_order_texts, reason_texts
from scheduler.requests import HardwareRequest
from scheduler.state.states import WorkloadState


class AheadShape(ResponseSerializer):
    id = serializers.UUIDField(source="workload.public_id")
    name = serializers.CharField(source="workload.name")
    owner = serializers.CharField(source="workload.owner.username")
    rule = serializers.CharField(
        source="part", help_text="the rule of the queue order that puts it before this workload"
    )
    because = serializers.SerializerMethodField()

    def get_because(self, row: WorkloadAhead) -> str:
        """Return, in a few words, why this workload is earlier in the queue."""
        return queue_order_texts.earlier_because(row.part, row.earlier, row.shorter)


class WithoutShape(ResponseSerializer):
    starts_now = serializers.BooleanField()
    code = serializers.CharField()
    numbers = numbers_field()
    sentence = serializers.CharField()


class WhyThemShape(ResponseSerializer):
    rule = serializers.CharField(
        help_text="the rule of the queue order that decides which of the two comes first"
    )
    numbers = numbers_field()
    sentence = serializers.CharField()
    without = WithoutShape(help_text="the planner's decision if the other workload did not exist")


class FairnessShape(ResponseSerializer):
    """The use and the fair share of one team in a pool."""

    team = serializers.CharField(source="team.slug")
    guaranteed_gpus = serializers.FloatField(source="guaranteed")
    held_gpus = serializers.FloatField(source="held")
    borrowed_gpus = serializers.FloatField(source="borrowed")
    waiting_gpus = serializers.FloatField(source="waiting")
    past_gpu_hours = serializers.FloatField(
        source="gpu_hours",
        help_text="past use in GPU-hours; an hour counts half after each half-life of the pool",
    )
    weight = serializers.IntegerField()
    share_of_use = serializers.FloatField(source="share", help_text="its share of all past use, 0 to 1")
    fair_part = serializers.FloatField(source="fair_share", help_text="its fair share by weight, 0 to 1")
    ratio = serializers.FloatField(
        allow_null=True, help_text="share of use divided by fair share; the lowest borrows next"
    )


class DecisionShape(ResponseSerializer):
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(choices=["placed", "evicted", "refused", "restarted", "ended", "moved"])
    code = serializers.CharField()
    sentence = serializers.SerializerMethodField()

    def get_sentence(self, row: Any) -> str:
        """Return a sentence that describes the decision."""
        return reason_texts.decision_sentence(row.kind, row.code, row.numbers, self.context.get("user"))


class WhyShape(ResponseSerializer):
    state = serializers.ChoiceField(choices=[s.value for s in WorkloadState])
    code = serializers.CharField()
    numbers = numbers_field()
    sentence = serializers.CharField()
    reservation_problem = serializers.CharField(
        help_text="why its reservation can't be served now; empty: it can, or there is no reservation"
    )
    position = serializers.IntegerField(allow_null=True)
    expected_start = serializers.DateTimeField(allow_null=True)
    likely_from = serializers.DateTimeField(allow_null=True, help_text="null with too few past starts")
    likely_by = serializers.DateTimeField(
        allow_null=True, help_text="the upper end of the range; never a guarantee"
    )
    past_starts = PastStartsShape(help_text="accuracy of the expected starts of its pool")
    ahead = AheadShape(
        many=True,
        help_text="visible waiting workloads ahead of it; the nearest 10",
    )
    ahead_more = serializers.IntegerField(help_text="number of other workloads ahead of it")
    blockers = BlockerShape(many=True, help_text="visible workloads that block it")
    hidden_blockers = serializers.IntegerField(help_text="number of blockers that you may not see")
    decisions = DecisionShape(many=True, help_text="newest first, at most 20")


class AnotherTimeShape(WindowShape):
    """A window in which a reservation would fit now, within the team's guarantee."""

    words = serializers.CharField()
    needs_approval = serializers.BooleanField(help_text="larger than the pool's threshold for approval")
    request = ReservationWish(help_text="a body for reservations_request")  # type: ignore[assignment]


def reservation_window_body(other: AlternativeWindow) -> dict[str, Any]:
    """Return an alternative window as a dict for ``AnotherTimeShape``."""
    workload = other.workload
    request = {
        "project": f"{workload.project.team.slug}/{workload.project.slug}",
        "pool": workload.pool.slug,
        "name": workload.name,
        **HardwareRequest.from_row(workload).hardware_arguments(),
        "start": other.start,
        "end": other.end,
    }
    words = expected_start_texts.alternative_window_text(
        workload, other.start, other.end, other.needs_approval
    )
    window = {"start": other.start, "end": other.end}
    return {**window, "words": words, "needs_approval": other.needs_approval, "request": request}
