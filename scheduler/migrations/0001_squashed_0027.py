"""Create the tables, triggers and change feed of version 0.0."""

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, BigIntegerRangeField, DateTimeRangeField
from django.db import migrations, models
from django.db.models import CASCADE, PROTECT, SET_NULL, F, Q

from scheduler.migrations._tables import (
    ID,
    PUBLIC_ID,
    SINGLE_ROW_ID,
    flag,
    optional_array,
    optional_link,
    optional_text,
    optional_time,
    spaced,
    table,
    titled,
)
from scheduler.state import change_feed

ISOLATION_LEVELS = [
    ("none", "none demanded"),
    ("sandbox", "a sandbox"),
    ("team_users", "a sandbox, and a user id per team"),
    ("limits", "a sandbox, a user id per team, and limits of CPU, memory and processes"),
]
PRIORITIES = [(0, "low"), (1, "normal"), (2, "high"), (3, "critical")]
REPAIR_STATES = spaced("well", "quarantined", "diagnosing", "out", "reshaping")
# What a workload or a reservation requests.
REQUEST = {
    "units": models.PositiveIntegerField(),
    "hosts": models.PositiveIntegerField(default=1),
    "models_wanted": optional_array(models.CharField(max_length=60), "in order of preference"),
    "profile": optional_text(30),
    "min_memory_mib": models.PositiveIntegerField(default=0),
    "min_compute_capability": models.PositiveSmallIntegerField(default=0),
    "nvlink": flag(),
    "labels_required": models.JSONField(blank=True, default=dict),
    "cpu_milli": models.PositiveIntegerField(default=0),
    "memory_mib": models.PositiveIntegerField(default=0),
}

# The engine takes the numbers while it holds the lock of the leader's row. So transactions commit in the
# order of their numbers.
GENERATION = "CREATE SEQUENCE scheduler_generation"
ONE_LEADER = "INSERT INTO scheduler_leader (id, epoch, holder) VALUES (1, 0, '')"
# The bodies are compressed.
UNCOMPRESSED_PARTS = "ALTER TABLE scheduler_recordingpart ALTER COLUMN body SET STORAGE EXTERNAL"

# See docs/architecture.md, invariants 1 and "Reservations and holds".
ALLOCATIONS_ARE_HISTORY = """
CREATE FUNCTION scheduler_allocations_are_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'allocation % is history and stays', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF NOT upper_inf(OLD.period) THEN
        RAISE EXCEPTION 'allocation % is closed and stays as it is', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (NEW.slots, NEW.unit_id, NEW.run_id, NEW.workload_id, NEW.project_id, lower(NEW.period))
       IS DISTINCT FROM (OLD.slots, OLD.unit_id, OLD.run_id, OLD.workload_id, OLD.project_id, lower(OLD.period)) THEN
        RAISE EXCEPTION 'allocation %: only its end is still open', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER allocations_are_history BEFORE UPDATE OR DELETE ON scheduler_allocation
    FOR EACH ROW EXECUTE FUNCTION scheduler_allocations_are_history();
"""

# An allocation whose end lies in the future, because the clock was set back after it ended, holds nothing.
NO_STRANGER_ON_BOUND_SLOTS = """
CREATE FUNCTION scheduler_no_stranger_on_bound_slots() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM scheduler_boundunit bound
        WHERE bound.slots && NEW.slots AND bound.period && NEW.period
          AND bound.reservation_id IS DISTINCT FROM NEW.reservation_id
    ) THEN
        RAISE EXCEPTION 'slots % are bound to another reservation', NEW.slots USING ERRCODE = 'exclusion_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER no_stranger_on_bound_slots BEFORE INSERT ON scheduler_allocation
    FOR EACH ROW EXECUTE FUNCTION scheduler_no_stranger_on_bound_slots();

CREATE FUNCTION scheduler_bind_only_free_slots() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM scheduler_allocation held
        WHERE held.slots && NEW.slots AND upper_inf(held.period) AND held.period && NEW.period
          AND held.reservation_id IS DISTINCT FROM NEW.reservation_id
    ) THEN
        RAISE EXCEPTION 'slots % are held by work outside the reservation', NEW.slots USING ERRCODE = 'exclusion_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER bind_only_free_slots BEFORE INSERT ON scheduler_boundunit
    FOR EACH ROW EXECUTE FUNCTION scheduler_bind_only_free_slots();
"""

# Changes of these columns concern the planner, so the change feed records them.
REQUEST_COLUMNS = """
units hosts models_wanted profile min_memory_mib min_compute_capability nvlink labels_required
cpu_milli memory_mib labels_preferred spread
"""
WORKLOAD_COLUMNS = """
state pool_id project_id owner_id reservation_id priority preemptible max_runtime_seconds
predicted_seconds submitted_at not_before attempt failures lost_attempts borrowed_slots
evicted_by_id evicted_for_workload_id evicted_for_reservation_id earmarked_units checkpoint_at
gone_by waits_for waits_for_arrays held_back array_id avoids avoids_until homes_id
"""
RESERVATION_COLUMNS = 'state pool_id project_id start "end" may_exceed_guarantee'
POOL_COLUMNS = """
name kind team_id notice_seconds grace_seconds minimum_runtime_seconds half_life_seconds spare_slots
longest_runtime_seconds most_gpus_per_user most_gpus_per_workload isolation
"""
HOST_COLUMNS = """
pool_id name labels cpu_milli memory_mib lease_state admin_state repair_state isolation_level
disk_full storage_id
"""
QUOTA_COLUMNS = """
team_id pool_id model guaranteed_slots borrow_limit_slots hours_slot_seconds hours_used_up
when_used_up hours_until
"""


