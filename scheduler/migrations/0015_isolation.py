"""How well a host keeps workloads apart, and what a pool demands. The planner reads both, so the change feed notes them."""

from django.db import migrations, models

from scheduler.state import change_feed

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
)
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
)
CHOICES = [
    ("none", "none demanded"),
    ("sandbox", "a sandbox"),
    ("team_users", "a sandbox, and a user id per team"),
    ("limits", "a sandbox, a user id per team, and limits of CPU, memory and processes"),
]


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0014_gangs")]

    operations = [
        migrations.AddField(
            "pool",
            "isolation",
            models.CharField(
                choices=CHOICES,
                default="none",
                help_text="hosts that have less take no new work",
                max_length=12,
            ),
        ),
        migrations.AddField(
            "host",
            "isolation_level",
            models.CharField(
                choices=CHOICES,
                default="none",
                help_text="what it keeps apart, from its report",
                max_length=12,
            ),
        ),
        migrations.RunSQL(
            change_feed.watch_table_sql("scheduler_pool", change_feed.WHOLE_TABLE, POOL),
            migrations.RunSQL.noop,
        ),
        migrations.RunSQL(
            change_feed.watch_table_sql("scheduler_host", "host", HOST), migrations.RunSQL.noop
        ),
    ]
