"""What exists, who may hold it and who holds it. Rows only: no rule lives here.

GPU slots are numbered across the whole fleet: GPU ``g`` owns ``[g * 840, (g + 1) * 840)``. So one exclusion constraint over
(slots, period) keeps a slot from being held twice, without any extension.
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, BigIntegerRangeField, DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import F, Q

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR, SLOTS_PER_GPU
from scheduler.core.model.snapshot import PoolKind, Priority
from scheduler.state import states
from scheduler.state.isolation import Isolation


class WorkloadKind(models.TextChoices):
    NOTEBOOK = "notebook"
    JOB = "job"


class WorkloadType(models.TextChoices):
    TRAINING = "training"
    INFERENCE = "inference"
    INTERACTIVE = "interactive"
    OTHER = "other"


class StrayAction(models.TextChoices):
    """What is done about a process on a GPU that no workload there holds. Operators are told of it in any case."""

    REPORT = "report", "show it"
    WARN = "warn", "show it, and tell the person it belongs to"
    END = "end", "show it, and end it when it is surely neither ours nor the system's"


class DiagnosticTool(models.TextChoices):
    """What every host knows. A pool may also choose a name that its hosts give to a diagnostic of their operator's."""

    AUTO = "auto", "DCGM where the host has it, else our own"
    OWN = "own", "our own"
    DCGM = "dcgm", "DCGM"


PRIORITIES = [(int(p), p.name.lower()) for p in Priority]


class IfMemberEnds(models.TextChoices):
    """What becomes of a job on several hosts when its part on one of them fails or is lost."""

    RESTART = "restart", "all of it starts again, as often as it may be retried"
    END = "end", "all of it ends"


class Team(models.Model):
    slug = models.SlugField(unique=True, max_length=40)
    name = models.CharField(unique=True, max_length=80)
    tag = models.CharField(max_length=3, help_text="two or three letters beside its colour")
    colour = models.PositiveSmallIntegerField(default=1, help_text="1 to 8, of the palette")
    weight = models.PositiveIntegerField(default=1, help_text="its part in fair share")
    highest_priority = models.PositiveSmallIntegerField(choices=PRIORITIES, default=int(Priority.HIGH))
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class Project(models.Model):
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="projects")
    slug = models.SlugField(max_length=40)
    name = models.CharField(max_length=80)
    active = models.BooleanField(default=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "slug"], name="project_slug_once_per_team")]

    def __str__(self) -> str:
        return self.name


class Pool(models.Model):
    slug = models.SlugField(unique=True, max_length=40)
    name = models.CharField(unique=True, max_length=80)
    kind = models.CharField(max_length=10, choices=[(k.value, k.value) for k in PoolKind])
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT, help_text="owner of a static pool")
    notice_seconds = models.PositiveIntegerField(default=30)
    grace_seconds = models.PositiveIntegerField(default=30)
    minimum_runtime_seconds = models.PositiveIntegerField(default=300)
    half_life_seconds = models.PositiveIntegerField(default=7 * 86_400)
    spare_slots = models.PositiveIntegerField(default=0)
    longest_runtime_seconds = models.PositiveIntegerField(default=7 * 86_400)
    most_gpus_per_user = models.PositiveIntegerField(null=True, blank=True)
    most_gpus_per_workload = models.PositiveIntegerField(null=True, blank=True)
    # Five of the largest arrays; and as many as a cycle is measured with (docs/benchmarks.md), so that no team alone makes it slow.
    most_waiting_per_user = models.PositiveIntegerField(default=5_000, help_text="notebooks and jobs of one person in the queue")
    most_waiting_per_team = models.PositiveIntegerField(default=10_000, help_text="notebooks and jobs of one team in the queue")
    approval_above_gpus = models.PositiveIntegerField(default=4, help_text="reservations above this wait for approval")
    longest_reservation_seconds = models.PositiveIntegerField(default=14 * 86_400)
    reservation_horizon_seconds = models.PositiveIntegerField(default=90 * 86_400)
    no_show_seconds = models.PositiveIntegerField(default=30 * 60)
    idle_limit_seconds = models.PositiveIntegerField(default=60 * 60)
    isolation = models.CharField(
        max_length=12, choices=Isolation.choices, default=Isolation.NONE, help_text="hosts that have less take no new work"
    )
    stray_action = models.CharField(
        max_length=6, choices=StrayAction.choices, default=StrayAction.REPORT, help_text="for processes of no workload"
    )
    diagnostic_tool = models.CharField(
        max_length=40, default=DiagnosticTool.AUTO, help_text="a DiagnosticTool, or a name that its hosts report"
    )
    diagnostic_seconds = models.PositiveIntegerField(default=600, help_text="how long a diagnostic of one GPU may take")
    diagnose_after_quarantine = models.BooleanField(
        default=True, help_text="a quarantined GPU is diagnosed once nothing holds it: it comes back, or goes out"
    )
    diagnose_every_hours = models.PositiveIntegerField(default=0, help_text="GPUs that are idle; 0: never")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(kind="dynamic", team__isnull=True) | Q(kind="static", team__isnull=False),
                name="a_static_pool_has_an_owner_a_dynamic_one_has_none",
            )
        ]

    @property
    def spare_gpus(self) -> int:
        """Whole GPUs kept free for critical work."""
        return self.spare_slots // SLOTS_PER_GPU

    def __str__(self) -> str:
        return self.name