def watch(table_name: str, kind: str, columns: str, **arguments: str) -> str:
    """Return the SQL that makes the change feed record changes of these columns."""
    return change_feed.watch_table_sql(f"scheduler_{table_name}", kind, columns.split(), **arguments)


WATCHED = [
    watch("workload", "workload", REQUEST_COLUMNS + WORKLOAD_COLUMNS, alive="state <> 'ended'"),
    # A change of an allocation is recorded as a change of the workload that holds the units.
    watch("allocation", "workload", "period slots", row_id="workload_id", alive="upper_inf(period)"),
    watch("host", "host", HOST_COLUMNS),
    watch("gpu", "gpu", "host_id model compute_capability nvlink_group repair_state retired_at"),
    watch("unit", "unit", "gpu_id profile slots memory_mib retired_at"),
    watch("reservation", "reservation", REQUEST_COLUMNS + RESERVATION_COLUMNS),
    watch("boundunit", "bound", "reservation_id unit_id period"),
    watch("maintenancewindow", "maintenance", 'host_id start "end"'),
    watch("quota", "quota", QUOTA_COLUMNS),
    watch("decayeduse", "use", "team_id pool_id slot_seconds as_of"),
    watch("budgetgate", "gate", "team_id project_id action numbers until"),
    watch("pool", change_feed.WHOLE_TABLE, POOL_COLUMNS),
    watch("team", change_feed.WHOLE_TABLE, "name weight"),
    watch("project", change_feed.WHOLE_TABLE, "team_id"),
]


