"""The change feed: what the engine reads between cycles instead of everything. See scheduler/state/change_feed.py."""

from django.db import migrations

from scheduler.state import change_feed

ASK = (
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
)
WORKLOAD = (
    *ASK,
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
)
RESERVATION = (*ASK, "state", "pool_id", "project_id", "start", '"end"', "may_exceed_guarantee")
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
)
HOST = ("pool_id", "name", "labels", "cpu_milli", "memory_mib", "lease_state", "admin_state", "repair_state")
GPU = ("host_id", "model", "compute_capability", "nvlink_group", "repair_state", "retired_at")
QUOTA = ("team_id", "pool_id", "model", "guaranteed_slots", "borrow_limit_slots")
GATE = ("team_id", "project_id", "action", "numbers", "until")

WATCHED = (
    change_feed.watch_table_sql("scheduler_workload", "workload", WORKLOAD, alive="state <> 'ended'"),
    # An allocation is noted as its workload: that is what holds it.
    change_feed.watch_table_sql(
        "scheduler_allocation",
        "workload",
        ("period", "slots"),
        row_id="workload_id",
        alive="upper_inf(period)",
    ),
    change_feed.watch_table_sql("scheduler_host", "host", HOST),
    change_feed.watch_table_sql("scheduler_gpu", "gpu", GPU),
    change_feed.watch_table_sql(
        "scheduler_unit", "unit", ("gpu_id", "profile", "slots", "memory_mib", "retired_at")
    ),
    change_feed.watch_table_sql("scheduler_reservation", "reservation", RESERVATION),
    change_feed.watch_table_sql("scheduler_boundunit", "bound", ("reservation_id", "unit_id", "period")),
    change_feed.watch_table_sql("scheduler_maintenancewindow", "maintenance", ("host_id", "start", '"end"')),
    change_feed.watch_table_sql("scheduler_quota", "quota", QUOTA),
    change_feed.watch_table_sql(
        "scheduler_decayeduse", "use", ("team_id", "pool_id", "slot_seconds", "as_of")
    ),
    change_feed.watch_table_sql("scheduler_budgetgate", "gate", GATE),
    change_feed.watch_table_sql("scheduler_pool", change_feed.WHOLE_TABLE, POOL),
    change_feed.watch_table_sql("scheduler_team", change_feed.WHOLE_TABLE, ("name", "weight")),
    change_feed.watch_table_sql("scheduler_project", change_feed.WHOLE_TABLE, ("team_id",)),
)
TABLES = (
    "workload",
    "allocation",
    "host",
    "gpu",
    "unit",
    "reservation",
    "boundunit",
    "maintenancewindow",
    "quota",
    "decayeduse",
    "budgetgate",
    "pool",
    "team",
    "project",
)


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0006_recurring_and_changed_reservations")]

    operations = [
        migrations.RunSQL(change_feed.CREATE_CHANGE_TABLE, "DROP TABLE scheduler_change"),
        migrations.RunSQL(
            "\n".join(WATCHED),
            "".join(change_feed.unwatch_table_sql(f"scheduler_{table}") for table in TABLES),
        ),
    ]