class Storage(models.Model):
    """A folder of homes. Hosts that share it report the same key."""

    key = models.CharField(unique=True, max_length=64, help_text="random, made by the first agent that met the folder")
    total_bytes = models.BigIntegerField(null=True, blank=True, help_text="of its file system")
    free_bytes = models.BigIntegerField(null=True, blank=True)
    left_out = models.PositiveIntegerField(default=0, help_text="homes beyond those that one report can name")
    listed_at = models.DateTimeField(help_text="when the agents last looked which homes there are")

    def __str__(self) -> str:
        return self.key[:8]


class Volume(models.Model):
    """One home in a storage, as it was measured last. It is whose name it bears, as the workloads' owner is named to agents."""

    storage = models.ForeignKey(Storage, on_delete=models.CASCADE, related_name="volumes")
    name = models.CharField(max_length=150, db_index=True)
    size_bytes = models.BigIntegerField(null=True, blank=True, help_text="on the disk; empty: unknown")
    size_complete = models.BooleanField(default=True, help_text="not: there is at least so much")
    files = models.BigIntegerField(null=True, blank=True)
    changed_at = models.DateTimeField(null=True, blank=True, help_text="the newest change of anything in it")
    measured_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["storage", "name"], name="a_home_is_once_in_a_storage")]

    @property
    def person(self) -> str:
        """Whose it is: in a further team a person's home is called NAME~NUMBER of the team's user (docs/decisions/0005)."""
        return str(self.name).partition("~")[0]

    def __str__(self) -> str:
        return self.name


