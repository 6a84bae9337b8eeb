"""Contacts of edge processes with the database, and announced maintenance of the database."""

from django.db import migrations, models
from django.db.models import F, Q


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0032_run_cpu_and_memory")]

    operations = [
        migrations.CreateModel(
            "EdgeContact",
            [
                (
                    "process",
                    models.CharField(
                        primary_key=True, max_length=120, help_text="random for each process", serialize=False
                    ),
                ),
                (
                    "address",
                    models.CharField(
                        max_length=200,
                        help_text="machine and port; a later process with it proves that this one has ended",
                    ),
                ),
                ("seen_at", models.DateTimeField(help_text="time of its last contact")),
                (
                    "renews_until",
                    models.DateTimeField(
                        help_text="end of the time in which it may renew leases from memory without another contact"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            "DatabaseMaintenance",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField(help_text="announced end")),
                (
                    "ended_at",
                    models.DateTimeField(
                        null=True,
                        blank=True,
                        help_text="time at which an operator ended it; empty: it ends as announced",
                    ),
                ),
                ("reason", models.CharField(max_length=300)),
                ("announced_by", models.CharField(max_length=150, help_text="name of the operator")),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(ends_at__gt=F("starts_at")),
                        name="database_maintenance_ends_after_its_start",
                    )
                ]
            },
        ),
    ]
