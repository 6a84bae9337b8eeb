"""Define the channels through which people and teams get notices, and the outbox of messages."""

from __future__ import annotations

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from portal.models.accounts import User
from portal.models.submissions import Submission
from scheduler.models import Reservation, Team, Workload
from scheduler.models.encrypted_fields import EncryptedJSONField


class NoticeChannel(models.Model):
    """A way to reach a person or a team outside the portal: mail, a webhook or a chat service.

    The channel gets the notices whose topic is one of its topics (see ``portal.wording.notices.topics``).
    """

    class Kind(models.TextChoices):
        MAIL = "mail"
        WEBHOOK = "webhook"
        SERVICE = "service"

    class Digest(models.TextChoices):
        NONE = "none"
        HOURLY = "hourly"
        DAILY = "daily"

    public_id = models.UUIDField(default=uuid.uuid4, unique=True)
    user = models.ForeignKey(
        User, null=True, blank=True, on_delete=models.CASCADE, related_name="notice_channels"
    )
    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.CASCADE, related_name="notice_channels"
    )
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    name = models.CharField(max_length=80)
    kind = models.CharField(max_length=8, choices=Kind.choices)
    target = EncryptedJSONField(default=dict, help_text="address and, for a webhook, its secret")
    shown_address = models.CharField(max_length=200, help_text="the address without its secret parts")
    topics = ArrayField(models.CharField(max_length=20))
    digest = models.CharField(max_length=6, choices=Digest.choices, default=Digest.NONE)
    quiet_from = models.TimeField(null=True, blank=True, help_text="in the zone of the person")
    quiet_until = models.TimeField(null=True, blank=True)
    active = models.BooleanField(default=True)
    created_at = models.DateTimeField()
    failing_since = models.DateTimeField(null=True, blank=True, help_text="null: the last message arrived")
    failure = models.CharField(max_length=300, default="", blank=True)
    last_sent_at = models.DateTimeField(null=True, blank=True)

    @property
    def destination(self) -> str:
        """Return where messages go, without secret parts. A person's mail goes to the account's address."""
        return self.user.email if self.kind == self.Kind.MAIL and self.user else self.shown_address

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(user=None, team__isnull=False) | Q(user__isnull=False, team=None),
                name="a_channel_belongs_to_a_person_or_a_team",
            ),
            models.CheckConstraint(
                condition=Q(quiet_from=None, quiet_until=None)
                | Q(quiet_from__isnull=False, quiet_until__isnull=False),
                name="quiet_hours_have_two_ends",
            ),
        ]


class NoticeMessageState(models.TextChoices):
    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"


class NoticeMessage(models.Model):
    """A message in the outbox of a channel. It is sent at least once; a repetition has the same public_id."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True)
    channel = models.ForeignKey(NoticeChannel, on_delete=models.CASCADE, related_name="messages")
    state = models.CharField(
        max_length=7, choices=NoticeMessageState.choices, default=NoticeMessageState.WAITING
    )
    created_at = models.DateTimeField()
    due_at = models.DateTimeField(help_text="not sent before")
    claimed_until = models.DateTimeField(null=True, blank=True, help_text="a process sends it until then")
    attempts = models.PositiveIntegerField(default=0)
    answer = models.CharField(max_length=300, default="", blank=True, help_text="result of the last attempt")
    sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["due_at"], condition=Q(state="waiting"), name="waiting_notice_messages"),
            models.Index(fields=["channel", "-created_at"]),
        ]


class NoticeMessageItem(models.Model):
    """A notice in a message. A digest has several."""

    message = models.ForeignKey(NoticeMessage, on_delete=models.CASCADE, related_name="items")
    channel = models.ForeignKey(NoticeChannel, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=40)
    numbers = models.JSONField(default=dict)
    workload = models.ForeignKey(Workload, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    submission = models.ForeignKey(
        Submission, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    source = models.CharField(max_length=80, help_text="key of the event; one item per channel and key")
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["channel", "source"], name="an_event_is_sent_once_per_channel")
        ]


NOTICE_MESSAGE_TRANSITIONS: dict[str, frozenset[str]] = {
    NoticeMessageState.WAITING: frozenset({NoticeMessageState.SENT, NoticeMessageState.FAILED}),
    # A person can send a message again.
    NoticeMessageState.SENT: frozenset({NoticeMessageState.WAITING}),
    NoticeMessageState.FAILED: frozenset({NoticeMessageState.WAITING}),
}