class Host(models.Model):
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="hosts")
    name = models.CharField(unique=True, max_length=63)
    labels = models.JSONField(default=dict, blank=True)
    simulated = models.BooleanField(default=False, help_text="its NVML readings are simulated")
    hardware = models.JSONField(default=dict, blank=True, help_text="what the agent last reported of the machine")
    isolation = models.CharField(
        max_length=20, default="", blank=True, help_text="bubblewrap or plain, as the agent reports"
    )
    isolation_level = models.CharField(
        max_length=12, choices=Isolation.choices, default=Isolation.NONE, help_text="what it keeps apart, from its report"
    )
    cpu_milli = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveIntegerField(default=0)
    disk_full = models.BooleanField(default=False, help_text="as its agent says: it starts nothing new")
    disk_full_since = models.DateTimeField(null=True, blank=True, help_text="since when its agent has said so")
    agent_version = models.CharField(max_length=40, default="", blank=True)
    boot_id = models.CharField(max_length=64, default="", blank=True)
    agent_instance = models.CharField(
        max_length=64, default="", blank=True, help_text="random per agent installation: tells a clone"
    )
    agent_start = models.CharField(
        max_length=64, default="", blank=True, help_text="the start of the agent that spoke last: tells a copy of its folder"
    )
    public_key = models.CharField(
        max_length=60, default="", blank=True, help_text="Ed25519, base64; made on the host, registered when it joined"
    )
    credential_hash = models.CharField(max_length=64, default="", blank=True)
    credential_expires_at = models.DateTimeField(null=True, blank=True)
    lease_state = models.CharField(
        max_length=10, choices=states.state_choices(states.LeaseState), default=states.LeaseState.JOINING
    )
    admin_state = models.CharField(
        max_length=12, choices=states.state_choices(states.AdminState), default=states.AdminState.IN_SERVICE
    )
    repair_state = models.CharField(
        max_length=12, choices=states.state_choices(states.RepairState), default=states.RepairState.WELL
    )
    state_reason = models.CharField(max_length=300, default="", blank=True, help_text="why it is not simply in service")
    refused_agent = models.JSONField(
        null=True, blank=True, help_text="the last agent that was turned away here: instance, boot_id, reason, at"
    )
    storage = models.ForeignKey(
        Storage, null=True, blank=True, on_delete=models.SET_NULL, related_name="hosts", help_text="of its homes"
    )
    tripped_at = models.DateTimeField(
        null=True, blank=True, help_text="since when too many attempts of different workloads failed on it"
    )
    last_sync_at = models.DateTimeField(null=True, blank=True)
    agent_before_heard_at = models.DateTimeField(
        null=True, blank=True, help_text="last word of the agent that was here before the present one joined"
    )
    silent_since = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class JoinToken(models.Model):
    """Lets one agent join as one named host, once, within 15 minutes. Only its hash is kept."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="join_tokens")
    token_hash = models.CharField(unique=True, max_length=64)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)


class Gpu(models.Model):
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="gpus")
    index = models.PositiveSmallIntegerField()
    uuid = models.CharField(unique=True, max_length=80)
    model = models.CharField(max_length=60)
    memory_mib = models.PositiveIntegerField()
    compute_capability = models.PositiveSmallIntegerField(default=0, help_text="90 for 9.0")
    nvlink_group = models.PositiveSmallIntegerField(null=True, blank=True)
    numa_node = models.PositiveSmallIntegerField(null=True, blank=True)
    pci_bus_id = models.CharField(max_length=32, default="", blank=True)
    repair_state = models.CharField(
        max_length=12, choices=states.state_choices(states.RepairState), default=states.RepairState.WELL
    )
    state_reason = models.CharField(max_length=300, default="", blank=True)
    retired_at = models.DateTimeField(null=True, blank=True, help_text="no longer reported by its host")
    missing_since = models.DateTimeField(
        null=True, blank=True, help_text="its host stopped reporting it; until it does again, or an operator knows that it is gone"
    )
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host", "index"], condition=Q(retired_at__isnull=True), name="one_gpu_per_host_and_index"
            )
        ]

    @property
    def first_slot(self) -> int:
        return int(self.pk) * SLOTS_PER_GPU

    def __str__(self) -> str:
        return f"{self.host_id}/{self.index}"


class Unit(models.Model):
    """What can be held: a whole GPU, a MIG slice or a declared share. ``slots`` is in fleet-wide numbering."""

    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="units")
    profile = models.CharField(max_length=30, default="", blank=True, help_text="empty: the whole GPU")
    uuid = models.CharField(max_length=80, help_text="what CUDA_VISIBLE_DEVICES gets")
    slots = BigIntegerRangeField()
    memory_mib = models.PositiveIntegerField()
    retired_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="units_of_a_gpu_do_not_overlap",
                expressions=[("slots", RangeOperators.OVERLAPS)],
                condition=Q(retired_at__isnull=True),
            )
        ]


class Quota(models.Model):
    """A team's claim on one model of one pool: so many GPUs at once and, where that is said, so many GPU-hours a period."""

    class Period(models.TextChoices):
        DAY = "day"
        WEEK = "week"
        MONTH = "month"

    class WhenUsedUp(models.TextChoices):
        BORROW = "borrow", "it only borrows until the period is over"
        REFUSE = "refuse", "nothing new starts until the period is over"

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="quotas")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="quotas")
    model = models.CharField(max_length=60)
    guaranteed_slots = models.PositiveIntegerField(help_text="840 is one GPU")
    borrow_limit_slots = models.PositiveIntegerField(
        null=True, blank=True, help_text="above the guarantee; empty: no limit"
    )
    updated_at = models.DateTimeField()
    hours_slot_seconds = models.BigIntegerField(
        null=True, blank=True, help_text="worth of the guarantee in a period; empty: no end. 3,024,000 is one GPU-hour"
    )
    hours_period = models.CharField(max_length=5, choices=Period.choices, default=Period.MONTH)
    when_used_up = models.CharField(max_length=6, choices=WhenUsedUp.choices, default=WhenUsedUp.BORROW)
    hours_used = models.BigIntegerField(default=0, help_text="slot-seconds in the period, as counted last")
    hours_used_up = models.BooleanField(default=False)
    hours_until = models.DateTimeField(null=True, blank=True, help_text="the end of the period that was counted")
    hours_counted_at = models.DateTimeField(null=True, blank=True)

    @property
    def gpu_hours(self) -> int | None:
        """What the guarantee is worth in a period; None without end."""
        return None if self.hours_slot_seconds is None else self.hours_slot_seconds // SLOT_SECONDS_PER_GPU_HOUR

    @property
    def gpu_hours_used(self) -> float:
        """In the period that was counted last."""
        return self.hours_used / SLOT_SECONDS_PER_GPU_HOUR

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "pool", "model"], name="one_quota_per_team_pool_and_model")
        ]


