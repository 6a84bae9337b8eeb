"""Define pools of hosts and their rules."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import PoolKind
from scheduler.models.removal import PresentRows
from scheduler.models.teams import Team
from scheduler.state.isolation import Isolation


class StrayAction(models.TextChoices):
    """The reaction of a host to a stray process. Such a process uses a GPU but belongs to no workload.

    Operators are always notified.
    """

    REPORT = "report", "report it"
    WARN = "warn", "report it and notify its owner"
    END = "end", "report it and end it if it belongs neither to a workload nor to the system"


class DiagnosticTool(models.TextChoices):
    """The GPU diagnostics that a pool can always use.

    A pool may also name a diagnostic that the operator installed on its hosts.
    """

    AUTO = "auto", "DCGM if the host has it, otherwise gpupool's diagnostic"
    OWN = "own", "gpupool's diagnostic"
    DCGM = "dcgm", "DCGM"


class RunsAs(models.TextChoices):
    """The Unix user as which the work of a pool runs on its hosts."""

    TEAM = "team", "the user of its team"
    PERSON = "person", "the Unix user of its owner, with the shared home"


class Pool(models.Model):
    slug = models.SlugField(unique=True, max_length=40)
    name = models.CharField(unique=True, max_length=80)
    kind = models.CharField(max_length=10, choices=[(k.value, k.value) for k in PoolKind])
    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.PROTECT, help_text="owner of a static pool"
    )
    notice_seconds = models.PositiveIntegerField(default=30)
    grace_seconds = models.PositiveIntegerField(default=30)
    minimum_runtime_seconds = models.PositiveIntegerField(default=300)
    half_life_seconds = models.PositiveIntegerField(default=7 * 86_400)
    spare_slots = models.PositiveIntegerField(default=0)
    longest_runtime_seconds = models.PositiveIntegerField(default=7 * 86_400)
    most_gpus_per_user = models.PositiveIntegerField(null=True, blank=True)
    most_gpus_per_workload = models.PositiveIntegerField(null=True, blank=True)
    # The limit per user allows five arrays of the largest size. The limit per team is the queue length of the
    # benchmarks (docs/benchmarks.md), so that no single team slows planning cycles down.
    most_waiting_per_user = models.PositiveIntegerField(
        default=5_000, help_text="notebooks and jobs of one person in the queue"
    )
    most_waiting_per_team = models.PositiveIntegerField(
        default=10_000, help_text="notebooks and jobs of one team in the queue"
    )
    approval_above_gpus = models.PositiveIntegerField(
        default=4, help_text="reservations above this number wait for approval"
    )
    longest_reservation_seconds = models.PositiveIntegerField(default=14 * 86_400)
    reservation_horizon_seconds = models.PositiveIntegerField(default=90 * 86_400)
    no_show_seconds = models.PositiveIntegerField(default=30 * 60)
    idle_limit_seconds = models.PositiveIntegerField(default=60 * 60)
    isolation = models.CharField(
        max_length=12,
        choices=Isolation.choices,
        default=Isolation.NONE,
        help_text="hosts with less isolation take no new work",
    )
    isolation_from_hosts = models.BooleanField(
        default=False, help_text="True: the first hosts of the pool decide which isolation it demands"
    )
    runs_as = models.CharField(
        max_length=6,
        choices=RunsAs.choices,
        default=RunsAs.TEAM,
        help_text="identity of new work on its hosts",
    )
    perf_events = models.BooleanField(
        default=False, help_text="True: work may use the system call perf_event_open"
    )
    home_limit_gib = models.PositiveIntegerField(
        null=True, blank=True, help_text="largest size of a new home on its hosts; empty: no limit"
    )
    stray_action = models.CharField(
        max_length=6,
        choices=StrayAction.choices,
        default=StrayAction.REPORT,
        help_text="policy for processes outside workloads",
    )
    diagnostic_tool = models.CharField(
        max_length=40,
        default=DiagnosticTool.AUTO,
        help_text="a DiagnosticTool, or the name of a tool that its hosts report",
    )
    diagnostic_seconds = models.PositiveIntegerField(
        default=600, help_text="time limit of the diagnostic of one GPU"
    )
    diagnose_after_quarantine = models.BooleanField(
        default=True,
        help_text="diagnose a quarantined GPU when no workload holds it; the result decides its state",
    )
    diagnose_every_hours = models.PositiveIntegerField(
        default=0, help_text="interval of diagnostics on idle GPUs; 0: never"
    )
    created_at = models.DateTimeField()
    removed_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="removed; the row stays for charges and audit records; its name stays reserved",
    )

    objects = PresentRows["Pool"]()
    with_removed = models.Manager["Pool"]()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(kind="dynamic", team__isnull=True) | Q(kind="static", team__isnull=False),
                name="a_static_pool_has_an_owner_a_dynamic_one_has_none",
            )
        ]

    @property
    def spare_gpus(self) -> int:
        """Return the number of whole GPUs that the pool keeps free for critical work."""
        return self.spare_slots // SLOTS_PER_GPU

    def __str__(self) -> str:
        return self.name
