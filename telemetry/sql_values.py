"""Exchange many values with PostgreSQL quickly: ids and numbers as parameters, and times as results.

The driver converts a list element by element in Python, and parses each time with a regular expression. These
functions are faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from django.db.models import BigIntegerField, Func
from django.db.models.expressions import RawSQL

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def array_text(values: Iterable[float | None]) -> str:
    """Return numbers as the text of an array, for a parameter such as ``%s::bigint[]``. None is NULL."""
    return "{" + ",".join(["NULL" if value is None else repr(value) for value in values]) + "}"


def time_array_text(moments: Iterable[datetime]) -> str:
    """Return times as the text of an array, for a parameter such as ``%s::timestamptz[]``."""
    return "{" + ",".join([f'"{moment.isoformat()}"' for moment in moments]) + "}"


def unnested(ids: Iterable[int]) -> RawSQL:
    """Return ids as a subquery, for a filter such as ``pk__in=unnested(ids)``."""
    return RawSQL("SELECT unnest(%s::bigint[])", [array_text(ids)])


class Microseconds(Func):
    """The SQL expression for a time in microseconds since the epoch. ``time_of`` converts its value."""

    template = "(extract(epoch FROM %(expressions)s) * 1000000)::bigint"
    arity = 1
    output_field = BigIntegerField()


def micros_of(moment: datetime) -> int:
    """Return a time in microseconds since the epoch."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def time_of(microseconds: int) -> datetime:
    """Return the time, in UTC, of microseconds since the epoch."""
    return _EPOCH + timedelta(microseconds=microseconds)


def time_or_none(microseconds: int | None) -> datetime | None:
    """Return the time of microseconds since the epoch; None for None."""
    return None if microseconds is None else time_of(microseconds)