class DecayedUse(models.Model):
    """Slot-seconds with a half-life, brought forward at each cycle that changes something."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE)
    slot_seconds = models.FloatField(default=0)
    as_of = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "pool"], name="one_decayed_use_per_team_and_pool")]


class AskColumns(models.Model):
    """The columns of an ask (scheduler.core.model.snapshot.Ask), shared by workloads and reservations."""

    units = models.PositiveIntegerField()
    hosts = models.PositiveIntegerField(default=1)
    models_wanted = ArrayField(
        models.CharField(max_length=60), default=list, blank=True, help_text="in order of preference"
    )
    profile = models.CharField(max_length=30, default="", blank=True)
    min_memory_mib = models.PositiveIntegerField(default=0)
    min_compute_capability = models.PositiveSmallIntegerField(default=0)
    nvlink = models.BooleanField(default=False)
    labels_required = models.JSONField(default=dict, blank=True)
    cpu_milli = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveIntegerField(default=0)
    labels_preferred = models.JSONField(default=dict, blank=True, help_text="hosts with more of them come first")
    spread = models.BooleanField(default=False, help_text="over hosts that share as little as can be")

    class Meta:
        abstract = True


class Series(models.Model):
    """A recurring reservation. Its occurrences are Reservations that name it; all were promised together or none."""

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=80)
    weekdays = ArrayField(models.PositiveSmallIntegerField(), help_text="0 is Monday")
    starts_at = models.TimeField(help_text="by the clock of its time zone")
    ends_at = models.TimeField(help_text="not after the start: on the next day")
    time_zone = models.CharField(max_length=60)
    first_day = models.DateField()
    last_day = models.DateField()
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class Reservation(AskColumns):
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="reservations")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="reservations")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="reservations")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=80)
    series = models.ForeignKey(
        Series, null=True, blank=True, on_delete=models.PROTECT, related_name="occurrences", help_text="it recurs"
    )
    start = models.DateTimeField()
    end = models.DateTimeField()
    state = models.CharField(
        max_length=10, choices=states.state_choices(states.ReservationState), default=states.ReservationState.CONFIRMED
    )
    may_exceed_guarantee = models.BooleanField(default=False)
    first_used_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True, help_text="when it was over, released or cancelled")
    reason_code = models.CharField(
        max_length=40, default="", blank=True, help_text="why it has begun and has no units; empty when all is well"
    )
    reason_numbers = models.JSONField(default=dict, blank=True)
    reason_at = models.DateTimeField(null=True, blank=True, help_text="since when that is its reason")
    moved_at = models.DateTimeField(null=True, blank=True, help_text="when it last let go of GPUs that can't be used")
    moved_from = models.CharField(max_length=200, default="", blank=True, help_text="the hosts of those")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(end__gt=F("start")), name="a_reservation_ends_after_its_start")
        ]
        indexes = [models.Index(fields=["pool", "end"])]


class BoundUnit(models.Model):
    """A unit bound to a reservation while it is active. No two reservations bind the same slots at the same time."""

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


class JobArray(models.Model):
    """One submission of many tasks: jobs that differ in their index. Its tasks are Workloads that name it."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=80)
    indices = models.CharField(max_length=200, help_text="as they were asked for, such as 0-9 or 1,3,5-9:2")
    most_at_once = models.PositiveIntegerField(null=True, blank=True, help_text="tasks released together; empty: all")
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class Workload(AskColumns):
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
        JobArray, null=True, blank=True, on_delete=models.PROTECT, related_name="tasks", help_text="it is a task of this"
    )
    array_index = models.PositiveIntegerField(null=True, blank=True)
    held_back = models.BooleanField(default=False, help_text="a task whose array lets no more start at present")
    waits_for = ArrayField(
        models.BigIntegerField(), default=list, blank=True, help_text="workloads whose end it still waits for"
    )
    waits_for_arrays = ArrayField(
        models.BigIntegerField(), default=list, blank=True, help_text="arrays whose last task's end it still waits for"
    )
    wanted_by = models.DateTimeField(null=True, blank=True, help_text="when it should be done: a wish, nothing holds it to it")
    command = models.TextField(default="", blank=True, help_text="a job's shell command; empty for a notebook")
    environment = models.JSONField(default=dict, blank=True)
    priority = models.PositiveSmallIntegerField(choices=PRIORITIES, default=int(Priority.NORMAL))
    preemptible = models.BooleanField(default=False)
    max_runtime_seconds = models.PositiveIntegerField()
    predicted_seconds = models.PositiveIntegerField(help_text="fixed at submission, never above max_runtime_seconds")
    most_retries = models.PositiveSmallIntegerField(default=0)
    if_member_ends = models.CharField(
        max_length=7, choices=IfMemberEnds.choices, default=IfMemberEnds.RESTART, help_text="of a job on several hosts"
    )
    state = models.CharField(
        max_length=10, choices=states.state_choices(states.WorkloadState), default=states.WorkloadState.QUEUED
    )
    attempt = models.PositiveIntegerField(default=0, help_text="how often it has been placed")
    submitted_at = models.DateTimeField()
    queued_at = models.DateTimeField(help_text="last time it began to wait")
    not_before = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True, help_text="first time it ran")
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=30, default="", blank=True, help_text="a reason code once it has ended")
    outcome_numbers = models.JSONField(default=dict, blank=True)
    reason_code = models.CharField(max_length=40, default="", blank=True, help_text="why it waits, or why it started")
    reason_numbers = models.JSONField(default=dict, blank=True)
    position = models.PositiveIntegerField(null=True, blank=True)
    expected_start = models.DateTimeField(null=True, blank=True)
    blockers = ArrayField(models.BigIntegerField(), default=list, blank=True)
    borrowed_slots = models.PositiveIntegerField(default=0)
    evicted_by = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    evicted_for_workload = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    evicted_for_reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    earmarked_units = ArrayField(
        models.BigIntegerField(), default=list, blank=True, help_text="units that others were told to leave for it"
    )
    checkpoint_at = models.DateTimeField(null=True, blank=True)
    homes = models.ForeignKey(
        Storage, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", help_text="its last checkpoint lies there"
    )
    avoids = ArrayField(
        models.BigIntegerField(), default=list, blank=True, help_text="hosts on which it could not start: others come first"
    )
    avoids_until = models.DateTimeField(null=True, blank=True)
    stop_requested = models.CharField(max_length=30, default="", blank=True, help_text="reason code of a wanted stop")
    gone_by = models.DateTimeField(
        null=True, blank=True, help_text="when one that was told to go is gone at the latest"
    )
    failures = models.PositiveSmallIntegerField(default=0, help_text="attempts that failed by themselves")
    lost_attempts = models.PositiveSmallIntegerField(
        default=0, help_text="attempts that a host, a GPU or a start failed"
    )
    idle_warned_at = models.DateTimeField(null=True, blank=True)
    keep_until = models.DateTimeField(
        null=True, blank=True, help_text="its owner asked not to stop it for idleness before this"
    )
    simulated = models.BooleanField(default=False, help_text="part of the simulated history, never ran")

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
    """A workload waits until another one, or a whole array, which was there before it, has ended as it has to. Made at its
    birth only. An array has ended ``ok`` when all its tasks finished, ``not_ok`` when all ended and some did not finish."""

    class Condition(models.TextChoices):
        OK = "ok", "finished"
        ANY = "any", "ended"
        NOT_OK = "not_ok", "ended otherwise"

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="dependencies")
    on = models.ForeignKey(Workload, null=True, blank=True, on_delete=models.CASCADE, related_name="dependents")
    on_array = models.ForeignKey(JobArray, null=True, blank=True, on_delete=models.CASCADE, related_name="dependents")
    condition = models.CharField(max_length=6, choices=Condition.choices, default=Condition.OK)
    settled_at = models.DateTimeField(null=True, blank=True, help_text="when it was met, or could not be met any more")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workload", "on"], name="a_workload_waits_for_another_once"),
            models.UniqueConstraint(fields=["workload", "on_array"], name="a_workload_waits_for_an_array_once"),
            models.CheckConstraint(condition=Q(workload__gt=F("on")), name="a_workload_waits_for_earlier_ones"),
            models.CheckConstraint(
                condition=Q(on__isnull=True) ^ Q(on_array__isnull=True), name="a_dependency_is_on_a_workload_or_on_an_array"
            ),
        ]
        indexes = [
            models.Index(fields=["on"], condition=Q(settled_at=None), name="dependencies_not_settled"),
            models.Index(fields=["on_array"], condition=Q(settled_at=None), name="waiting_for_arrays"),
        ]


