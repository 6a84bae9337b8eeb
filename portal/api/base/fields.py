"""Define the serializer fields that several folders of the API use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from scheduler.core.model.slots import SLOTS_PER_GPU

MAX_INT = 2**31 - 1
ResponseSerializer = serializers.Serializer[Any]


def count_field(low: int = 0, **more: Any) -> serializers.IntegerField:
    """Return a field for a whole number of at least ``low``.

    The field accepts every number that an integer column can store. The service checks narrower limits.
    """
    return serializers.IntegerField(min_value=low, max_value=MAX_INT, **more)


class CurrencyAmount(serializers.DecimalField):
    """An amount as a string with the decimals of its currency: "12", "12.00" or "12.000"."""

    def __init__(self, **more: Any) -> None:
        """Keep the decimals of the value."""
        super().__init__(max_digits=20, decimal_places=None, **more)


def name_field(**more: Any) -> serializers.CharField:
    """Return a field for a name."""
    return serializers.CharField(max_length=80, **more)


def slug_field(**more: Any) -> serializers.CharField:
    """Return a field for a slug, the name of an object in URLs."""
    return serializers.CharField(max_length=81, **more)


def numbers_field() -> NumbersField:
    """Return a field for the numbers of an engine's reason, as a dict of names and JSON values."""
    return NumbersField(child=serializers.JSONField(allow_null=True))


def gpus_of_slots(slots: int | None) -> float | None:
    """Convert slots to GPUs; None stays None."""
    return None if slots is None else round(slots / SLOTS_PER_GPU, 4)


# Keys of a reason's numbers. The value of each of these keys is a database row id.
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
    """Return a reason's numbers without database row ids.

    Clients cannot use row ids, and the user may not be allowed to see these rows. The reason's sentence names
    the rows that the user may see.
    """
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
    """The numbers of an engine's reason, as a dict of names and JSON values."""

    def to_representation(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the numbers without database row ids."""
        shown: dict[str, Any] = super().to_representation(public_numbers(value))
        return shown


class RecordField(NumbersField):
    """The values of a submitted or changed row, as a dict of names and JSON values without row ids."""


JsonObject = dict[str, Any]
