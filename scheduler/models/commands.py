"""Define the commands that the engine gives to the agents of hosts."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from scheduler.models.hosts import Host
from scheduler.models.runs import Run


class Command(models.Model):
    """An order of the engine to a host about one run.

    A command is open until ``done_at`` is set. The open commands of a host are its desired state.
    """

    class Verb(models.TextChoices):
        START = "start"
        NOTICE = "notice"
        STOP = "stop"

    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="commands")
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="commands")
    verb = models.CharField(max_length=10, choices=Verb.choices)
    code = models.CharField(
        max_length=40, default="", blank=True, help_text="reason code that the workload receives"
    )
    stop_at = models.DateTimeField(
        null=True, blank=True, help_text="time of the stop that a notice announces"
    )
    created_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "verb"], name="one_command_per_run_and_verb")]
        indexes = [
            models.Index(fields=["host"], condition=Q(done_at__isnull=True), name="open_commands_of_a_host")
        ]