class Run(models.Model):
    """One host's part of one attempt of a workload. ``generation`` grows with every claim: agents refuse a lower one."""

    workload = models.ForeignKey(Workload, on_delete=models.PROTECT, related_name="runs")
    attempt = models.PositiveIntegerField()
    rank = models.PositiveSmallIntegerField(default=0)
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="runs")
    generation = models.BigIntegerField()
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    state = models.CharField(max_length=10, choices=states.state_choices(states.RunState), default=states.RunState.PLACED)
    placed_at = models.DateTimeField()
    prepared_at = models.DateTimeField(null=True, blank=True, help_text="of a gang: it could begin, and waits for the others")
    starting_at = models.DateTimeField(null=True, blank=True)
    running_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True, help_text="a notebook answers")
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=30, default="", blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    gpu_events = models.JSONField(
        default=list, blank=True, help_text="what its GPUs told in its last minutes and it failed of, like xid:79"
    )
    grace_seconds = models.PositiveIntegerField(
        default=30, help_text="of its pool when it was placed, as its host was told: its shim keeps to that one"
    )
    checkpoint_at = models.DateTimeField(null=True, blank=True)
    checkpoint_told = models.DateTimeField(null=True, blank=True, help_text="the same by its host's clock, to know a new one")
    saved = models.BooleanField(default=False, help_text="it has acknowledged a checkpoint since its notice")
    step = models.CharField(max_length=200, default="", blank=True, help_text="the last real step the agent reported")
    missing_since = models.DateTimeField(
        null=True, blank=True, help_text="since when its agent does not name it any more"
    )
    activity = models.JSONField(
        default=dict, blank=True, help_text="notebook: busy kernels, connections, last activity"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workload", "attempt", "rank"], name="one_run_per_attempt_and_rank"),
            models.UniqueConstraint(fields=["host", "generation"], name="a_generation_is_used_once_per_host"),
        ]
        indexes = [models.Index(fields=["host"], condition=~Q(state="ended"), name="runs_of_a_host_not_ended")]


