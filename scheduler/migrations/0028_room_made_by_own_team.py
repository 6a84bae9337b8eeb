"""Add a column: whether the work that was evicted for a workload belongs to the workload's own team.

The planner reads the column, so the change feed watches it.
"""

from django.db import migrations, models

from scheduler.state import change_feed

WORKLOAD = (
    "units",
    "hosts",
    "models_wanted",
    "profile",
    "min_memory_mib",
    "min_compute_capability",
    "nvlink",
    "labels_required",
    "cpu_milli",
    "memory_mib",
    "labels_preferred",
    "spread",
    "state",
    "pool_id",
    "project_id",
    "owner_id",
    "reservation_id",
    "priority",
    "preemptible",
    "max_runtime_seconds",
    "predicted_seconds",
    "submitted_at",
    "not_before",
    "attempt",
    "failures",
    "lost_attempts",
    "borrowed_slots",
    "evicted_by_id",
    "evicted_for_workload_id",
    "evicted_for_reservation_id",
    "earmarked_units",
    "room_made_by_own_team",
    "checkpoint_at",
    "gone_by",
    "waits_for",
    "waits_for_arrays",
    "held_back",
    "array_id",
    "avoids",
    "avoids_until",
    "homes_id",
)


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0001_squashed_0027")]

    operations = [
        migrations.AddField(
            model_name="workload",
            name="room_made_by_own_team",
            field=models.BooleanField(
                blank=True,
                help_text="whether all work evicted for it is of its own team; empty if none was evicted",
                null=True,
            ),
        ),
        migrations.RunSQL(
            change_feed.watch_table_sql("scheduler_workload", "workload", WORKLOAD, alive="state <> 'ended'"),
            migrations.RunSQL.noop,
        ),
    ]
