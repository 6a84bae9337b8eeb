"""Define studies of the number of GPUs that a pool needs."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from scheduler.models import Pool


class CapacityStudy(models.Model):
    """One replay of the demand of a pool with several numbers of GPUs. A background task runs it.

    ``inputs`` is the frozen demand (compressed JSON); the results can be computed again from it.
    """

    class StudyState(models.TextChoices):
        WAITING = "waiting"
        RUNNING = "running"
        DONE = "done"
        CUT_SHORT = "cut_short", "stopped at its time limit; sizes are missing"
        EMPTY = "empty", "the period has no request that started"
        FAILED = "failed"

    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    model = models.CharField(max_length=80, blank=True, help_text="only this model; empty: each model")
    wait_limit_seconds = models.PositiveIntegerField(help_text="p95 wait that the pool should keep")
    start = models.DateTimeField(help_text="start of the replayed time")
    end = models.DateTimeField()
    state = models.CharField(max_length=10, choices=StudyState.choices, default=StudyState.WAITING)
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField()
    active_at = models.DateTimeField(null=True, help_text="last sign of life of the task")
    ended_at = models.DateTimeField(null=True)
    progress = models.FloatField(default=0, help_text="done part of the work, 0 to 1")
    inputs = models.BinaryField(null=True, help_text="frozen demand; empty: the task has not begun")
    facts = models.JSONField(default=dict, help_text="counts of the frozen demand, and what was left out")
    sizes = models.JSONField(default=list, help_text="figures of each replayed size")
    recorded = models.JSONField(default=dict, help_text="waits that there were, by model")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(end__gt=F("start")), name="a_capacity_study_has_a_period")
        ]
        indexes = [
            models.Index(
                fields=["created_at"],
                condition=Q(state__in=("waiting", "running")),
                name="capacity_studies_to_run",
            )
        ]


CAPACITY_STUDY_TRANSITIONS: dict[str, frozenset[str]] = {
    CapacityStudy.StudyState.WAITING: frozenset({CapacityStudy.StudyState.RUNNING}),
    CapacityStudy.StudyState.RUNNING: frozenset(
        {
            CapacityStudy.StudyState.DONE,
            CapacityStudy.StudyState.CUT_SHORT,
            CapacityStudy.StudyState.EMPTY,
            CapacityStudy.StudyState.FAILED,
        }
    ),
    CapacityStudy.StudyState.DONE: frozenset(),
    CapacityStudy.StudyState.CUT_SHORT: frozenset(),
    CapacityStudy.StudyState.EMPTY: frozenset(),
    CapacityStudy.StudyState.FAILED: frozenset(),
}
