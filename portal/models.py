"""Who asked, who agreed, and what people are told. Rows only."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KeyTextTransform

from scheduler.models import Pool, Reservation, Team, Workload, WorkloadType


class Organisation(models.Model):
    """One row: whose pool this is."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    name = models.CharField(max_length=80)
    time_zone = models.CharField(max_length=60, default="UTC")
    currency = models.CharField(max_length=3, default="EUR")
    simulated_history_until = models.DateTimeField(null=True, blank=True)
    history_progress = models.JSONField(
        null=True, blank=True, help_text="while the simulated history loads: done, total, words"
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="there_is_one_organisation")]


class User(AbstractUser):
    """Roles of the whole organisation are flags here; roles in a team are Memberships."""

    operator = models.BooleanField(default=False, help_text="runs hosts and pools, decides approvals")
    finance = models.BooleanField(default=False, help_text="sees all charges, closes months")
    auditor = models.BooleanField(default=False, help_text="sees everything, changes nothing")
    time_zone = models.CharField(max_length=60, default="", blank=True, help_text="empty: the organisation's")
    theme = models.CharField(
        max_length=6, default="system", choices=[("system", "as the system"), ("light", "light"), ("dark", "dark")]
    )


class Membership(models.Model):
    class Role(models.TextChoices):
        MEMBER = "member"
        LEAD = "lead"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=6, choices=Role.choices, default=Role.MEMBER)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "team"], name="one_membership_per_user_and_team")]


class SubmissionState(models.TextChoices):
    WAITING = "waiting"
    APPROVED = "approved"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"


SUBMISSION_TRANSITIONS: dict[str, frozenset[str]] = {
    SubmissionState.WAITING: frozenset({SubmissionState.APPROVED, SubmissionState.DECLINED, SubmissionState.WITHDRAWN}),
    SubmissionState.APPROVED: frozenset(),
    SubmissionState.DECLINED: frozenset(),
    SubmissionState.WITHDRAWN: frozenset(),
}


class Submission(models.Model):
    """What a person submitted that somebody has to approve. It holds nothing while it waits."""

    class Kind(models.TextChoices):
        RESERVATION = "reservation"
        SERIES = "series", "recurring reservation"
        WINDOW_CHANGE = "window_change", "another window"
        QUOTA_CHANGE = "quota_change"
        MEMBERSHIP = "membership"

    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=16, choices=Kind.choices)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="submissions")
    pool = models.ForeignKey(Pool, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    author = models.ForeignKey(User, on_delete=models.PROTECT, related_name="submissions")
    why = models.CharField(max_length=1000, default="", blank=True)
    payload = models.JSONField(help_text="the verb's arguments, as validated")
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
        ]

    def __str__(self) -> str:
        return str(self.get_kind_display())


class Approval(models.Model):
    """Who decided about a submission, what they changed and why."""

    submission = models.OneToOneField(Submission, on_delete=models.PROTECT, related_name="approval")
    decided_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    approved = models.BooleanField()
    changed_payload = models.JSONField(null=True, blank=True)
    comment = models.CharField(max_length=1000, default="", blank=True)
    decided_at = models.DateTimeField()


class Template(models.Model):
    """A notebook or job that people launch in two clicks."""

    slug = models.SlugField(unique=True, max_length=40)
    name = models.CharField(max_length=80)
    description = models.CharField(max_length=300, default="", blank=True)
    kind = models.CharField(max_length=10, choices=[("notebook", "notebook"), ("job", "job")])
    type = models.CharField(max_length=12, choices=WorkloadType.choices)
    units = models.PositiveIntegerField(default=1)
    hosts = models.PositiveIntegerField(default=1, help_text="for a job only: so many units on each")
    profile = models.CharField(max_length=30, default="", blank=True)
    command = models.TextField(default="", blank=True)
    max_runtime_seconds = models.PositiveIntegerField()
    position = models.PositiveSmallIntegerField(default=0)


class Notification(models.Model):
    """In-app notice. ``kind`` and ``numbers`` are facts; ``portal.wording.notice_texts`` makes the sentence."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="notifications")
    kind = models.CharField(max_length=40)
    numbers = models.JSONField(default=dict)
    workload = models.ForeignKey(Workload, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    reservation = models.ForeignKey(Reservation, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    submission = models.ForeignKey(Submission, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    source = models.CharField(max_length=80, help_text="what it was made from: the same fact is told once")
    at = models.DateTimeField()
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "source"], name="a_fact_is_told_once")]
        indexes = [models.Index(fields=["user", "-at"])]


class NoticeMark(models.Model):
    """One row: facts up to this moment have been looked at for notices. Each look goes back a little before it."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    looked_until = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="there_is_one_notice_mark")]


class ToldStart(models.Model):
    """The expected start that a waiting workload's owner last knew, to tell when it moved a lot."""

    workload = models.OneToOneField(Workload, primary_key=True, on_delete=models.CASCADE, related_name="told_start")
    expected_start = models.DateTimeField()
    at = models.DateTimeField()


class AuditEvent(models.Model):
    """Who did what to what, before and after, and why. A trigger refuses UPDATE and DELETE."""

    at = models.DateTimeField()
    actor = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+", help_text="empty: the program itself"
    )
    actor_name = models.CharField(max_length=150)
    verb = models.CharField(max_length=60, help_text="the service's name")
    target = models.CharField(max_length=120, help_text="kind and id")
    target_name = models.CharField(max_length=120, default="")
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    why = models.CharField(max_length=1000, default="", blank=True)
    via = models.CharField(max_length=10, default="web", help_text="web, api, cli, program")

    class Meta:
        indexes = [models.Index(fields=["-at"]), models.Index(fields=["target"])]


class ApiToken(models.Model):
    """Shown once when it is made; only its hash is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12, help_text="its first characters, to tell tokens apart")
    token_hash = models.CharField(unique=True, max_length=64)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def is_in_force(self, now: datetime) -> bool:
        """Is it neither revoked nor out of date, and its owner's account open?"""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now) and self.user.is_active


class WorkspaceOrigin(models.Model):
    """The random name under which one notebook is reached; a new one for each workload."""

    workload = models.OneToOneField(
        Workload, primary_key=True, on_delete=models.CASCADE, related_name="workspace_origin"
    )
    label = models.CharField(unique=True, max_length=40)
    created_at = models.DateTimeField()


class EntryCode(models.Model):
    """One-time code that opens a workspace: made by the portal for one user, spent by the edge within a minute."""

    code_hash = models.CharField(unique=True, max_length=64)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="+")
    session_key_hash = models.CharField(max_length=64, default="", blank=True)
    api_token = models.ForeignKey(ApiToken, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)


class WorkspaceSession(models.Model):
    """A browser that entered a workspace: what its ``__Host-`` cookie stands for. Ending it cuts its open sockets."""

    token_hash = models.CharField(unique=True, max_length=64)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="+")
    session_key_hash = models.CharField(
        max_length=64, default="", blank=True, help_text="of the portal session it came from"
    )
    api_token = models.ForeignKey(
        ApiToken, null=True, blank=True, on_delete=models.CASCADE, related_name="+", help_text="it came from"
    )
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
