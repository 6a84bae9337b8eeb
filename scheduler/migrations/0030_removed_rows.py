"""Removed hosts, pools, teams and quotas are kept for history. A GPU names the pool that it is charged in."""

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
    "removed_at",
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
)
QUOTA = (
    "team_id",
    "pool_id",
    "model",
    "guaranteed_slots",
    "borrow_limit_slots",
    "hours_slot_seconds",
    "when_used_up",
    "hours_used_up",
    "hours_until",
    "removed_at",
)
WATCHED = (
    change_feed.watch_table_sql("scheduler_host", "host", HOST),
    change_feed.watch_table_sql("scheduler_quota", "quota", QUOTA),
    change_feed.watch_table_sql("scheduler_pool", change_feed.WHOLE_TABLE, POOL),
    change_feed.watch_table_sql("scheduler_team", change_feed.WHOLE_TABLE, ("name", "weight", "removed_at")),
)
POOL_OF_EACH_GPU = """
UPDATE scheduler_gpu AS gpu SET pool_id = host.pool_id
FROM scheduler_host AS host WHERE host.id = gpu.host_id;
SET CONSTRAINTS ALL IMMEDIATE;
"""
NAME_IS_TAKEN = "removed; the row stays for charges and audit records; its name stays reserved"
CHARGED_THERE = "pool to which its time is charged; a host that moves gets new GPU rows"


def removed_at(model, help_text):
    return migrations.AddField(
        model, "removed_at", models.DateTimeField(blank=True, help_text=help_text, null=True)
    )


def pool_of_gpu(**options):
    return models.ForeignKey(
        help_text=CHARGED_THERE,
        on_delete=django.db.models.deletion.PROTECT,
        related_name="gpus",
        to="scheduler.pool",
        **options,
    )


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0029_reservations_at_risk")]

    operations = [
        removed_at("host", "removed; the row stays for its runs and charges; its name may be used again"),
        removed_at("pool", NAME_IS_TAKEN),
        removed_at("team", NAME_IS_TAKEN),
        removed_at("quota", "time at which its team or pool was removed; statements still read the row"),
        migrations.RunSQL("\n".join(WATCHED), migrations.RunSQL.noop),
        migrations.AddField("gpu", "pool", pool_of_gpu(null=True)),
        migrations.RunSQL(POOL_OF_EACH_GPU, migrations.RunSQL.noop),
        migrations.AlterField("gpu", "pool", pool_of_gpu()),
        migrations.AlterField("gpu", "uuid", models.CharField(db_index=True, max_length=80)),
        migrations.AlterField("host", "name", models.CharField(max_length=63)),
        migrations.AddConstraint(
            "gpu",
            models.UniqueConstraint(
                condition=models.Q(("retired_at__isnull", True)),
                fields=("uuid",),
                name="one_present_gpu_per_uuid",
            ),
        ),
        migrations.AddConstraint(
            "host",
            models.UniqueConstraint(
                condition=models.Q(("removed_at__isnull", True)),
                fields=("name",),
                name="one_present_host_per_name",
            ),
        ),
    ]
