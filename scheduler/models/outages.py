"""Define the contact of edge processes with the database, and announced maintenance of the database."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q


class EdgeContact(models.Model):
    """The last contact of one edge process with the database.

    The process writes its row every few seconds, together with the leases that it has renewed from memory
    (``scheduler.coordination.edge_contacts``).
    """

    process = models.CharField(primary_key=True, max_length=120, help_text="random for each process")
    address = models.CharField(
        max_length=200, help_text="machine and port; a later process with it proves that this one has ended"
    )
    seen_at = models.DateTimeField(help_text="time of its last contact")
    renews_until = models.DateTimeField(
        help_text="end of the time in which it may renew leases from memory without another contact"
    )


class DatabaseMaintenance(models.Model):
    """An announced time in which the database may be stopped.

    While it lasts, the engine places nothing. Edges may renew leases from memory until ``ends_at``.
    """

    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(help_text="announced end")
    ended_at = models.DateTimeField(
        null=True, blank=True, help_text="time at which an operator ended it; empty: it ends as announced"
    )
    reason = models.CharField(max_length=300)
    announced_by = models.CharField(max_length=150, help_text="name of the operator")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(ends_at__gt=F("starts_at")), name="database_maintenance_ends_after_its_start"
            )
        ]