class Allocation(models.Model):
    """Slots held now or in the past, ``[started, ended)``; open until the agent confirms the stop."""

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
        max_length=30, default="", blank=True, help_text="what its time is charged as: why it was stopped, or how it ended"
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
            models.Index(fields=["unit"], condition=Q(period__upper_inf=True), name="open_allocations_of_a_unit"),
        ]


class Command(models.Model):
    """What the engine wants of a host for one run; open until done. The agent's desired state is made of the open ones."""

    class Verb(models.TextChoices):
        START = "start"
        NOTICE = "notice"
        STOP = "stop"

    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="commands")
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="commands")
    verb = models.CharField(max_length=10, choices=Verb.choices)
    code = models.CharField(max_length=40, default="", blank=True, help_text="reason code, told to the workload")
    stop_at = models.DateTimeField(null=True, blank=True, help_text="notice: when the stop follows")
    created_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "verb"], name="one_command_per_run_and_verb")]
        indexes = [models.Index(fields=["host"], condition=Q(done_at__isnull=True), name="open_commands_of_a_host")]


class Decision(models.Model):
    """One thing the engine decided about one workload, kept when it differs from the last one."""

    class Kind(models.TextChoices):
        PLACED = "placed"
        EVICTED = "evicted"
        REFUSED = "refused"
        RESTARTED = "restarted"  # a gang of which a member ended: all of it waits again
        ENDED = "ended"  # a gang of which a member ended: all of it has ended

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="decisions")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    code = models.CharField(max_length=40)
    numbers = models.JSONField(default=dict)
    for_workload = models.ForeignKey(Workload, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    for_reservation = models.ForeignKey(Reservation, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    epoch = models.BigIntegerField()
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["workload", "-at"]), models.Index(fields=["-at"])]


