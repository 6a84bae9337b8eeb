"""Work of a pool can run as the Unix user of its owner. A pool can allow perf_event_open."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from scheduler.state import change_feed

HOST = (
    "pool_id",
    "name",
    "labels",
    "cpu_milli",
    "memory_mib",
    "lease_state",
    "admin_state",
    "repair_state",
    "isolation_level",
    "disk_full",
    "storage_id",
    "removed_at",
    "person_users",
)
POOL = (
    "name",
    "kind",
    "team_id",
    "notice_seconds",
    "grace_seconds",
    "minimum_runtime_seconds",
    "half_life_seconds",
    "spare_slots",
    "longest_runtime_seconds",
    "most_gpus_per_user",
    "most_gpus_per_workload",
    "isolation",
    "removed_at",
    "runs_as",
)
WATCHED_BEFORE = (
    change_feed.watch_table_sql("scheduler_host", "host", HOST[:-1]),
    change_feed.watch_table_sql("scheduler_pool", change_feed.WHOLE_TABLE, POOL[:-1]),
)
WATCHED = (
    change_feed.watch_table_sql("scheduler_host", "host", HOST),
    change_feed.watch_table_sql("scheduler_pool", change_feed.WHOLE_TABLE, POOL),
)


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("scheduler", "0034_isolation_of_new_pools"),
    ]

    operations = [
        migrations.CreateModel(
            "UnixIdentity",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uid", models.PositiveIntegerField(unique=True)),
                ("gid", models.PositiveIntegerField()),
                (
                    "groups",
                    django.contrib.postgres.fields.ArrayField(
                        models.PositiveIntegerField(), blank=True, default=list, help_text="further groups"
                    ),
                ),
                ("name", models.CharField(help_text="Unix name", max_length=100, unique=True)),
                ("home", models.CharField(help_text="path of the home on the hosts", max_length=400)),
                (
                    "provider",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="the provider that set it; empty: an operator",
                        max_length=40,
                    ),
                ),
                ("changed_at", models.DateTimeField()),
                (
                    "person",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="unix_identity",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.AddField(
            "host",
            "person_users",
            models.BooleanField(
                default=False,
                help_text="True: it can run work as the Unix user of its owner, from its report",
            ),
        ),
        migrations.AddField(
            "pool",
            "runs_as",
            models.CharField(
                choices=[
                    ("team", "the user of its team"),
                    ("person", "the Unix user of its owner, with the shared home"),
                ],
                default="team",
                help_text="identity of new work on its hosts",
                max_length=6,
            ),
        ),
        migrations.AddField(
            "pool",
            "perf_events",
            models.BooleanField(
                default=False, help_text="True: work may use the system call perf_event_open"
            ),
        ),
        migrations.AddField(
            "workload",
            "unix_identity",
            models.JSONField(
                blank=True,
                help_text="Unix identity of its owner at its submission; empty: its team's user",
                null=True,
            ),
        ),
        migrations.RunSQL(WATCHED, WATCHED_BEFORE),
    ]
