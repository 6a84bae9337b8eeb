"""The change feed: what the engine reads between cycles instead of everything. See scheduler/feed.py."""

from django.db import migrations

from scheduler import feed

ASK = (
    "units", "hosts", "models_wanted", "profile", "min_memory_mib", "min_compute_capability", "nvlink", "labels_required",
    "cpu_milli", "memory_mib",
)  # fmt: skip
WORKLOAD = (
    *ASK, "state", "pool_id", "project_id", "owner_id", "reservation_id", "priority", "preemptible", "max_runtime_seconds",
    "predicted_seconds", "submitted_at", "not_before", "attempt", "failures", "lost_attempts", "borrowed_slots",
    "evicted_by_id", "evicted_for_workload_id", "evicted_for_reservation_id", "earmarked_units", "checkpoint_at", "gone_by",
)  # fmt: skip
RESERVATION = (*ASK, "state", "pool_id", "project_id", "start", '"end"', "may_exceed_guarantee")
POOL = (
    "name", "kind", "team_id", "notice_seconds", "grace_seconds", "minimum_runtime_seconds", "half_life_seconds",
    "spare_slots", "longest_runtime_seconds", "most_gpus_per_user", "most_gpus_per_workload",
)  # fmt: skip
HOST = ("pool_id", "name", "labels", "cpu_milli", "memory_mib", "lease_state", "admin_state", "repair_state")
GPU = ("host_id", "model", "compute_capability", "nvlink_group", "repair_state", "retired_at")
QUOTA = ("team_id", "pool_id", "model", "guaranteed_slots", "borrow_limit_slots")
GATE = ("team_id", "project_id", "action", "numbers", "until")

WATCHED = (
    feed.watch("scheduler_workload", "workload", WORKLOAD, alive="state <> 'ended'"),
    # An allocation is noted as its workload: that is what holds it.
    feed.watch(
        "scheduler_allocation", "workload", ("period", "slots"), row_id="workload_id", alive="upper_inf(period)"
    ),
    feed.watch("scheduler_host", "host", HOST),
    feed.watch("scheduler_gpu", "gpu", GPU),
    feed.watch("scheduler_unit", "unit", ("gpu_id", "profile", "slots", "memory_mib", "retired_at")),
    feed.watch("scheduler_reservation", "reservation", RESERVATION),
    feed.watch("scheduler_boundunit", "bound", ("reservation_id", "unit_id", "period")),
    feed.watch("scheduler_maintenancewindow", "maintenance", ("host_id", "start", '"end"')),
    feed.watch("scheduler_quota", "quota", QUOTA),
    feed.watch("scheduler_decayeduse", "use", ("team_id", "pool_id", "slot_seconds", "as_of")),
    feed.watch("scheduler_budgetgate", "gate", GATE),
    feed.watch("scheduler_pool", feed.EVERYTHING, POOL),
    feed.watch("scheduler_team", feed.EVERYTHING, ("name", "weight")),
    feed.watch("scheduler_project", feed.EVERYTHING, ("team_id",)),
)
TABLES = (
    "workload", "allocation", "host", "gpu", "unit", "reservation", "boundunit", "maintenancewindow", "quota", "decayeduse",
    "budgetgate", "pool", "team", "project",
)  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0006_recurring_and_changed_reservations")]

    operations = [
        migrations.RunSQL(feed.TABLE, "DROP TABLE scheduler_change"),
        migrations.RunSQL("\n".join(WATCHED), "".join(feed.unwatch(f"scheduler_{table}") for table in TABLES)),
    ]