class Migration(migrations.Migration):
    initial = True
    replaces = [
        ("scheduler", "0001_initial"),
        ("scheduler", "0002_guards"),
        ("scheduler", "0003_a_gate_is_closed_once"),
        ("scheduler", "0004_why_a_reservation_has_no_units"),
        ("scheduler", "0005_homes_and_where_they_lie"),
        ("scheduler", "0006_recurring_and_changed_reservations"),
        ("scheduler", "0007_what_has_changed"),
        ("scheduler", "0008_dependencies_and_arrays"),
        ("scheduler", "0009_recordings"),
        ("scheduler", "0010_expected_starts"),
        ("scheduler", "0011_gpu_hours_of_a_quota"),
        ("scheduler", "0012_diagnostics_and_strays"),
        ("scheduler", "0013_waiting_limits_and_arrays_waited_for"),
        ("scheduler", "0014_gangs"),
        ("scheduler", "0015_isolation"),
        ("scheduler", "0016_keys_of_hosts"),
        ("scheduler", "0017_when_the_clock_is_set"),
        ("scheduler", "0018_reservations_that_moved"),
        ("scheduler", "0019_geometries_of_gpus"),
        ("scheduler", "0020_what_hosts_were_told_of_runs"),
        ("scheduler", "0021_the_agent_before"),
        ("scheduler", "0022_full_disks_and_better_places"),
        ("scheduler", "0023_since_when_a_disk_is_full"),
        ("scheduler", "0024_gpus_that_are_missing"),
        ("scheduler", "0025_what_gpus_told_before_an_end"),
        ("scheduler", "0026_what_a_budget_gate_tells"),
        ("scheduler", "0027_after_a_clock_was_ahead"),
    ]
    dependencies = [("portal", "0001_user")]

    operations = [
        table(
            "Team",
            id=ID,
            slug=models.SlugField(max_length=40, unique=True),
            name=models.CharField(max_length=80, unique=True),
            tag=models.CharField(max_length=3, help_text="two or three letters shown with its colour"),
            colour=models.PositiveSmallIntegerField(default=1, help_text="index of the palette, 1 to 8"),
            weight=models.PositiveIntegerField(default=1, help_text="weight in fair share"),
            highest_priority=models.PositiveSmallIntegerField(default=2, choices=PRIORITIES),
            created_at=models.DateTimeField(),
        ),
        table(
            "Pool",
            id=ID,
            slug=models.SlugField(max_length=40, unique=True),
            name=models.CharField(max_length=80, unique=True),
            kind=models.CharField(max_length=10, choices=spaced("static", "dynamic")),
            notice_seconds=models.PositiveIntegerField(default=30),
            grace_seconds=models.PositiveIntegerField(default=30),
            minimum_runtime_seconds=models.PositiveIntegerField(default=300),
            half_life_seconds=models.PositiveIntegerField(default=604800),
            spare_slots=models.PositiveIntegerField(default=0),
            longest_runtime_seconds=models.PositiveIntegerField(default=604800),
            most_gpus_per_user=models.PositiveIntegerField(blank=True, null=True),
            most_gpus_per_workload=models.PositiveIntegerField(blank=True, null=True),
            approval_above_gpus=models.PositiveIntegerField(
                default=4, help_text="reservations above this number wait for approval"
            ),
            longest_reservation_seconds=models.PositiveIntegerField(default=1209600),
            reservation_horizon_seconds=models.PositiveIntegerField(default=7776000),
            no_show_seconds=models.PositiveIntegerField(default=1800),
            idle_limit_seconds=models.PositiveIntegerField(default=3600),
            created_at=models.DateTimeField(),
            team=optional_link("scheduler.team", PROTECT, help_text="owner of a static pool"),
            diagnose_after_quarantine=models.BooleanField(
                default=True,
                help_text="diagnose a quarantined GPU when no workload holds it; the result decides its state",
            ),
            diagnose_every_hours=models.PositiveIntegerField(
                default=0, help_text="interval of diagnostics on idle GPUs; 0: never"
            ),
            diagnostic_seconds=models.PositiveIntegerField(
                default=600, help_text="time limit of the diagnostic of one GPU"
            ),
            diagnostic_tool=models.CharField(
                max_length=40,
                default="auto",
                help_text="a DiagnosticTool, or the name of a tool that its hosts report",
            ),
            stray_action=models.CharField(
                max_length=6,
                default="report",
                choices=[
                    ("report", "report it"),
                    ("warn", "report it and notify its owner"),
                    (
                        "end",
                        "report it and end it if it belongs neither to a workload nor to the system",
                    ),
                ],
                help_text="policy for processes outside workloads",
            ),
            most_waiting_per_team=models.PositiveIntegerField(
                default=10000, help_text="notebooks and jobs of one team in the queue"
            ),
            most_waiting_per_user=models.PositiveIntegerField(
                default=5000, help_text="notebooks and jobs of one person in the queue"
            ),
            isolation=models.CharField(
                max_length=12,
                default="none",
                choices=ISOLATION_LEVELS,
                help_text="hosts with less isolation take no new work",
            ),
            constraints=[
                models.CheckConstraint(
                    condition=Q(
                        Q(("kind", "dynamic"), ("team__isnull", True)),
                        Q(("kind", "static"), ("team__isnull", False)),
                        _connector="OR",
                    ),
                    name="a_static_pool_has_an_owner_a_dynamic_one_has_none",
                )
            ],
        ),
        table(
            "Project",
            id=ID,
            slug=models.SlugField(max_length=40),
            name=models.CharField(max_length=80),
            active=models.BooleanField(default=True),
            created_at=models.DateTimeField(),
            team=models.ForeignKey("scheduler.team", PROTECT, related_name="projects"),
            constraints=[models.UniqueConstraint(fields=("team", "slug"), name="project_slug_once_per_team")],
        ),
        table(
            "Leader",
            id=SINGLE_ROW_ID,
            epoch=models.BigIntegerField(default=0),
            holder=optional_text(80),
            renewed_at=optional_time(),
            last_cycle_at=optional_time(),
            last_cycle_seconds=models.FloatField(blank=True, null=True),
            constraints=[models.CheckConstraint(condition=Q(("id", 1)), name="there_is_one_leader_row")],
        ),
        table(
            "Quota",
            id=ID,
            model=models.CharField(max_length=60),
            guaranteed_slots=models.PositiveIntegerField(help_text="840 is one GPU"),
            borrow_limit_slots=models.PositiveIntegerField(
                blank=True,
                null=True,
                help_text="units that it may borrow above the guarantee; empty: no limit",
            ),
            updated_at=models.DateTimeField(),
            pool=models.ForeignKey("scheduler.pool", PROTECT, related_name="quotas"),
            team=models.ForeignKey("scheduler.team", PROTECT, related_name="quotas"),
            hours_counted_at=optional_time(),
            hours_period=models.CharField(
                max_length=5, default="month", choices=titled("day", "week", "month")
            ),
            hours_slot_seconds=models.BigIntegerField(
                blank=True,
                null=True,
                help_text="guaranteed slot-seconds per period; empty: no limit. 3,024,000 are one GPU-hour",
            ),
            hours_until=optional_time("end of the period that was counted"),
            hours_used=models.BigIntegerField(
                default=0, help_text="slot-seconds used in the period, at the last count"
            ),
            hours_used_up=flag(),
            when_used_up=models.CharField(
                max_length=6,
                default="borrow",
                choices=[
                    ("borrow", "new work only borrows until the period ends"),
                    ("refuse", "no new work starts until the period ends"),
                ],
            ),
            constraints=[
                models.UniqueConstraint(
                    fields=("team", "pool", "model"), name="one_quota_per_team_pool_and_model"
                )
            ],
        ),
        table(
            "DecayedUse",
            id=ID,
            slot_seconds=models.FloatField(default=0),
            as_of=models.DateTimeField(),
            pool=models.ForeignKey("scheduler.pool", CASCADE),
            team=models.ForeignKey("scheduler.team", CASCADE),
            constraints=[
                models.UniqueConstraint(fields=("team", "pool"), name="one_decayed_use_per_team_and_pool")
            ],
        ),
        table(
            "BudgetGate",
            id=ID,
            action=models.CharField(max_length=16, choices=titled("refuse_new", "stop_borrowing")),
            numbers=models.JSONField(
                default=dict, help_text="numbers of the reason: measure, limit and spent"
            ),
            closed_at=models.DateTimeField(),
            until=models.DateTimeField(help_text="end of the budget's period"),
            project=optional_link("scheduler.project", CASCADE),
            team=optional_link("scheduler.team", CASCADE),
            constraints=[
                models.CheckConstraint(
                    condition=Q(("team__isnull", True), ("project__isnull", True), _connector="XOR"),
                    name="a_gate_is_of_a_team_or_of_a_project",
                ),
                models.UniqueConstraint(
                    fields=("team", "project", "action"), name="a_gate_is_closed_once", nulls_distinct=False
                ),
            ],
        ),
        table(
            "Storage",
            id=ID,
            key=models.CharField(
                max_length=64,
                unique=True,
                help_text="random, created by the first agent that used the folder",
            ),
            total_bytes=models.BigIntegerField(blank=True, null=True, help_text="size of its file system"),
            free_bytes=models.BigIntegerField(blank=True, null=True),
            left_out=models.PositiveIntegerField(
                default=0, help_text="number of homes that did not fit into the report"
            ),
            listed_at=models.DateTimeField(help_text="time at which the agents last listed the homes"),
        ),
        table(
            "Host",
            id=ID,
            name=models.CharField(max_length=63, unique=True),
            labels=models.JSONField(blank=True, default=dict),
            simulated=flag("True: its NVML readings are simulated"),
            hardware=models.JSONField(
                blank=True, default=dict, help_text="facts of the machine in the agent's last report"
            ),
            isolation=optional_text(20, help_text="bubblewrap or plain, from the agent's report"),
            cpu_milli=models.PositiveIntegerField(default=0),
            memory_mib=models.PositiveIntegerField(default=0),
            agent_version=optional_text(40),
            boot_id=optional_text(64),
            agent_instance=optional_text(64, help_text="random per agent installation; identifies a clone"),
            credential_hash=optional_text(64),
            credential_expires_at=optional_time(),
            lease_state=models.CharField(
                max_length=10, default="joining", choices=spaced("joining", "alive", "suspect", "silent")
            ),
            admin_state=models.CharField(
                max_length=12,
                default="in_service",
                choices=spaced("in_service", "cordoned", "draining", "maintenance"),
            ),
            repair_state=models.CharField(
                max_length=12,
                default="well",
                choices=REPAIR_STATES,
            ),
            state_reason=optional_text(300, help_text="reason of its state; empty if in service"),
            refused_agent=models.JSONField(
                blank=True,
                null=True,
                help_text="the last rejected agent: instance, boot_id, reason, at",
            ),
            last_sync_at=optional_time(),
            silent_since=optional_time(),
            created_at=models.DateTimeField(),
            pool=models.ForeignKey("scheduler.pool", PROTECT, related_name="hosts"),
            storage=optional_link(
                "scheduler.storage", SET_NULL, help_text="storage of its homes", related_name="hosts"
            ),
            tripped_at=optional_time(
                "time since which too many attempts of different workloads failed on it"
            ),
            isolation_level=models.CharField(
                max_length=12,
                default="none",
                choices=ISOLATION_LEVELS,
                help_text="isolation that it provides, from its report",
            ),
            agent_start=optional_text(
                64, help_text="start id of the last agent; identifies a copy of its state folder"
            ),
            public_key=optional_text(
                60, help_text="Ed25519, base64; created on the host and registered at the join"
            ),
            agent_before_heard_at=optional_time("last sync of the previous agent"),
            disk_full=flag("True: its agent reports a full disk and starts no new work"),
            disk_full_since=optional_time("time since which its agent reports this"),
        ),
        table(
            "Gpu",
            id=ID,
            index=models.PositiveSmallIntegerField(),
            uuid=models.CharField(max_length=80, unique=True),
            model=models.CharField(max_length=60),
            memory_mib=models.PositiveIntegerField(),
            compute_capability=models.PositiveSmallIntegerField(
                default=0, help_text="CUDA compute capability times ten: 90 for 9.0"
            ),
            nvlink_group=models.PositiveSmallIntegerField(blank=True, null=True),
            numa_node=models.PositiveSmallIntegerField(blank=True, null=True),
            pci_bus_id=optional_text(32),
            repair_state=models.CharField(
                max_length=12,
                default="well",
                choices=REPAIR_STATES,
            ),
            state_reason=optional_text(300),
            retired_at=optional_time("True: its host no longer reports it"),
            created_at=models.DateTimeField(),
            host=models.ForeignKey("scheduler.host", PROTECT, related_name="gpus"),
            missing_since=optional_time(
                "time since which its host does not report it; empty: reported, or removed by an operator"
            ),
            constraints=[
                models.UniqueConstraint(
                    condition=Q(("retired_at__isnull", True)),
                    fields=("host", "index"),
                    name="one_gpu_per_host_and_index",
                )
            ],
        ),
        table(
            "HostStateChange",
            id=ID,
            lease_state=models.CharField(max_length=10),
            admin_state=models.CharField(max_length=12),
            repair_state=models.CharField(max_length=12),
            reason=optional_text(300),
            at=models.DateTimeField(),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="state_changes"),
            indexes=[models.Index(fields=["host", "at"], name="scheduler_h_host_id_872f02_idx")],
        ),
        table(
            "JoinToken",
            id=ID,
            token_hash=models.CharField(max_length=64, unique=True),
            created_at=models.DateTimeField(),
            expires_at=models.DateTimeField(),
            used_at=optional_time(),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="join_tokens"),
        ),
        table(
            "MaintenanceWindow",
            id=ID,
            start=models.DateTimeField(),
            end=models.DateTimeField(),
            reason=models.CharField(max_length=300),
            created_at=models.DateTimeField(),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="maintenance_windows"),
            constraints=[
                models.CheckConstraint(
                    condition=Q(("end__gt", F("start"))), name="maintenance_ends_after_its_start"
                )
            ],
        ),
        table(
            "Unit",
            id=ID,
            profile=optional_text(30, help_text="MIG profile; empty: the whole GPU"),
            uuid=models.CharField(max_length=80, help_text="value for CUDA_VISIBLE_DEVICES"),
            slots=BigIntegerRangeField(),
            memory_mib=models.PositiveIntegerField(),
            retired_at=optional_time(),
            created_at=models.DateTimeField(),
            gpu=models.ForeignKey("scheduler.gpu", PROTECT, related_name="units"),
            constraints=[
                ExclusionConstraint(
                    condition=Q(("retired_at__isnull", True)),
                    expressions=[("slots", "&&")],
                    name="units_of_a_gpu_do_not_overlap",
                )
            ],
        ),
        table(
            "GpuStateChange",
            id=ID,
            repair_state=models.CharField(max_length=12),
            reason=optional_text(300),
            at=models.DateTimeField(),
            gpu=models.ForeignKey("scheduler.gpu", CASCADE, related_name="state_changes"),
            indexes=[models.Index(fields=["gpu", "at"], name="scheduler_g_gpu_id_d7ab3b_idx")],
        ),
        table(
            "Volume",
            id=ID,
            name=models.CharField(max_length=150, db_index=True),
            size_bytes=models.BigIntegerField(
                blank=True, null=True, help_text="space used on the disk; empty: unknown"
            ),
            size_complete=models.BooleanField(default=True, help_text="False: the size is a lower bound"),
            files=models.BigIntegerField(blank=True, null=True),
            changed_at=optional_time("time of the newest change in it"),
            measured_at=optional_time(),
            storage=models.ForeignKey("scheduler.storage", CASCADE, related_name="volumes"),
            constraints=[
                models.UniqueConstraint(fields=("storage", "name"), name="a_home_is_once_in_a_storage")
            ],
        ),
        table(
            "Series",
            id=ID,
            public_id=PUBLIC_ID,
            name=models.CharField(max_length=80),
            weekdays=ArrayField(models.PositiveSmallIntegerField(), help_text="0 is Monday"),
            starts_at=models.TimeField(help_text="local time in its time zone"),
            ends_at=models.TimeField(
                help_text="local time; if it is not after the start, it is on the next day"
            ),
            time_zone=models.CharField(max_length=60),
            first_day=models.DateField(),
            last_day=models.DateField(),
            created_at=models.DateTimeField(),
            owner=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, related_name="+"),
            pool=models.ForeignKey("scheduler.pool", PROTECT, related_name="+"),
            project=models.ForeignKey("scheduler.project", PROTECT, related_name="+"),
        ),
        table(
            "Reservation",
            id=ID,
            **REQUEST,
            public_id=PUBLIC_ID,
            name=models.CharField(max_length=80),
            start=models.DateTimeField(),
            end=models.DateTimeField(),
            state=models.CharField(
                max_length=10,
                default="confirmed",
                choices=spaced("confirmed", "active", "over", "released", "cancelled"),
            ),
            may_exceed_guarantee=flag(),
            first_used_at=optional_time(),
            ended_at=optional_time("time at which it ended, was released or was cancelled"),
            created_at=models.DateTimeField(),
            owner=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, related_name="reservations"),
            pool=models.ForeignKey("scheduler.pool", PROTECT, related_name="reservations"),
            project=models.ForeignKey("scheduler.project", PROTECT, related_name="reservations"),
            reason_at=optional_time("time since which it has this reason"),
            reason_code=optional_text(
                40, help_text="reason why it started without units; empty if it has units"
            ),
            reason_numbers=models.JSONField(blank=True, default=dict),
            series=optional_link(
                "scheduler.series",
                PROTECT,
                help_text="series of a recurring reservation",
                related_name="occurrences",
            ),
            labels_preferred=models.JSONField(
                blank=True, default=dict, help_text="hosts with more of these labels are preferred"
            ),
            spread=flag("spread over hosts that share as little as possible"),
            moved_at=optional_time("time at which it last released unusable GPUs"),
            moved_from=optional_text(200, help_text="hosts of the GPUs that it released"),
            indexes=[models.Index(fields=["pool", "end"], name="scheduler_r_pool_id_8afb0f_idx")],
            constraints=[
                models.CheckConstraint(
                    condition=Q(("end__gt", F("start"))), name="a_reservation_ends_after_its_start"
                )
            ],
        ),
        table(
            "BoundUnit",
            id=ID,
            slots=BigIntegerRangeField(),
            period=DateTimeRangeField(),
            reservation=models.ForeignKey("scheduler.reservation", PROTECT, related_name="bound_units"),
            unit=models.ForeignKey("scheduler.unit", PROTECT),
            constraints=[
                ExclusionConstraint(
                    expressions=[("slots", "&&"), ("period", "&&")], name="a_slot_is_bound_to_one_reservation"
                )
            ],
        ),
        table(
            "JobArray",
            id=ID,
            public_id=PUBLIC_ID,
            name=models.CharField(max_length=80),
            indices=models.CharField(max_length=200, help_text="as requested, such as 0-9 or 1,3,5-9:2"),
            most_at_once=models.PositiveIntegerField(
                blank=True, null=True, help_text="number of tasks that may run at once; empty: all"
            ),
            created_at=models.DateTimeField(),
            owner=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, related_name="+"),
            pool=models.ForeignKey("scheduler.pool", PROTECT, related_name="+"),
            project=models.ForeignKey("scheduler.project", PROTECT, related_name="+"),
        ),
        table(
            "Workload",
            id=ID,
            **REQUEST,
            public_id=PUBLIC_ID,
            kind=models.CharField(max_length=10, choices=titled("notebook", "job")),
            type=models.CharField(
                max_length=12, choices=titled("training", "inference", "interactive", "other")
            ),
            name=models.CharField(max_length=80),
            command=models.TextField(
                blank=True, default="", help_text="a job's shell command; empty for a notebook"
            ),
            environment=models.JSONField(blank=True, default=dict),
            priority=models.PositiveSmallIntegerField(default=1, choices=PRIORITIES),
            preemptible=flag(),
            max_runtime_seconds=models.PositiveIntegerField(),
            predicted_seconds=models.PositiveIntegerField(
                help_text="fixed at submission, never above max_runtime_seconds"
            ),
            most_retries=models.PositiveSmallIntegerField(default=0),
            state=models.CharField(
                max_length=10,
                default="queued",
                choices=spaced("queued", "placed", "starting", "running", "notice", "stopping", "ended"),
            ),
            attempt=models.PositiveIntegerField(default=0, help_text="number of its placements"),
            submitted_at=models.DateTimeField(),
            queued_at=models.DateTimeField(help_text="start of its last wait"),
            not_before=optional_time(),
            started_at=optional_time("start of its first run"),
            ended_at=optional_time(),
            outcome=optional_text(30, help_text="reason code after its end"),
            outcome_numbers=models.JSONField(blank=True, default=dict),
            reason_code=optional_text(40, help_text="reason why it waits or started"),
            reason_numbers=models.JSONField(blank=True, default=dict),
            position=models.PositiveIntegerField(blank=True, null=True),
            expected_start=optional_time(),
            blockers=optional_array(models.BigIntegerField()),
            borrowed_slots=models.PositiveIntegerField(default=0),
            earmarked_units=optional_array(
                models.BigIntegerField(), "units from which others are evicted for it"
            ),
            checkpoint_at=optional_time(),
            stop_requested=optional_text(30, help_text="reason code of a requested stop"),
            gone_by=optional_time("time at which the last evicted workload ends at the latest"),
            failures=models.PositiveSmallIntegerField(
                default=0, help_text="attempts that failed by their own fault"
            ),
            lost_attempts=models.PositiveSmallIntegerField(
                default=0, help_text="attempts that failed because of a host, a GPU or a start"
            ),
            idle_warned_at=optional_time(),
            keep_until=optional_time("not stopped as idle before this time, as its owner requested"),
            simulated=flag("part of the simulated history; never ran"),
            evicted_by=optional_link("scheduler.workload", SET_NULL, related_name="+"),
            evicted_for_reservation=optional_link("scheduler.reservation", SET_NULL, related_name="+"),
            evicted_for_workload=optional_link("scheduler.workload", SET_NULL, related_name="+"),
            owner=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, related_name="workloads"),
            pool=models.ForeignKey("scheduler.pool", PROTECT, related_name="workloads"),
            project=models.ForeignKey("scheduler.project", PROTECT, related_name="workloads"),
            reservation=optional_link("scheduler.reservation", PROTECT, related_name="workloads"),
            array_index=models.PositiveIntegerField(blank=True, null=True),
            held_back=flag("task that waits for the array's limit of running tasks"),
            labels_preferred=models.JSONField(
                blank=True, default=dict, help_text="hosts with more of these labels are preferred"
            ),
            spread=flag("spread over hosts that share as little as possible"),
            waits_for=optional_array(models.BigIntegerField(), "number of workloads whose end it waits for"),
            wanted_by=optional_time("deadline; informative only"),
            array=optional_link(
                "scheduler.jobarray",
                PROTECT,
                help_text="array of this task; empty: not a task",
                related_name="tasks",
            ),
            waits_for_arrays=optional_array(
                models.BigIntegerField(), "number of arrays whose end it waits for"
            ),
            if_member_ends=models.CharField(
                max_length=7,
                default="restart",
                choices=[
                    ("restart", "restart all members, up to the retry limit"),
                    ("end", "end all members"),
                ],
                help_text="rule for failures of a job on several hosts",
            ),
            avoids=optional_array(
                models.BigIntegerField(), "hosts on which it could not start; others are preferred"
            ),
            avoids_until=optional_time(),
            homes=optional_link(
                "scheduler.storage",
                SET_NULL,
                help_text="home folder of its last checkpoint",
                related_name="+",
            ),
            indexes=[
                models.Index(fields=["pool", "state"], name="scheduler_w_pool_id_f4b672_idx"),
                models.Index(
                    condition=Q(("state", "ended"), _negated=True),
                    fields=["state"],
                    name="workloads_not_ended",
                ),
                models.Index(fields=["owner", "-submitted_at"], name="scheduler_w_owner_i_d19f30_idx"),
                models.Index(fields=["project", "-submitted_at"], name="scheduler_w_project_06168d_idx"),
                models.Index(condition=Q(("held_back", True)), fields=["array"], name="tasks_held_back"),
            ],
        ),
        table(
            "Run",
            id=ID,
            attempt=models.PositiveIntegerField(),
            rank=models.PositiveSmallIntegerField(default=0),
            generation=models.BigIntegerField(),
            public_id=PUBLIC_ID,
            state=models.CharField(
                max_length=10,
                default="placed",
                choices=spaced("placed", "starting", "running", "stopping", "ended"),
            ),
            placed_at=models.DateTimeField(),
            starting_at=optional_time(),
            running_at=optional_time(),
            ready_at=optional_time("time at which the notebook first answered"),
            ended_at=optional_time(),
            outcome=optional_text(30),
            exit_code=models.IntegerField(blank=True, null=True),
            checkpoint_at=optional_time(),
            step=optional_text(200, help_text="the last step that the agent reported"),
            missing_since=optional_time("time since which its agent does not report it"),
            activity=models.JSONField(
                blank=True,
                default=dict,
                help_text="activity of a notebook: busy kernels, connections, time of the last activity",
            ),
            host=models.ForeignKey("scheduler.host", PROTECT, related_name="runs"),
            workload=models.ForeignKey("scheduler.workload", PROTECT, related_name="runs"),
            prepared_at=optional_time(
                "time at which this member of a gang was ready and began to wait for the others"
            ),
            grace_seconds=models.PositiveIntegerField(
                default=30,
                help_text="grace period of the pool at the time of placement; the shim uses this value",
            ),
            checkpoint_told=optional_time(
                "checkpoint_at by the clock of the host, to detect a new checkpoint"
            ),
            saved=flag("True: it has acknowledged a checkpoint since its notice"),
            gpu_events=models.JSONField(
                blank=True,
                default=list,
                help_text="hardware events of its GPUs that explain its failure, such as xid:79",
            ),
            indexes=[
                models.Index(
                    condition=Q(("state", "ended"), _negated=True),
                    fields=["host"],
                    name="runs_of_a_host_not_ended",
                )
            ],
            constraints=[
                models.UniqueConstraint(
                    fields=("workload", "attempt", "rank"), name="one_run_per_attempt_and_rank"
                ),
                models.UniqueConstraint(
                    fields=("host", "generation"), name="a_generation_is_used_once_per_host"
                ),
            ],
        ),
        table(
            "Command",
            id=ID,
            verb=models.CharField(max_length=10, choices=titled("start", "notice", "stop")),
            code=optional_text(40, help_text="reason code that the workload receives"),
            stop_at=optional_time("time of the stop that a notice announces"),
            created_at=models.DateTimeField(),
            done_at=optional_time(),
            host=models.ForeignKey("scheduler.host", PROTECT, related_name="commands"),
            run=models.ForeignKey("scheduler.run", PROTECT, related_name="commands"),
            indexes=[
                models.Index(
                    condition=Q(("done_at__isnull", True)), fields=["host"], name="open_commands_of_a_host"
                )
            ],
            constraints=[
                models.UniqueConstraint(fields=("run", "verb"), name="one_command_per_run_and_verb")
            ],
        ),
        table(
            "Decision",
            id=ID,
            kind=models.CharField(
                max_length=10, choices=titled("placed", "evicted", "refused", "restarted", "ended")
            ),
            code=models.CharField(max_length=40),
            numbers=models.JSONField(default=dict),
            epoch=models.BigIntegerField(),
            at=models.DateTimeField(),
            for_reservation=optional_link("scheduler.reservation", SET_NULL, related_name="+"),
            for_workload=optional_link("scheduler.workload", SET_NULL, related_name="+"),
            workload=models.ForeignKey("scheduler.workload", CASCADE, related_name="decisions"),
            indexes=[
                models.Index(fields=["workload", "-at"], name="scheduler_d_workloa_0084c6_idx"),
                models.Index(fields=["-at"], name="scheduler_d_at_ecef68_idx"),
            ],
        ),
        table(
            "Allocation",
            id=ID,
            slots=BigIntegerRangeField(),
            period=DateTimeRangeField(),
            borrowed=flag(),
            end_code=optional_text(
                30, help_text="reason of the stop or the end, which decides how its time is charged"
            ),
            project=models.ForeignKey("scheduler.project", PROTECT, related_name="+"),
            reservation=optional_link("scheduler.reservation", PROTECT, related_name="allocations"),
            run=models.ForeignKey("scheduler.run", PROTECT, related_name="allocations"),
            unit=models.ForeignKey("scheduler.unit", PROTECT, related_name="allocations"),
            workload=models.ForeignKey("scheduler.workload", PROTECT, related_name="allocations"),
            indexes=[
                models.Index(fields=["workload"], name="scheduler_a_workloa_12f5a0_idx"),
                models.Index(
                    condition=Q(("period__upper_inf", True)),
                    fields=["unit"],
                    name="open_allocations_of_a_unit",
                ),
            ],
            constraints=[
                ExclusionConstraint(
                    expressions=[("slots", "&&"), ("period", "&&")], name="a_slot_is_held_once_at_any_instant"
                )
            ],
        ),
        table(
            "Dependency",
            id=ID,
            condition=models.CharField(
                max_length=6,
                default="ok",
                choices=[("ok", "finished"), ("any", "ended"), ("not_ok", "ended without success")],
            ),
            settled_at=optional_time("time at which the dependency was met or became impossible"),
            on=optional_link("scheduler.workload", CASCADE, related_name="dependents"),
            workload=models.ForeignKey("scheduler.workload", CASCADE, related_name="dependencies"),
            on_array=optional_link("scheduler.jobarray", CASCADE, related_name="dependents"),
            indexes=[
                models.Index(
                    condition=Q(("settled_at", None)), fields=["on"], name="dependencies_not_settled"
                ),
                models.Index(
                    condition=Q(("settled_at", None)), fields=["on_array"], name="waiting_for_arrays"
                ),
            ],
            constraints=[
                models.UniqueConstraint(fields=("workload", "on"), name="a_workload_waits_for_another_once"),
                models.CheckConstraint(
                    condition=Q(("workload__gt", F("on"))), name="a_workload_waits_for_earlier_ones"
                ),
                models.UniqueConstraint(
                    fields=("workload", "on_array"), name="a_workload_waits_for_an_array_once"
                ),
                models.CheckConstraint(
                    condition=Q(("on__isnull", True), ("on_array__isnull", True), _connector="XOR"),
                    name="a_dependency_is_on_a_workload_or_on_an_array",
                ),
            ],
        ),
        table(
            "Recording",
            id=ID,
            at=models.DateTimeField(db_index=True),
            planned_at=models.BigIntegerField(help_text="time of the plan, in whole seconds since the epoch"),
            epoch=models.BigIntegerField(),
            parts=models.JSONField(help_text="digest of the part of each table"),
            plan_sha256=models.CharField(max_length=64, help_text="SHA-256 of the plan's canonical text"),
            placed=models.PositiveIntegerField(),
            evicted=models.PositiveIntegerField(),
            refused=models.PositiveIntegerField(),
            size_bytes=models.PositiveBigIntegerField(
                default=0, help_text="bytes of the parts that it stored first, compressed"
            ),
        ),
        table(
            "RecordingPart",
            digest=models.CharField(primary_key=True, max_length=64, serialize=False),
            body=models.BinaryField(),
            used_at=models.DateTimeField(
                db_index=True, help_text="approximate time of the last recording that refers to it"
            ),
        ),
        table(
            "StartEstimate",
            id=ID,
            attempt=models.PositiveIntegerField(help_text="number of placements before this wait"),
            told_at=models.DateTimeField(),
            expected_start=models.DateTimeField(),
            latest=optional_time("upper end of the announced range; empty: none was announced"),
            over_at=optional_time("time at which it was placed or left the queue"),
            started=flag("True: it was placed"),
            pool=models.ForeignKey("scheduler.pool", CASCADE, related_name="+"),
            workload=models.ForeignKey("scheduler.workload", CASCADE, related_name="start_estimates"),
            indexes=[
                models.Index(fields=["pool", "-over_at"], name="scheduler_s_pool_id_fbe862_idx"),
                models.Index(
                    condition=Q(("over_at", None)),
                    fields=["expected_start"],
                    name="estimates_of_those_who_wait",
                ),
            ],
            constraints=[
                models.UniqueConstraint(fields=("workload", "attempt"), name="one_estimate_per_wait")
            ],
        ),
        table(
            "Diagnostic",
            id=ID,
            public_id=PUBLIC_ID,
            why=models.CharField(
                max_length=12,
                choices=[
                    ("operator", "requested"),
                    ("quarantined", "after its quarantine"),
                    ("tripped", "after too many failed attempts on its host"),
                    ("periodic", "periodic, while idle"),
                ],
            ),
            state=models.CharField(
                max_length=8,
                default="wanted",
                choices=spaced("wanted", "running", "passed", "failed", "stopped"),
            ),
            tool=optional_text(
                40, help_text="tool that ran: dcgm, own, simulated or the name of an operator's diagnostic"
            ),
            simulated=flag("True: nothing was measured"),
            checks=models.JSONField(blank=True, default=list, help_text="per check: name, passed, numbers"),
            detail=optional_text(300),
            created_at=models.DateTimeField(),
            started_at=optional_time(),
            ended_at=optional_time(),
            gpu=models.ForeignKey("scheduler.gpu", CASCADE, related_name="diagnostics"),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="diagnostics"),
            indexes=[
                models.Index(fields=["gpu", "-created_at"], name="scheduler_d_gpu_id_3c3f13_idx"),
                models.Index(
                    condition=Q(("state__in", ("wanted", "running"))),
                    fields=["host"],
                    name="open_diagnostics_of_a_host",
                ),
            ],
            constraints=[
                models.UniqueConstraint(
                    condition=Q(("state__in", ("wanted", "running"))),
                    fields=("gpu",),
                    name="one_open_diagnostic_per_gpu",
                )
            ],
        ),
        table(
            "ClockReading",
            id=SINGLE_ROW_ID,
            wall=models.DateTimeField(),
            machine=models.CharField(max_length=120),
            uptime=models.FloatField(help_text="seconds on CLOCK_BOOTTIME of that machine"),
            set_at=optional_time("time at which a step of the wall clock was last detected"),
            constraints=[models.CheckConstraint(condition=Q(("id", 1)), name="there_is_one_clock_reading")],
        ),
        table(
            "GeometryChange",
            id=ID,
            public_id=PUBLIC_ID,
            before=models.JSONField(
                blank=True, default=list, help_text="profiles of its units; empty: one whole GPU"
            ),
            parts=models.JSONField(
                blank=True, default=list, help_text="profile and start of each unit; empty: one whole GPU"
            ),
            state=models.CharField(
                max_length=10,
                default="draining",
                choices=spaced("draining", "changing", "done", "failed", "withdrawn"),
            ),
            detail=optional_text(300, help_text="report of the host about the change"),
            created_at=models.DateTimeField(),
            told_at=optional_time("time at which the GPU was free and its host received the command"),
            ended_at=optional_time(),
            gpu=models.ForeignKey("scheduler.gpu", CASCADE, related_name="geometry_changes"),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="geometry_changes"),
            indexes=[
                models.Index(fields=["gpu", "-created_at"], name="scheduler_g_gpu_id_f64f71_idx"),
                models.Index(
                    condition=Q(("state__in", ("draining", "changing"))),
                    fields=["host"],
                    name="open_geometry_of_a_host",
                ),
            ],
            constraints=[
                models.UniqueConstraint(
                    condition=Q(("state__in", ("draining", "changing"))),
                    fields=("gpu",),
                    name="one_open_change_of_geometry_per_gpu",
                )
            ],
        ),
        migrations.RunSQL(GENERATION),
        migrations.RunSQL(ONE_LEADER),
        migrations.RunSQL(UNCOMPRESSED_PARTS),
        migrations.RunSQL(ALLOCATIONS_ARE_HISTORY),
        migrations.RunSQL(NO_STRANGER_ON_BOUND_SLOTS),
        migrations.RunSQL(change_feed.CREATE_CHANGE_TABLE),
        migrations.RunSQL("\n".join(WATCHED)),
    ]
