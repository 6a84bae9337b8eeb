"""Define the quotas of teams, their changes and past use, and the gates that used-up budgets close."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from scheduler.models.pools import Pool
from scheduler.models.removal import PresentRows
from scheduler.models.teams import Project, Team


class Quota(models.Model):
    """A team's quota for one GPU model of one pool.

    It guarantees slots to the team and limits borrowing. Optionally, it also limits the guaranteed GPU-hours
    per period.
    """

    class Period(models.TextChoices):
        DAY = "day"
        WEEK = "week"
        MONTH = "month"

    class WhenUsedUp(models.TextChoices):
        BORROW = "borrow", "new work only borrows until the period ends"
        REFUSE = "refuse", "no new work starts until the period ends"

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="quotas")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="quotas")
    model = models.CharField(max_length=60)
    guaranteed_slots = models.PositiveIntegerField(help_text="840 is one GPU")
    borrow_limit_slots = models.PositiveIntegerField(
        null=True, blank=True, help_text="units that it may borrow above the guarantee; empty: no limit"
    )
    updated_at = models.DateTimeField()
    hours_slot_seconds = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="guaranteed slot-seconds per period; empty: no limit. 3,024,000 are one GPU-hour",
    )
    hours_period = models.CharField(max_length=5, choices=Period.choices, default=Period.MONTH)
    when_used_up = models.CharField(max_length=6, choices=WhenUsedUp.choices, default=WhenUsedUp.BORROW)
    hours_used = models.BigIntegerField(
        default=0, help_text="slot-seconds used in the period, at the last count"
    )
    hours_used_up = models.BooleanField(default=False)
    hours_until = models.DateTimeField(null=True, blank=True, help_text="end of the period that was counted")
    hours_counted_at = models.DateTimeField(null=True, blank=True)
    removed_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="time at which its team or pool was removed; statements still read the row",
    )

    objects = PresentRows["Quota"]()
    with_removed = models.Manager["Quota"]()

    @property
    def gpu_hours(self) -> int | None:
        """Return the guaranteed GPU-hours per period, or None if they are not limited."""
        return (
            None if self.hours_slot_seconds is None else self.hours_slot_seconds // SLOT_SECONDS_PER_GPU_HOUR
        )

    @property
    def gpu_hours_used(self) -> float:
        """Return the GPU-hours used in the period that was counted last."""
        return self.hours_used / SLOT_SECONDS_PER_GPU_HOUR

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "pool", "model"], name="one_quota_per_team_pool_and_model"
            )
        ]


class GuaranteeChange(models.Model):
    """A change of a team's guarantee for one GPU model of one pool. The table is append-only.

    Statements divide idle cost by the guarantees of their month. Before the first recorded change, a team
    had ``slots_before`` of that change. Without a recorded change, it has always had its present guarantee.
    """

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    model = models.CharField(max_length=60)
    slots_before = models.PositiveIntegerField(help_text="840 is one GPU")
    slots_after = models.PositiveIntegerField(help_text="840 is one GPU")
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["at"], name="guarantee_changes_by_time")]


class DecayedUse(models.Model):
    """A team's decayed use of a pool, in slot-seconds. It decays with the pool's half-life.

    Planning cycles that change something update the row.
    """

    team = models.ForeignKey(Team, on_delete=models.CASCADE)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE)
    slot_seconds = models.FloatField(default=0)
    as_of = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "pool"], name="one_decayed_use_per_team_and_pool")
        ]


class BudgetGate(models.Model):
    """A gate that telemetry closes when a budget is used up. A closed gate prevents new work or borrowing."""

    class GateAction(models.TextChoices):
        REFUSE_NEW = "refuse_new"
        STOP_BORROWING = "stop_borrowing"

    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE)
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.CASCADE)
    action = models.CharField(max_length=16, choices=GateAction.choices)
    numbers = models.JSONField(default=dict, help_text="numbers of the reason: measure, limit and spent")
    closed_at = models.DateTimeField()
    until = models.DateTimeField(help_text="end of the budget's period")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(team__isnull=True) ^ Q(project__isnull=True),
                name="a_gate_is_of_a_team_or_of_a_project",
            ),
            models.UniqueConstraint(
                fields=["team", "project", "action"], name="a_gate_is_closed_once", nulls_distinct=False
            ),
        ]
