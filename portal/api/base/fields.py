"""Fields that several shapes have."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.api.base.views import NumbersField
from scheduler.core.model.slots import SLOTS_PER_GPU

MAX_INT = 2**31 - 1
ResponseSerializer = serializers.Serializer[Any]


def count_field(low: int = 0, **more: Any) -> serializers.IntegerField:
    """A whole number; its real upper limit is the pool's and is said by the service."""
    return serializers.IntegerField(min_value=low, max_value=MAX_INT, **more)


def name_field(**more: Any) -> serializers.CharField:
    """A name as people type it."""
    return serializers.CharField(max_length=80, **more)


def slug_field(**more: Any) -> serializers.CharField:
    """The word by which a thing stands in addresses."""
    return serializers.CharField(max_length=81, **more)


def numbers_field() -> NumbersField:
    """A reason's numbers: names and JSON values."""
    return NumbersField(child=serializers.JSONField(allow_null=True))


def gpus_of_slots(slots: int | None) -> float | None:
    """Slots as GPUs."""
    return None if slots is None else round(slots / SLOTS_PER_GPU, 4)
