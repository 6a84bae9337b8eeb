"""Define the decisions of the engine, the expected starts of workloads, and the recorded snapshots."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from scheduler.models.pools import Pool
from scheduler.models.reservations import Reservation
from scheduler.models.workloads import Workload


class Decision(models.Model):
    """A decision of the engine about one workload. A repeated refusal with the same code is not recorded."""

    class DecisionKind(models.TextChoices):
        PLACED = "placed"
        EVICTED = "evicted"
        REFUSED = "refused"
        RESTARTED = "restarted"  # a member of the gang ended, and the whole gang is requeued
        ENDED = "ended"  # a member of the gang ended, so the whole gang ended

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="decisions")
    kind = models.CharField(max_length=10, choices=DecisionKind.choices)
    code = models.CharField(max_length=40)
    numbers = models.JSONField(default=dict)
    for_workload = models.ForeignKey(
        Workload, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    for_reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    epoch = models.BigIntegerField()
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["workload", "-at"]), models.Index(fields=["-at"])]


class StartEstimate(models.Model):
    """The first expected start of a workload during one wait in the queue, and the outcome of the wait.

    The portal shows an expected start as a range of times, which is computed from these rows.
    """

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="start_estimates")
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="+")
    attempt = models.PositiveIntegerField(help_text="number of placements before this wait")
    told_at = models.DateTimeField()
    expected_start = models.DateTimeField()
    latest = models.DateTimeField(
        null=True, blank=True, help_text="upper end of the announced range; empty: none was announced"
    )
    over_at = models.DateTimeField(
        null=True, blank=True, help_text="time at which it was placed or left the queue"
    )
    started = models.BooleanField(default=False, help_text="True: it was placed")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["workload", "attempt"], name="one_estimate_per_wait")]
        indexes = [
            models.Index(fields=["pool", "-over_at"]),
            models.Index(
                fields=["expected_start"], condition=Q(over_at=None), name="estimates_of_those_who_wait"
            ),
        ]


class RecordingPart(models.Model):
    """The content of one table of a recorded snapshot: its compressed canonical text.

    ``digest`` is the SHA-256 of the text. Recordings with equal tables share one row.
    """

    digest = models.CharField(primary_key=True, max_length=64)
    body = models.BinaryField()
    used_at = models.DateTimeField(
        db_index=True, help_text="approximate time of the last recording that refers to it"
    )


class Recording(models.Model):
    """The full input of a cycle that changed something.

    ``export_snapshot`` writes a recording to a file. ``replay_snapshot`` runs the planner on it again.
    """

    at = models.DateTimeField(db_index=True)
    planned_at = models.BigIntegerField(help_text="time of the plan, in whole seconds since the epoch")
    epoch = models.BigIntegerField()
    parts = models.JSONField(help_text="digest of the part of each table")
    plan_sha256 = models.CharField(max_length=64, help_text="SHA-256 of the plan's canonical text")
    placed = models.PositiveIntegerField()
    evicted = models.PositiveIntegerField()
    refused = models.PositiveIntegerField()
    size_bytes = models.PositiveBigIntegerField(
        default=0, help_text="bytes of the parts that it stored first, compressed"
    )
