"""Fields that several shapes have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

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


# What stands for a row wherever the engine, a verb or a record says it by a number.
ROW_REFERENCES = frozenset(
    {
        "team",
        "for_team",
        "owner",
        "user",
        "author",
        "project",
        "pool",
        "workload",
        "for_workload",
        "evicted_by",
        "blockers",
        "reservation",
        "for_reservation",
        "series",
        "submission",
        "array",
        "host",
        "run",
        "template",
    }
)


def public_numbers(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """A reason's numbers without those that stand for rows: they name nothing to anybody outside, and may be others' work. What
    the reader may know of them is in the sentence, by name."""
    return {
        name: value
        for name, value in numbers.items()
        if name not in ROW_REFERENCES or not _is_row_reference(value)
    }


def _is_row_reference(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_row_reference, value))
    return isinstance(value, int) and not isinstance(value, bool)


class NumbersField(serializers.DictField):
    """A reason's numbers: names and JSON values."""

    def to_representation(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """As they go out."""
        shown: dict[str, Any] = super().to_representation(public_numbers(value))
        return shown


class RecordField(NumbersField):
    """What was submitted or changed: names and JSON values, rows by their names where they have one here."""


JsonObject = dict[str, Any]
