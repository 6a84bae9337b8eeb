"""Define reservations, their series, and the units bound to them."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import (
    ArrayField,
    BigIntegerRangeField,
    DateTimeRangeField,
    RangeOperators,
)
from django.db import models
from django.db.models import F, Q

from scheduler.models.hardware_columns import HardwareColumns
from scheduler.models.hosts import Unit
from scheduler.models.pools import Pool
from scheduler.models.teams import Project
from scheduler.state import states


class Series(models.Model):
    """A recurring reservation. Its occurrences are Reservations that refer to this row.

    Either all occurrences are confirmed together, or none.
    """

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=80)
    weekdays = ArrayField(models.PositiveSmallIntegerField(), help_text="0 is Monday")
    starts_at = models.TimeField(help_text="local time in its time zone")
    ends_at = models.TimeField(help_text="local time; if it is not after the start, it is on the next day")
    time_zone = models.CharField(max_length=60)
    first_day = models.DateField()
    last_day = models.DateField()
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class Reservation(HardwareColumns):
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="reservations")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="reservations")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="reservations")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=80)
    series = models.ForeignKey(
        Series,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="occurrences",
        help_text="series of a recurring reservation",
    )
    start = models.DateTimeField()
    end = models.DateTimeField()
    state = models.CharField(
        max_length=10,
        choices=states.state_choices(states.ReservationState),
        default=states.ReservationState.CONFIRMED,
    )
    may_exceed_guarantee = models.BooleanField(default=False)
    first_used_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(
        null=True, blank=True, help_text="time at which it ended, was released or was cancelled"
    )
    reason_code = models.CharField(
        max_length=40,
        default="",
        blank=True,
        help_text="reason why it started without units; empty if it has units",
    )
    reason_numbers = models.JSONField(default=dict, blank=True)
    reason_at = models.DateTimeField(null=True, blank=True, help_text="time since which it has this reason")
    at_risk_since = models.DateTimeField(
        null=True,
        blank=True,
        help_text="time since which no units can serve it until its end; null: some can",
    )
    at_risk_numbers = models.JSONField(
        default=dict, blank=True, help_text="numbers of the reason reservation_at_risk; empty: not at risk"
    )
    moved_at = models.DateTimeField(
        null=True, blank=True, help_text="time at which it last released unusable GPUs"
    )
    moved_from = models.CharField(
        max_length=200, default="", blank=True, help_text="hosts of the GPUs that it released"
    )
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(end__gt=F("start")), name="a_reservation_ends_after_its_start")
        ]
        indexes = [models.Index(fields=["pool", "end"])]


class BoundUnit(models.Model):
    """A unit bound to an active reservation. No two reservations bind the same slots at the same time."""

    reservation = models.ForeignKey(Reservation, on_delete=models.PROTECT, related_name="bound_units")
    unit = models.ForeignKey(Unit, on_delete=models.PROTECT)
    slots = BigIntegerRangeField()
    period = DateTimeRangeField()

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="a_slot_is_bound_to_one_reservation",
                expressions=[("slots", RangeOperators.OVERLAPS), ("period", RangeOperators.OVERLAPS)],
            )
        ]
