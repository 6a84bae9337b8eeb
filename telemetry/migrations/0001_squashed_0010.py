"""Create the tables, daily partitions, guards and health rules of version 0.0."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import CASCADE, PROTECT, F, Q

from scheduler.migrations._tables import (
    ID,
    SINGLE_ROW_ID,
    flag,
    optional_link,
    optional_text,
    optional_time,
    table,
    titled,
)
from telemetry.migrations._health_rules import rules_of

ACTIONS = titled("note", "warn", "cordon", "drain", "quarantine_gpu")
COUNTS = [("events", "events"), ("people", "people's work")]
RESOLUTIONS = [(60, "Minute"), (3600, "Hour"), (86400, "Day")]

SAMPLES = """
CREATE TABLE telemetry_sample (
    unit_id bigint NOT NULL,
    ts timestamptz NOT NULL,
    allocation_id bigint,
    utilisation double precision,
    sm_active double precision,
    tensor_active double precision,
    memory_used_mib integer,
    memory_utilisation double precision,
    power_w double precision,
    energy_mj bigint,
    temperature_c double precision,
    memory_temperature_c double precision,
    sm_clock_mhz integer,
    throttle_reasons bigint,
    pcie_rx_kib bigint,
    pcie_tx_kib bigint,
    nvlink_kib bigint,
    processes integer,
    stray_processes integer
) PARTITION BY RANGE (ts);
CREATE INDEX telemetry_sample_unit_ts ON telemetry_sample (unit_id, ts);
CREATE TABLE telemetry_sample_default PARTITION OF telemetry_sample DEFAULT;

