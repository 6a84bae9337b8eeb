"""Define notifications to users, and records of the events that users were notified about."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from portal.models.accounts import User
from portal.models.submissions import Submission
from scheduler.models import Reservation, Workload


class Notification(models.Model):
    """A notification that the portal shows to one user.

    ``portal.wording.notices.notice_texts`` builds its sentence from ``kind`` and ``numbers``.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="notifications")
    kind = models.CharField(max_length=40)
    numbers = models.JSONField(default=dict)
    workload = models.ForeignKey(Workload, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    submission = models.ForeignKey(
        Submission, null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    source = models.CharField(max_length=80, help_text="key of the fact that it reports; one notice per key")
    matter = models.CharField(
        max_length=120,
        default="",
        blank=True,
        help_text="key of the matter; notices about one matter are one line; empty: its own matter",
    )
    at = models.DateTimeField()
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "source"], name="a_fact_is_told_once")]
        indexes = [models.Index(fields=["user", "-at"])]


class NoticeMark(models.Model):
    """The time up to which events have been searched for notifications. The table has one row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    looked_until = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="there_is_one_notice_mark")]


class ToldStart(models.Model):
    """The expected start that was last announced to the owner of a waiting workload.

    A new expected start is announced only if it differs by a large amount.
    """

    workload = models.OneToOneField(
        Workload, primary_key=True, on_delete=models.CASCADE, related_name="told_start"
    )
    expected_start = models.DateTimeField()
    at = models.DateTimeField()