class StartEstimate(models.Model):
    """The expected start that a workload was first told in one wait, and what came of it: ranges are made from these."""

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="start_estimates")
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="+")
    attempt = models.PositiveIntegerField(help_text="how often it had been placed before this wait")
    told_at = models.DateTimeField()
    expected_start = models.DateTimeField()
    latest = models.DateTimeField(null=True, blank=True, help_text="the upper end of its range, if it was told one")
    over_at = models.DateTimeField(null=True, blank=True, help_text="when it was placed, or left the queue")
    started = models.BooleanField(default=False, help_text="it was placed")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["workload", "attempt"], name="one_estimate_per_wait")]
        indexes = [
            models.Index(fields=["pool", "-over_at"]),
            models.Index(fields=["expected_start"], condition=Q(over_at=None), name="estimates_of_those_who_wait"),
        ]


class Leader(models.Model):
    """One row. Every write of the engine checks that its epoch is still this one."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    epoch = models.BigIntegerField(default=0)
    holder = models.CharField(max_length=80, default="", blank=True)
    renewed_at = models.DateTimeField(null=True, blank=True)
    last_cycle_at = models.DateTimeField(null=True, blank=True)
    last_cycle_seconds = models.FloatField(null=True, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="there_is_one_leader_row")]


class ClockReading(models.Model):
    """One row: when the wall clock was last looked at beside one that nobody can set (scheduler.coordination.clock_correction)."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    wall = models.DateTimeField()
    machine = models.CharField(max_length=120)
    uptime = models.FloatField(help_text="seconds on CLOCK_BOOTTIME of that machine")
    set_at = models.DateTimeField(null=True, blank=True, help_text="when it was last found that the wall clock had been set")

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="there_is_one_clock_reading")]


class BudgetGate(models.Model):
    """Closed by telemetry when a budget is used up: the engine then refuses new work, or stops lending to it."""

    class Action(models.TextChoices):
        REFUSE_NEW = "refuse_new"
        STOP_BORROWING = "stop_borrowing"

    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE)
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.CASCADE)
    action = models.CharField(max_length=16, choices=Action.choices)
    numbers = models.JSONField(default=dict, help_text="measure, limit and spent, as the reason says them")
    closed_at = models.DateTimeField()
    until = models.DateTimeField(help_text="the end of the budget's period")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(team__isnull=True) ^ Q(project__isnull=True), name="a_gate_is_of_a_team_or_of_a_project"
            ),
            models.UniqueConstraint(
                fields=["team", "project", "action"], name="a_gate_is_closed_once", nulls_distinct=False
            ),
        ]


class MaintenanceWindow(models.Model):
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="maintenance_windows")
    start = models.DateTimeField()
    end = models.DateTimeField()
    reason = models.CharField(max_length=300)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(end__gt=F("start")), name="maintenance_ends_after_its_start")]


