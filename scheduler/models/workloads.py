"""Define workloads, job arrays and dependencies."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from scheduler.core.model.snapshot import Priority
from scheduler.models.encrypted_fields import EncryptedJSONField
from scheduler.models.hardware_columns import HardwareColumns
from scheduler.models.hosts import Storage
from scheduler.models.pools import Pool
from scheduler.models.reservations import Reservation
from scheduler.models.teams import PRIORITIES, Project
from scheduler.state import states


class WorkloadKind(models.TextChoices):
    NOTEBOOK = "notebook"
    JOB = "job"


class WorkloadType(models.TextChoices):
    TRAINING = "training"
    INFERENCE = "inference"
    INTERACTIVE = "interactive"
    OTHER = "other"


class IfMemberEnds(models.TextChoices):
    """The rule for a gang (a job on several hosts) whose run on one host fails or is lost."""

    RESTART = "restart", "restart all members, up to the retry limit"
    END = "end", "end all members"


class JobArray(models.Model):
    """One submission of many jobs that differ only in their index.

    The jobs of an array are called tasks. Each task is a Workload that refers to the array.
    """

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=80)
    indices = models.CharField(max_length=200, help_text="as requested, such as 0-9 or 1,3,5-9:2")
    most_at_once = models.PositiveIntegerField(
        null=True, blank=True, help_text="number of tasks that may run at once; empty: all"
    )
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class Workload(HardwareColumns):
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=10, choices=WorkloadKind.choices)
    type = models.CharField(max_length=12, choices=WorkloadType.choices)
    name = models.CharField(max_length=80)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="workloads")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="workloads")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="workloads")
    reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.PROTECT, related_name="workloads"
    )
    array = models.ForeignKey(
        JobArray,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="tasks",
        help_text="array of this task; empty: not a task",
    )
    array_index = models.PositiveIntegerField(null=True, blank=True)
    held_back = models.BooleanField(
        default=False, help_text="task that waits for the array's limit of running tasks"
    )
    waits_for = ArrayField(
        models.BigIntegerField(),
        default=list,
        blank=True,
        help_text="number of workloads whose end it waits for",
    )
    waits_for_arrays = ArrayField(
        models.BigIntegerField(),
        default=list,
        blank=True,
        help_text="number of arrays whose end it waits for",
    )
    wanted_by = models.DateTimeField(null=True, blank=True, help_text="deadline; informative only")
    command = models.TextField(
        default="", blank=True, help_text="a job's shell command; empty for a notebook"
    )
    environment = EncryptedJSONField(default=dict, blank=True)
    unix_identity = models.JSONField(
        null=True,
        blank=True,
        help_text="Unix identity of its owner at its submission; empty: its team's user",
    )
    priority = models.PositiveSmallIntegerField(choices=PRIORITIES, default=int(Priority.NORMAL))
    preemptible = models.BooleanField(default=False)
    max_runtime_seconds = models.PositiveIntegerField()
    predicted_seconds = models.PositiveIntegerField(
        help_text="fixed at submission, never above max_runtime_seconds"
    )
    most_retries = models.PositiveSmallIntegerField(default=0)
    if_member_ends = models.CharField(
        max_length=7,
        choices=IfMemberEnds.choices,
        default=IfMemberEnds.RESTART,
        help_text="rule for failures of a job on several hosts",
    )
    state = models.CharField(
        max_length=10, choices=states.state_choices(states.WorkloadState), default=states.WorkloadState.QUEUED
    )
    attempt = models.PositiveIntegerField(default=0, help_text="number of its placements")
    submitted_at = models.DateTimeField()
    queued_at = models.DateTimeField(help_text="start of its last wait")
    not_before = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True, help_text="start of its first run")
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=30, default="", blank=True, help_text="reason code after its end")
    outcome_numbers = models.JSONField(default=dict, blank=True)
    reason_code = models.CharField(
        max_length=40, default="", blank=True, help_text="reason why it waits or started"
    )
    reason_numbers = models.JSONField(default=dict, blank=True)
    position = models.PositiveIntegerField(null=True, blank=True)
    expected_start = models.DateTimeField(null=True, blank=True)
    blockers = ArrayField(models.BigIntegerField(), default=list, blank=True)
    borrowed_slots = models.PositiveIntegerField(default=0)
    evicted_by = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    evicted_for_workload = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    evicted_for_reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    earmarked_units = ArrayField(
        models.BigIntegerField(),
        default=list,
        blank=True,
        help_text="units from which others are evicted for it",
    )
    room_made_by_own_team = models.BooleanField(
        null=True,
        blank=True,
        help_text="whether all work evicted for it is of its own team; empty if none was evicted",
    )
    checkpoint_at = models.DateTimeField(null=True, blank=True)
    homes = models.ForeignKey(
        Storage,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="home folder of its last checkpoint",
    )
    avoids = ArrayField(
        models.BigIntegerField(),
        default=list,
        blank=True,
        help_text="hosts on which it could not start; others are preferred",
    )
    avoids_until = models.DateTimeField(null=True, blank=True)
    stop_requested = models.CharField(
        max_length=30, default="", blank=True, help_text="reason code of a requested stop"
    )
    gone_by = models.DateTimeField(
        null=True, blank=True, help_text="time at which the last evicted workload ends at the latest"
    )
    failures = models.PositiveSmallIntegerField(
        default=0, help_text="attempts that failed by their own fault"
    )
    lost_attempts = models.PositiveSmallIntegerField(
        default=0, help_text="attempts that failed because of a host, a GPU or a start"
    )
    idle_warned_at = models.DateTimeField(null=True, blank=True)
    keep_until = models.DateTimeField(
        null=True, blank=True, help_text="not stopped as idle before this time, as its owner requested"
    )
    simulated = models.BooleanField(default=False, help_text="part of the simulated history; never ran")

    class Meta:
        indexes = [
            models.Index(fields=["pool", "state"]),
            models.Index(fields=["state"], condition=~Q(state="ended"), name="workloads_not_ended"),
            models.Index(fields=["array"], condition=Q(held_back=True), name="tasks_held_back"),
            models.Index(fields=["owner", "-submitted_at"]),
            models.Index(fields=["project", "-submitted_at"]),
        ]

    def __str__(self) -> str:
        return self.name


class Dependency(models.Model):
    """A condition on an earlier workload or array that must end before ``workload`` may start.

    Dependencies are set only at submission. An array meets ``ok`` if all its tasks finished. It meets
    ``not_ok`` if all its tasks ended and at least one of them did not finish.
    """

    class Condition(models.TextChoices):
        OK = "ok", "finished"
        ANY = "any", "ended"
        NOT_OK = "not_ok", "ended without success"

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="dependencies")
    on = models.ForeignKey(
        Workload, null=True, blank=True, on_delete=models.CASCADE, related_name="dependents"
    )
    on_array = models.ForeignKey(
        JobArray, null=True, blank=True, on_delete=models.CASCADE, related_name="dependents"
    )
    condition = models.CharField(max_length=6, choices=Condition.choices, default=Condition.OK)
    settled_at = models.DateTimeField(
        null=True, blank=True, help_text="time at which the dependency was met or became impossible"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workload", "on"], name="a_workload_waits_for_another_once"),
            models.UniqueConstraint(
                fields=["workload", "on_array"], name="a_workload_waits_for_an_array_once"
            ),
            models.CheckConstraint(
                condition=Q(workload__gt=F("on")), name="a_workload_waits_for_earlier_ones"
            ),
            models.CheckConstraint(
                condition=Q(on__isnull=True) ^ Q(on_array__isnull=True),
                name="a_dependency_is_on_a_workload_or_on_an_array",
            ),
        ]
        indexes = [
            models.Index(fields=["on"], condition=Q(settled_at=None), name="dependencies_not_settled"),
            models.Index(fields=["on_array"], condition=Q(settled_at=None), name="waiting_for_arrays"),
        ]
