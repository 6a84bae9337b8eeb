"""What keeps new work from a host, and work from where it should not go again. The planner reads it, so the feed notes it."""

import django.contrib.postgres.fields
import django.db.models.deletion
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
)
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
    dependencies = [("scheduler", "0021_the_agent_before")]

    operations = [
        migrations.AddField(
            model_name="host",
            name="disk_full",
            field=models.BooleanField(default=False, help_text="as its agent says: it starts nothing new"),
        ),
        migrations.AddField(
            model_name="workload",
            name="avoids",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(),
                blank=True,
                default=list,
                help_text="hosts on which it could not start: others come first",
                size=None,
            ),
        ),
        migrations.AddField(
            model_name="workload", name="avoids_until", field=models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="workload",
            name="homes",
            field=models.ForeignKey(
                blank=True,
                help_text="its last checkpoint lies there",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="scheduler.storage",
            ),
        ),
        migrations.RunSQL(
            change_feed.watch_table_sql("scheduler_workload", "workload", WORKLOAD, alive="state <> 'ended'"),
            migrations.RunSQL.noop,
        ),
        migrations.RunSQL(
            change_feed.watch_table_sql("scheduler_host", "host", HOST), migrations.RunSQL.noop
        ),
    ]