-- Security definer: the program's own role may not create or drop tables, only through these two functions. They find
-- tables in the schema only, whatever their caller has set.
CREATE FUNCTION telemetry_make_partitions(first_day date, days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    made integer := 0;
    day date;
    part text;
    low timestamptz;
    high timestamptz;
BEGIN
    IF days < 1 OR days > 400 THEN
        RAISE EXCEPTION 'days: % is not between 1 and 400', days;
    END IF;
    FOR day IN SELECT first_day + n FROM generate_series(0, days - 1) AS n LOOP
        part := 'telemetry_sample_' || to_char(day, 'YYYYMMDD');
        IF to_regclass(part) IS NOT NULL THEN
            CONTINUE;
        END IF;
        low := day::timestamp AT TIME ZONE 'UTC';
        high := (day + 1)::timestamp AT TIME ZONE 'UTC';
        EXECUTE format('CREATE TABLE %I (LIKE telemetry_sample INCLUDING DEFAULTS)', part);
        -- What came before its partition existed waits in the default one, and would keep this one from being attached.
        EXECUTE format(
            'WITH early AS (DELETE FROM telemetry_sample_default WHERE ts >= %L AND ts < %L RETURNING *) '
            'INSERT INTO %I SELECT * FROM early', low, high, part);
        EXECUTE format(
            'ALTER TABLE telemetry_sample ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, low, high);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;

CREATE FUNCTION telemetry_drop_samples_before(first_kept date) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    dropped integer := 0;
    part text;
BEGIN
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'telemetry_sample'::regclass AND c.relname ~ '^telemetry_sample_[0-9]{8}$'
          AND to_date(right(c.relname, 8), 'YYYYMMDD') < first_kept
    LOOP
        EXECUTE format('DROP TABLE %I', part);
        dropped := dropped + 1;
    END LOOP;
    DELETE FROM telemetry_sample_default WHERE ts < first_kept::timestamp AT TIME ZONE 'UTC';
    RETURN dropped;
END $$;
"""

# What the database refuses: edits of a ledger and of closed months.
GUARDS = """
CREATE FUNCTION telemetry_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of %: its rows are only ever added', TG_OP, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER charges_are_only_added BEFORE UPDATE OR DELETE ON telemetry_charge
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();
CREATE TRIGGER prices_are_only_added BEFORE UPDATE OR DELETE ON telemetry_price
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();
CREATE TRIGGER cost_centres_are_only_added BEFORE UPDATE OR DELETE ON telemetry_costcentre
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();

CREATE FUNCTION telemetry_refuse_charge_in_closed_month() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    month_state text;
BEGIN
    IF NEW.corrects_id IS NULL AND NEW.month <> date_trunc('month', NEW.start AT TIME ZONE 'UTC')::date THEN
        RAISE EXCEPTION 'month: % is not the month of %, and the line corrects none', NEW.month, NEW.start
            USING ERRCODE = 'check_violation';
    END IF;
    -- The lock makes a close wait for the charges on their way, and them for it.
    SELECT state INTO month_state FROM telemetry_statement WHERE month = NEW.month FOR SHARE;
    IF month_state IS NOT NULL AND month_state <> 'open' THEN
        RAISE EXCEPTION 'month: % is %, a charge goes into an open month', NEW.month, month_state
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER charges_go_into_open_months BEFORE INSERT ON telemetry_charge
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_charge_in_closed_month();

CREATE FUNCTION telemetry_refuse_price_in_the_past() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM telemetry_charge WHERE model = NEW.model AND "end" > NEW.valid_from
               AND (NEW.pool_id IS NULL OR pool_id = NEW.pool_id)) THEN
        RAISE EXCEPTION 'valid_from: time after % is already charged, a price begins later', NEW.valid_from
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER prices_begin_after_what_is_charged BEFORE INSERT ON telemetry_price
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_price_in_the_past();

CREATE FUNCTION telemetry_refuse_change_of_closed_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'closed' OR (TG_OP = 'DELETE' AND OLD.state <> 'open') THEN
        RAISE EXCEPTION 'statement of %: it is %, nothing changes it', OLD.month, OLD.state
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER closed_statements_stay BEFORE UPDATE OR DELETE ON telemetry_statement
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change_of_closed_statement();

CREATE FUNCTION telemetry_refuse_line_of_closed_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION '% of %: its rows are only ever added', TG_OP, TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF (SELECT state FROM telemetry_statement WHERE id = NEW.statement_id) <> 'closing' THEN
        RAISE EXCEPTION 'statement %: lines are written only while it closes', NEW.statement_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER lines_of_closed_statements_stay BEFORE INSERT OR UPDATE OR DELETE ON telemetry_statementline
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_line_of_closed_statement();
"""


def insert_rows(apps, schema_editor):
    """Insert the health rules with their defaults, and the retention."""
    rule = apps.get_model("telemetry", "HealthRule")
    rule.objects.bulk_create(
        rule(
            code=row.code,
            meaning=row.meaning,
            action=row.action,
            repeats=row.repeats,
            window_seconds=row.window_seconds,
            counts=row.counts,
            source=row.source,
            elsewhere=row.elsewhere,
            default_action=row.action,
            default_repeats=row.repeats,
            default_window_seconds=row.window_seconds,
            default_counts=row.counts,
        )
        for row in rules_of("0001")
    )
    apps.get_model("telemetry", "Retention").objects.create(pk=1)


class Migration(migrations.Migration):
    initial = True
    replaces = [
        ("telemetry", "0001_initial"),
        ("telemetry", "0002_partitions_and_guards"),
        ("telemetry", "0003_health_rules"),
        ("telemetry", "0004_search_path"),
        ("telemetry", "0005_strays_and_more_rules"),
        ("telemetry", "0006_whose_work_is_behind_events"),
        ("telemetry", "0007_what_health_rules_began_with"),
        ("telemetry", "0008_hardware_that_says_nothing"),
        ("telemetry", "0009_budgets_of_gpu_hours"),
        ("telemetry", "0010_strays_that_were_ended"),
    ]
    dependencies = [("scheduler", "0001_squashed_0027")]

    operations = [
        table(
            "Sample",
            pk=models.CompositePrimaryKey(
                "unit", "ts", blank=True, editable=False, primary_key=True, serialize=False
            ),
            ts=models.DateTimeField(),
            allocation_id=models.BigIntegerField(null=True),
            utilisation=models.FloatField(null=True),
            sm_active=models.FloatField(null=True),
            tensor_active=models.FloatField(null=True),
            memory_used_mib=models.IntegerField(null=True),
            memory_utilisation=models.FloatField(null=True),
            power_w=models.FloatField(null=True),
            energy_mj=models.BigIntegerField(null=True),
            temperature_c=models.FloatField(null=True),
            memory_temperature_c=models.FloatField(null=True),
            sm_clock_mhz=models.IntegerField(null=True),
            throttle_reasons=models.BigIntegerField(null=True),
            pcie_rx_kib=models.BigIntegerField(null=True),
            pcie_tx_kib=models.BigIntegerField(null=True),
            nvlink_kib=models.BigIntegerField(null=True),
            processes=models.IntegerField(null=True),
            stray_processes=models.IntegerField(null=True),
            options={"db_table": "telemetry_sample", "managed": False},
        ),
        table(
            "ChargedUntil",
            gpu=models.OneToOneField(
                "scheduler.gpu", CASCADE, primary_key=True, serialize=False, related_name="charged"
            ),
            since=models.DateTimeField(),
            until=models.DateTimeField(),
        ),
        table(
            "HealthRule",
            id=ID,
            code=models.CharField(max_length=40, unique=True, help_text="xid:79, ecc:uncorrectable"),
            meaning=models.CharField(max_length=200),
            action=models.CharField(max_length=16, choices=ACTIONS),
            repeats=models.PositiveSmallIntegerField(
                default=1, help_text="number of events within the window that triggers the action"
            ),
            window_seconds=models.PositiveIntegerField(default=3600),
            source=models.CharField(max_length=200, help_text="source of the recommendation"),
            elsewhere=optional_text(300, help_text="differing recommendations, with their source"),
            counts=models.CharField(
                max_length=6,
                default="events",
                choices=COUNTS,
                help_text="people: events in the work of one person count as one, because a program can cause them",
            ),
            default_action=optional_text(16, choices=ACTIONS),
            default_repeats=models.PositiveSmallIntegerField(blank=True, null=True),
            default_window_seconds=models.PositiveIntegerField(blank=True, null=True),
            default_counts=optional_text(6, choices=COUNTS),
        ),
        table(
            "SampleWatermark",
            host=models.OneToOneField("scheduler.host", CASCADE, primary_key=True, serialize=False),
            sequence=models.BigIntegerField(default=0),
        ),
        table(
            "SettledAllocation",
            allocation=models.OneToOneField(
                "scheduler.allocation", CASCADE, primary_key=True, serialize=False
            ),
            settled_at=models.DateTimeField(),
        ),
        table(
            "SettledStateChange",
            change=models.OneToOneField(
                "scheduler.hoststatechange", CASCADE, primary_key=True, serialize=False
            ),
            settled_at=models.DateTimeField(),
        ),
        table(
            "Budget",
            id=ID,
            month=models.DateField(help_text="first day of the month"),
            amount=models.DecimalField(
                help_text="limit, in units of the measure", max_digits=14, decimal_places=2
            ),
            action=models.CharField(
                max_length=16,
                default="notify",
                choices=[
                    ("notify", "Notify"),
                    ("refuse_new", "refuse new work"),
                    ("stop_borrowing", "stop borrowing"),
                ],
            ),
            notified_percent=models.PositiveSmallIntegerField(default=0),
            project=optional_link("scheduler.project", CASCADE, related_name="budgets"),
            team=optional_link("scheduler.team", CASCADE, related_name="budgets"),
            measure=models.CharField(
                max_length=10, default="money", choices=[("money", "Money"), ("gpu_hours", "GPU-hours")]
            ),
            constraints=[
                models.CheckConstraint(
                    condition=Q(("team__isnull", True), ("project__isnull", True), _connector="XOR"),
                    name="a_budget_is_of_a_team_or_of_a_project",
                ),
                models.UniqueConstraint(
                    fields=("team", "project", "month", "measure"),
                    name="one_budget_per_month",
                    nulls_distinct=False,
                ),
            ],
        ),
        table(
            "BudgetAlert",
            id=ID,
            percent=models.PositiveSmallIntegerField(help_text="threshold in percent: 50, 80 or 100"),
            spent=models.DecimalField(max_digits=18, decimal_places=6),
            forecast=flag("True: forecast, not spent yet"),
            at=models.DateTimeField(),
            budget=models.ForeignKey("telemetry.budget", CASCADE, related_name="alerts"),
            constraints=[
                models.UniqueConstraint(
                    fields=("budget", "percent", "forecast"), name="a_threshold_is_passed_once"
                )
            ],
        ),
        table(
            "CostCentre",
            id=ID,
            code=models.CharField(max_length=40),
            valid_from=models.DateTimeField(),
            created_at=models.DateTimeField(),
            project=models.ForeignKey("scheduler.project", PROTECT, related_name="cost_centres"),
            constraints=[
                models.UniqueConstraint(
                    fields=("project", "valid_from"), name="one_cost_centre_per_project_and_date"
                )
            ],
        ),
        table(
            "HealthEvent",
            id=ID,
            event_id=models.CharField(max_length=80),
            source=models.CharField(max_length=20),
            code=models.CharField(max_length=40),
            detail=optional_text(1000),
            at=models.DateTimeField(),
            received_at=models.DateTimeField(),
            action_taken=optional_text(16),
            handled_at=models.DateTimeField(null=True),
            gpu=models.ForeignKey("scheduler.gpu", CASCADE, null=True, related_name="health_events"),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="health_events"),
            indexes=[models.Index(fields=["-at"], name="telemetry_h_at_7c1c8c_idx")],
            constraints=[
                models.UniqueConstraint(fields=("host", "event_id"), name="a_health_event_lands_once")
            ],
        ),
        table(
            "Price",
            id=ID,
            model=models.CharField(max_length=60),
            cost_per_gpu_hour=models.DecimalField(
                help_text="cost to the owner per GPU-hour", max_digits=12, decimal_places=6
            ),
            price_per_gpu_hour=models.DecimalField(
                help_text="price per GPU-hour that teams are charged", max_digits=12, decimal_places=6
            ),
            valid_from=models.DateTimeField(),
            note=optional_text(300, help_text="how the cost was calculated"),
            created_at=models.DateTimeField(),
            pool=optional_link("scheduler.pool", PROTECT, help_text="empty: every pool"),
            constraints=[
                models.UniqueConstraint(
                    fields=("pool", "model", "valid_from"),
                    name="one_price_per_model_and_date",
                    nulls_distinct=False,
                ),
                models.CheckConstraint(
                    condition=Q(("cost_per_gpu_hour__gte", 0), ("price_per_gpu_hour__gte", 0)),
                    name="prices_are_not_negative",
                ),
            ],
        ),
        table(
            "Charge",
            id=ID,
            month=models.DateField(help_text="first day of the month of its statement"),
            bucket=models.CharField(
                max_length=16,
                choices=[
                    ("used", "charged: held by a workload"),
                    ("reserved_unused", "charged: reserved but not used"),
                    ("preempted", "not charged: lost to a preemption"),
                    ("hardware_lost", "not charged: lost to hardware"),
                    ("unallocated", "free"),
                    ("unhealthy", "host or GPU out of service"),
                    ("maintenance", "in maintenance"),
                ],
            ),
            start=models.DateTimeField(),
            end=models.DateTimeField(),
            slots=models.IntegerField(help_text="840 is one GPU; negative in a reversal"),
            slot_seconds=models.BigIntegerField(help_text="slots x whole seconds; negative in a reversal"),
            used_slot_seconds=models.FloatField(
                null=True, help_text="utilisation x slots x seconds where measured"
            ),
            covered_slot_seconds=models.FloatField(null=True),
            model=models.CharField(max_length=60),
            team_name=models.CharField(max_length=80, default=""),
            project_name=models.CharField(max_length=80, default=""),
            user_name=models.CharField(max_length=150, default=""),
            workload_name=models.CharField(max_length=80, default=""),
            workload_type=models.CharField(max_length=12, default=""),
            cost_centre=models.CharField(max_length=40, default=""),
            cost=models.DecimalField(
                help_text="cost of these slot-seconds to the owner", max_digits=18, decimal_places=6
            ),
            charged=models.DecimalField(
                help_text="charge to the cost centre; 0 in uncharged buckets", max_digits=18, decimal_places=6
            ),
            reversal=flag("reverses the line that it corrects"),
            simulated=flag(),
            created_at=models.DateTimeField(),
            allocation=models.ForeignKey("scheduler.allocation", PROTECT, null=True, related_name="charges"),
            corrects=models.ForeignKey("telemetry.charge", PROTECT, null=True, related_name="corrections"),
            gpu=models.ForeignKey("scheduler.gpu", PROTECT, related_name="+"),
            pool=models.ForeignKey("scheduler.pool", PROTECT, related_name="+"),
            project=models.ForeignKey("scheduler.project", PROTECT, null=True, related_name="+"),
            reservation=models.ForeignKey(
                "scheduler.reservation", PROTECT, null=True, related_name="charges"
            ),
            team=models.ForeignKey("scheduler.team", PROTECT, null=True, related_name="+"),
            user=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, null=True, related_name="+"),
            workload=models.ForeignKey("scheduler.workload", PROTECT, null=True, related_name="charges"),
            price=models.ForeignKey("telemetry.price", PROTECT, null=True, related_name="+"),
            indexes=[
                models.Index(fields=["month", "pool"], name="telemetry_c_month_7e9b73_idx"),
                models.Index(fields=["gpu", "start"], name="telemetry_c_gpu_id_09c1a7_idx"),
                models.Index(fields=["team", "start"], name="telemetry_c_team_id_69739a_idx"),
                models.Index(fields=["allocation"], name="telemetry_c_allocat_d336ae_idx"),
            ],
            constraints=[
                models.CheckConstraint(condition=Q(("end__gt", F("start"))), name="a_charge_has_a_length"),
                models.CheckConstraint(
                    condition=Q(
                        Q(("reversal", False), ("slot_seconds__gt", 0)),
                        Q(("corrects__isnull", False), ("reversal", True), ("slot_seconds__lt", 0)),
                        _connector="OR",
                    ),
                    name="only_a_reversal_is_negative_and_it_names_its_line",
                ),
                models.UniqueConstraint(
                    condition=Q(("reversal", True)), fields=("corrects",), name="a_charge_is_taken_back_once"
                ),
            ],
        ),
        table(
            "Retention",
            id=SINGLE_ROW_ID,
            sample_days=models.PositiveSmallIntegerField(
                default=14, help_text="days of raw samples that are kept"
            ),
            minute_days=models.PositiveSmallIntegerField(
                default=30,
                help_text="days of minute rollups that are kept; hours and days are kept permanently",
            ),
            constraints=[
                models.CheckConstraint(condition=Q(("id", 1)), name="there_is_one_retention_row"),
                models.CheckConstraint(
                    condition=Q(("sample_days__gte", 2), ("minute_days__gte", 2)),
                    name="at_least_two_days_are_kept",
                ),
            ],
        ),
        table(
            "Rollup",
            id=ID,
            resolution=models.PositiveIntegerField(choices=RESOLUTIONS),
            bucket=models.DateTimeField(help_text="start of the bucket"),
            held_seconds=models.FloatField(
                help_text="seconds of the bucket in which the allocation held the unit"
            ),
            covered_seconds=models.FloatField(help_text="seconds of that time covered by samples"),
            samples=models.PositiveIntegerField(),
            utilisation_seconds=models.FloatField(
                null=True, help_text="sum of utilisation/100 x covered seconds"
            ),
            utilisation_max=models.FloatField(null=True),
            busy_seconds=models.FloatField(null=True, help_text="seconds with utilisation above zero"),
            inefficient_seconds=models.FloatField(
                null=True, help_text="busy seconds with little SM activity; empty: not measured"
            ),
            idle_seconds=models.FloatField(
                null=True, help_text="seconds with a process on the unit but without activity"
            ),
            empty_seconds=models.FloatField(null=True, help_text="seconds without any process on the unit"),
            sm_active_seconds=models.FloatField(null=True),
            tensor_active_seconds=models.FloatField(null=True),
            memory_used_max_mib=models.IntegerField(null=True),
            energy_mj=models.BigIntegerField(null=True),
            simulated=flag(),
            allocation=models.ForeignKey("scheduler.allocation", PROTECT, null=True, related_name="+"),
            unit=models.ForeignKey("scheduler.unit", PROTECT, related_name="+"),
            indexes=[
                models.Index(
                    fields=["allocation", "resolution", "bucket"], name="telemetry_r_allocat_bb5243_idx"
                )
            ],
            constraints=[
                models.UniqueConstraint(
                    fields=("resolution", "bucket", "unit", "allocation"),
                    name="one_rollup_per_bucket_unit_and_allocation",
                    nulls_distinct=False,
                )
            ],
        ),
        table(
            "RollupDue",
            id=ID,
            resolution=models.PositiveIntegerField(choices=RESOLUTIONS),
            bucket=models.DateTimeField(),
            marked_at=models.DateTimeField(),
            host=models.ForeignKey("scheduler.host", CASCADE),
            constraints=[
                models.UniqueConstraint(fields=("resolution", "bucket", "host"), name="a_bucket_is_due_once")
            ],
        ),
        table(
            "Statement",
            id=ID,
            month=models.DateField(unique=True, help_text="first day of the month"),
            state=models.CharField(
                max_length=8,
                default="open",
                choices=[
                    ("open", "Open"),
                    ("closing", "closing: no new charges, checks run"),
                    ("closed", "Closed"),
                ],
            ),
            idle_payer=models.CharField(
                max_length=10,
                default="operator",
                choices=[
                    ("operator", "the operator"),
                    ("guarantee", "teams, in proportion to their guarantees"),
                    ("use", "teams, in proportion to their use"),
                ],
            ),
            currency=optional_text(3, help_text="currency of the month, set at the close"),
            checks=models.JSONField(default=list, help_text="checks of the close, with their figures"),
            totals=models.JSONField(
                default=dict, help_text="conservation figures per pool, as decimal strings"
            ),
            digest=optional_text(64, help_text="SHA-256 of the CSV of its lines"),
            closed_at=models.DateTimeField(null=True),
            closed_by=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, null=True, related_name="+"),
        ),
        table(
            "StatementLine",
            id=ID,
            pool_name=models.CharField(max_length=80),
            cost_centre=models.CharField(max_length=40),
            team_name=models.CharField(max_length=80),
            project_name=models.CharField(max_length=80),
            workload_type=models.CharField(max_length=12),
            model=models.CharField(max_length=60),
            bucket=models.CharField(max_length=16),
            gpu_hours=models.DecimalField(max_digits=18, decimal_places=6),
            covered_share=models.FloatField(
                null=True, help_text="part of its time covered by samples; empty: none was expected"
            ),
            used_share=models.FloatField(null=True, help_text="mean utilisation where measured"),
            amount=models.DecimalField(
                help_text="amount, rounded so that the lines sum to the total",
                max_digits=14,
                decimal_places=2,
            ),
            cost=models.DecimalField(max_digits=14, decimal_places=2),
            statement=models.ForeignKey("telemetry.statement", PROTECT, related_name="lines"),
        ),
        table(
            "Batch",
            id=ID,
            sequence=models.BigIntegerField(),
            rows=models.PositiveIntegerField(),
            rejected_rows=models.PositiveIntegerField(default=0),
            received_at=models.DateTimeField(),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="batches"),
            constraints=[models.UniqueConstraint(fields=("host", "sequence"), name="a_batch_lands_once")],
        ),
        table(
            "Stray",
            id=ID,
            pid=models.PositiveIntegerField(),
            started=models.BigIntegerField(
                help_text="start in clock ticks after the boot; distinguishes a reused pid"
            ),
            user=optional_text(64),
            name=optional_text(64),
            memory_mib=models.PositiveIntegerField(
                blank=True, null=True, help_text="memory used on that GPU; empty: unknown"
            ),
            run=optional_text(40, help_text="run of a workload that does not hold this GPU"),
            done=optional_text(200, help_text="action that the host took, or its reason for taking none"),
            first_seen=models.DateTimeField(),
            last_seen=models.DateTimeField(),
            gone_at=optional_time(),
            gpu=models.ForeignKey("scheduler.gpu", CASCADE, related_name="strays"),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="strays"),
            indexes=[models.Index(fields=["host", "-last_seen"], name="telemetry_s_host_id_3c9650_idx")],
            constraints=[
                models.UniqueConstraint(
                    condition=Q(("gone_at", None)),
                    fields=("host", "gpu", "pid", "started"),
                    name="a_stray_is_there_once",
                )
            ],
        ),
        migrations.RunSQL(SAMPLES),
        migrations.RunSQL(GUARDS),
        migrations.RunPython(insert_rows),
    ]
