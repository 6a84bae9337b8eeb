"""Define the serializers of removals and moves.

A request contains the reason; a preview's response contains the effect.
"""

from __future__ import annotations

from rest_framework import serializers

from portal.api.base.fields import ResponseSerializer, numbers_field
from portal.api.base.serializers import StrictSerializer
from portal.wording.removal_texts import REMOVAL_VERBS
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Quota


class RemovalWish(StrictSerializer):
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class RemovalReservationShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    team = serializers.CharField(source="project.team.slug")
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()


class RemovalQuotaShape(ResponseSerializer):
    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.slug")
    model = serializers.CharField()
    guaranteed_gpus = serializers.SerializerMethodField()

    def get_guaranteed_gpus(self, quota: Quota) -> float:
        """Return the guarantee of the quota, in GPUs."""
        return quota.guaranteed_slots / SLOTS_PER_GPU


class RemovalRequestShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    kind = serializers.CharField()
    team = serializers.CharField(source="team.slug")
    author = serializers.CharField(source="author.username")


class RemovalEffectShape(ResponseSerializer):
    verb = serializers.ChoiceField(choices=list(REMOVAL_VERBS))
    name = serializers.CharField(help_text="name of the removed or moved object")
    text = serializers.CharField(help_text="the effect of the verb, as text")
    refused = serializers.CharField(help_text="why the verb would be rejected now; empty: it would succeed")
    code = serializers.CharField(help_text="reason code of the rejection; empty: none")
    numbers = numbers_field()
    gpus = serializers.IntegerField(help_text="GPUs that leave the pool")
    reservations = RemovalReservationShape(
        many=True, help_text="active reservations on the host's GPUs; they get other GPUs"
    )
    unkept = RemovalReservationShape(
        many=True, help_text="reservations that the pool cannot serve without the host"
    )
    quotas = RemovalQuotaShape(
        many=True, help_text="quotas that end; for a move: quotas of both pools, which stay"
    )
    members = serializers.ListField(
        child=serializers.CharField(), help_text="members, who lose their membership"
    )
    projects = serializers.ListField(child=serializers.CharField(), help_text="projects that close")
    requests = RemovalRequestShape(
        many=True, source="submissions", help_text="requests that wait for approval; they are withdrawn"
    )


class RemovedShape(ResponseSerializer):
    name = serializers.CharField()
    said = serializers.CharField(help_text="the result, as a sentence")
