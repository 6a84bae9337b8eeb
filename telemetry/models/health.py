"""Define health rules, health events, and stray processes on GPUs."""

from __future__ import annotations

from django.db import models

from scheduler.models import Gpu, Host


class HealthRule(models.Model):
    """The automatic action after hardware events with one code. Operators can edit the rule."""

    class Action(models.TextChoices):
        NOTE = "note"
        WARN = "warn"
        CORDON = "cordon"
        DRAIN = "drain"
        QUARANTINE_GPU = "quarantine_gpu"

    class Counts(models.TextChoices):
        EVENTS = "events", "events"
        PEOPLE = "people", "people's work"

    class Origin(models.TextChoices):
        DEFAULT = "default", "default"
        CHANGED = "changed", "changed"
        ADDED = "added", "added"

    code = models.CharField(max_length=40, unique=True, help_text="xid:79, ecc:uncorrectable")
    meaning = models.CharField(max_length=200)
    action = models.CharField(max_length=16, choices=Action.choices)
    repeats = models.PositiveSmallIntegerField(
        default=1, help_text="number of events within the window that triggers the action"
    )
    window_seconds = models.PositiveIntegerField(default=3600)
    counts = models.CharField(
        max_length=6,
        choices=Counts.choices,
        default=Counts.EVENTS,
        help_text="people: events in the work of one person count as one, because a program can cause them",
    )
    source = models.CharField(max_length=200, help_text="source of the recommendation")
    elsewhere = models.CharField(
        max_length=300, default="", blank=True, help_text="differing recommendations, with their source"
    )
    # The values that a reset restores. They are empty for an operator's own rule.
    default_action = models.CharField(max_length=16, choices=Action.choices, default="", blank=True)
    default_repeats = models.PositiveSmallIntegerField(null=True, blank=True)
    default_window_seconds = models.PositiveIntegerField(null=True, blank=True)
    default_counts = models.CharField(max_length=6, choices=Counts.choices, default="", blank=True)

    def __str__(self) -> str:
        return self.code

    @property
    def origin(self) -> str:
        """Return a value of Origin: the rule is a default, a changed default, or added by an operator."""
        if not self.default_action:
            return self.Origin.ADDED
        is_default = (self.action, self.repeats, self.window_seconds, self.counts) == self.default
        return self.Origin.DEFAULT if is_default else self.Origin.CHANGED

    @property
    def default(self) -> tuple[str, int | None, int | None, str]:
        """Return the default action, repeats, window in seconds and counts.

        The values are empty or None for an operator's own rule.
        """
        return self.default_action, self.default_repeats, self.default_window_seconds, self.default_counts


class HealthEvent(models.Model):
    """A hardware event of a host or GPU, and the action taken."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="health_events")
    gpu = models.ForeignKey(Gpu, null=True, on_delete=models.CASCADE, related_name="health_events")
    event_id = models.CharField(max_length=80)
    source = models.CharField(max_length=20)
    code = models.CharField(max_length=40)
    detail = models.CharField(max_length=1000, default="", blank=True)
    at = models.DateTimeField()
    received_at = models.DateTimeField()
    action_taken = models.CharField(max_length=16, default="", blank=True)
    handled_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "event_id"], name="a_health_event_lands_once")]
        indexes = [models.Index(fields=["-at"])]


class Stray(models.Model):
    """A process on a GPU, as reported by the host. It belongs to no workload that holds this GPU."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="strays")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="strays")
    pid = models.PositiveIntegerField()
    started = models.BigIntegerField(
        help_text="start in clock ticks after the boot; distinguishes a reused pid"
    )
    user = models.CharField(max_length=64, default="", blank=True)
    name = models.CharField(max_length=64, default="", blank=True)
    memory_mib = models.PositiveIntegerField(
        null=True, blank=True, help_text="memory used on that GPU; empty: unknown"
    )
    run = models.CharField(
        max_length=40, default="", blank=True, help_text="run of a workload that does not hold this GPU"
    )
    done = models.CharField(
        max_length=200,
        default="",
        blank=True,
        help_text="action that the host took, or its reason for taking none",
    )
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField()
    gone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host", "gpu", "pid", "started"],
                condition=models.Q(gone_at=None),
                name="a_stray_is_there_once",
            )
        ]
        indexes = [models.Index(fields=["host", "-last_seen"])]