class HostStateChange(models.Model):
    """Kept so that every second of a host lands in the right bucket: unhealthy, maintenance or in use."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="state_changes")
    lease_state = models.CharField(max_length=10)
    admin_state = models.CharField(max_length=12)
    repair_state = models.CharField(max_length=12)
    reason = models.CharField(max_length=300, default="", blank=True)
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["host", "at"])]


class GpuStateChange(models.Model):
    """The same for one GPU that was taken out by itself while its host went on."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="state_changes")
    repair_state = models.CharField(max_length=12)
    reason = models.CharField(max_length=300, default="", blank=True)
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["gpu", "at"])]


class Diagnostic(models.Model):
    """One GPU looked at by its host: memory, bandwidth and arithmetic. Passed, it comes back; failed, it goes out."""

    class Why(models.TextChoices):
        OPERATOR = "operator", "asked for"
        QUARANTINED = "quarantined", "after its quarantine"
        TRIPPED = "tripped", "after too many failed attempts on its host"
        PERIODIC = "periodic", "its turn, while idle"

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="diagnostics")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="diagnostics")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    why = models.CharField(max_length=12, choices=Why.choices)
    state = models.CharField(
        max_length=8, choices=states.state_choices(states.DiagnosticState), default=states.DiagnosticState.WANTED
    )
    tool = models.CharField(
        max_length=40, default="", blank=True, help_text="what was run: dcgm, own, simulated or a name of the host's"
    )
    simulated = models.BooleanField(default=False, help_text="nothing was measured")
    checks = models.JSONField(default=list, blank=True, help_text="name, passed and numbers of each check")
    detail = models.CharField(max_length=300, default="", blank=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["gpu"], condition=Q(state__in=("wanted", "running")), name="one_open_diagnostic_per_gpu"
            )
        ]
        indexes = [
            models.Index(fields=["gpu", "-created_at"]),
            models.Index(fields=["host"], condition=Q(state__in=("wanted", "running")), name="open_diagnostics_of_a_host"),
        ]


class GeometryChange(models.Model):
    """A GPU that is to be split otherwise: drained first, then its host is told. Kept, whatever came of it."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="geometry_changes")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="geometry_changes")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    before = models.JSONField(default=list, blank=True, help_text="profiles of its units; empty: one whole GPU")
    parts = models.JSONField(default=list, blank=True, help_text="profile and start of each; empty: one whole GPU")
    state = models.CharField(
        max_length=10, choices=states.state_choices(states.GeometryState), default=states.GeometryState.DRAINING
    )
    detail = models.CharField(max_length=300, default="", blank=True, help_text="what its host says of it")
    created_at = models.DateTimeField()
    told_at = models.DateTimeField(null=True, blank=True, help_text="when nothing held it any more and its host was told")
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["gpu"], condition=Q(state__in=("draining", "changing")), name="one_open_change_of_geometry_per_gpu"
            )
        ]
        indexes = [
            models.Index(fields=["gpu", "-created_at"]),
            models.Index(fields=["host"], condition=Q(state__in=("draining", "changing")), name="open_geometry_of_a_host"),
        ]

    @property
    def profiles(self) -> list[str]:
        """Of the units that it is to have; empty: one whole GPU."""
        return [str(part["profile"]) for part in self.parts]


class RecordingPart(models.Model):
    """One table of recorded snapshots: its canonical text, compressed, under the text's own SHA-256."""

    digest = models.CharField(primary_key=True, max_length=64)
    body = models.BinaryField()
    used_at = models.DateTimeField(db_index=True, help_text="about when a recording last named it")


class Recording(models.Model):
    """What one cycle that changed something planned on: enough to make its plan again (manage.py replay_snapshot)."""

    at = models.DateTimeField(db_index=True)
    planned_at = models.BigIntegerField(help_text="the plan's moment, in whole seconds since the epoch")
    epoch = models.BigIntegerField()
    parts = models.JSONField(help_text="the digest of each table's part")
    plan_sha256 = models.CharField(max_length=64, help_text="of the plan's canonical text")
    placed = models.PositiveIntegerField()
    evicted = models.PositiveIntegerField()
    refused = models.PositiveIntegerField()
    size_bytes = models.PositiveBigIntegerField(default=0, help_text="of the parts that it was the first to name, compressed")
