"""Define requests that need an approval, their decisions, and workload templates."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce

from portal.models.accounts import User
from scheduler.models import Pool, Reservation, Team, WorkloadType


class SubmissionState(models.TextChoices):
    WAITING = "waiting"
    APPROVED = "approved"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class Submission(models.Model):
    """A request that needs an approval. While it waits, it holds no GPUs."""

    class Kind(models.TextChoices):
        RESERVATION = "reservation"
        SERIES = "series", "recurring reservation"
        WINDOW_CHANGE = "window_change", "another window"
        QUOTA_CHANGE = "quota_change"
        MEMBERSHIP = "membership"
        BUDGET = "budget"

    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=16, choices=Kind.choices)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="submissions")
    pool = models.ForeignKey(Pool, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    author = models.ForeignKey(User, on_delete=models.PROTECT, related_name="submissions")
    why = models.CharField(max_length=1000, default="", blank=True)
    payload = models.JSONField(help_text="validated arguments of the verb")
    state = models.CharField(max_length=10, choices=SubmissionState.choices, default=SubmissionState.WAITING)
    reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.PROTECT, related_name="submissions"
    )
    created_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["state", "created_at"])]
        constraints = [
            models.UniqueConstraint(
                fields=["reservation"],
                condition=Q(kind="window_change", state="waiting"),
                name="one_change_of_a_reservation_waits",
            ),
            models.UniqueConstraint(
                fields=["team", "author"],
                condition=Q(kind="membership", state="waiting"),
                name="one_wish_to_join_a_team_waits",
            ),
            models.UniqueConstraint(
                models.F("team"),
                models.F("pool"),
                KeyTextTransform("model", "payload"),
                condition=Q(kind="quota_change", state="waiting"),
                name="one_change_of_a_quota_waits",
            ),
            models.UniqueConstraint(
                models.F("team"),
                KeyTextTransform("period", "payload"),
                KeyTextTransform("month", "payload"),
                KeyTextTransform("measure", "payload"),
                # A request for the budget of the team itself has neither of these.
                Coalesce(KeyTextTransform("project", "payload"), models.Value("")),
                Coalesce(KeyTextTransform("cost_centre", "payload"), models.Value("")),
                condition=Q(kind="budget", state="waiting"),
                name="one_request_for_a_budget_waits",
            ),
        ]

    def __str__(self) -> str:
        return str(self.get_kind_display())


class Approval(models.Model):
    """The decision about a submission: who decided, how the request was changed, and why."""

    submission = models.OneToOneField(Submission, on_delete=models.PROTECT, related_name="approval")
    decided_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    approved = models.BooleanField()
    changed_payload = models.JSONField(null=True, blank=True)
    comment = models.CharField(max_length=1000, default="", blank=True)
    decided_at = models.DateTimeField()


class Template(models.Model):
    """Preset values for launching a notebook or a job."""

    slug = models.SlugField(unique=True, max_length=40)
    name = models.CharField(max_length=80)
    description = models.CharField(max_length=300, default="", blank=True)
    kind = models.CharField(max_length=10, choices=[("notebook", "notebook"), ("job", "job")])
    type = models.CharField(max_length=12, choices=WorkloadType.choices)
    units = models.PositiveIntegerField(default=1)
    hosts = models.PositiveIntegerField(
        default=1, help_text="number of hosts of a job; each gets ``units`` units"
    )
    profile = models.CharField(max_length=30, default="", blank=True)
    command = models.TextField(default="", blank=True)
    max_runtime_seconds = models.PositiveIntegerField()
    position = models.PositiveSmallIntegerField(default=0)


SUBMISSION_TRANSITIONS: dict[str, frozenset[str]] = {
    SubmissionState.WAITING: frozenset(
        {
            SubmissionState.APPROVED,
            SubmissionState.DECLINED,
            SubmissionState.WITHDRAWN,
            SubmissionState.EXPIRED,
        }
    ),
    SubmissionState.APPROVED: frozenset(),
    SubmissionState.DECLINED: frozenset(),
    SubmissionState.WITHDRAWN: frozenset(),
    SubmissionState.EXPIRED: frozenset(),
}
