"""The columns of samples and the types of their values."""

from __future__ import annotations

from typing import Any

from django.db.models import BigIntegerField, Field, FloatField, IntegerField

from telemetry.models import Sample

REAL, INTEGER, BIGINT = ">f4", ">i4", ">i8"  # the types in PostgreSQL's binary form
UNKNOWN = -1  # an unknown integer; an unknown real number is NaN


def _kind(field: Field[Any, Any]) -> str:
    if isinstance(field, FloatField):
        return REAL
    return BIGINT if isinstance(field, BigIntegerField) else INTEGER


# The type of each column except the unit and the time, in the order of the table.
COLUMN_KINDS: dict[str, str] = {
    field.attname: _kind(field)
    for field in Sample._meta.concrete_fields
    if isinstance(field, (IntegerField, FloatField))
}
