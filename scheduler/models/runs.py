"""Define runs of workloads on hosts, and the GPU slots that they hold."""

from __future__ import annotations

import uuid

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import BigIntegerRangeField, DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import Q

from scheduler.models.hosts import Host, Unit
from scheduler.models.reservations import Reservation
from scheduler.models.teams import Project
from scheduler.models.workloads import Workload
from scheduler.state import states


class Run(models.Model):
    """The part of a workload's attempt that runs on one host.

    ``generation`` grows with every run. An agent starts a run only if its generation is higher than that of
    every earlier run on the same units.
    """

    workload = models.ForeignKey(Workload, on_delete=models.PROTECT, related_name="runs")
    attempt = models.PositiveIntegerField()
    rank = models.PositiveSmallIntegerField(default=0)
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="runs")
    generation = models.BigIntegerField()
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    state = models.CharField(
        max_length=10, choices=states.state_choices(states.RunState), default=states.RunState.PLACED
    )
    placed_at = models.DateTimeField()
    prepared_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="time at which this member of a gang was ready and began to wait for the others",
    )
    starting_at = models.DateTimeField(null=True, blank=True)
    running_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(
        null=True, blank=True, help_text="time at which the notebook first answered"
    )
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=30, default="", blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    gpu_events = models.JSONField(
        default=list,
        blank=True,
        help_text="hardware events of its GPUs that explain its failure, such as xid:79",
    )
    grace_seconds = models.PositiveIntegerField(
        default=30,
        help_text="grace period of the pool at the time of placement; the shim uses this value",
    )
    checkpoint_at = models.DateTimeField(null=True, blank=True)
    checkpoint_told = models.DateTimeField(
        null=True, blank=True, help_text="checkpoint_at by the clock of the host, to detect a new checkpoint"
    )
    saved = models.BooleanField(
        default=False, help_text="True: it has acknowledged a checkpoint since its notice"
    )
    step = models.CharField(
        max_length=200, default="", blank=True, help_text="the last step that the agent reported"
    )
    missing_since = models.DateTimeField(
        null=True, blank=True, help_text="time since which its agent does not report it"
    )
    cpu_seconds = models.FloatField(
        null=True, blank=True, help_text="CPU time of all its processes; empty: not measured"
    )
    memory_peak_mib = models.PositiveIntegerField(
        null=True, blank=True, help_text="peak of its memory on the host; empty: not measured"
    )
    activity = models.JSONField(
        default=dict,
        blank=True,
        help_text="activity of a notebook: busy kernels, connections, time of the last activity",
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["workload", "attempt", "rank"], name="one_run_per_attempt_and_rank"
            ),
            models.UniqueConstraint(fields=["host", "generation"], name="a_generation_is_used_once_per_host"),
        ]
        indexes = [
            models.Index(fields=["host"], condition=~Q(state="ended"), name="runs_of_a_host_not_ended")
        ]


class Allocation(models.Model):
    """The slots that a run holds during ``period``, from the start of the run to its end.

    The period has no end until the agent confirms that the run has stopped.
    """

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="allocations")
    workload = models.ForeignKey(Workload, on_delete=models.PROTECT, related_name="allocations")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    unit = models.ForeignKey(Unit, on_delete=models.PROTECT, related_name="allocations")
    reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.PROTECT, related_name="allocations"
    )
    slots = BigIntegerRangeField()
    period = DateTimeRangeField()
    borrowed = models.BooleanField(default=False)
    end_code = models.CharField(
        max_length=30,
        default="",
        blank=True,
        help_text="reason of the stop or the end, which decides how its time is charged",
    )

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="a_slot_is_held_once_at_any_instant",
                expressions=[("slots", RangeOperators.OVERLAPS), ("period", RangeOperators.OVERLAPS)],
            )
        ]
        indexes = [
            models.Index(fields=["workload"]),
            models.Index(
                fields=["unit"], condition=Q(period__upper_inf=True), name="open_allocations_of_a_unit"
            ),
        ]
