"""What was used, and what it costs. Rows only; samples live in daily partitions (see migrations)."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from scheduler.models import Allocation, Gpu, Host, HostStateChange, Pool, Project, Reservation, Team, Unit, Workload


class Batch(models.Model):
    """One batch of samples that an agent sent, written in the same transaction as its samples: twice lands once."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="batches")
    sequence = models.BigIntegerField()
    rows = models.PositiveIntegerField()
    rejected_rows = models.PositiveIntegerField(default=0)
    received_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "sequence"], name="a_batch_lands_once")]


class SampleWatermark(models.Model):
    """Per host: every batch up to ``sequence`` is committed, so its agent may delete them."""

    host = models.OneToOneField(Host, primary_key=True, on_delete=models.CASCADE)
    sequence = models.BigIntegerField(default=0)


class Sample(models.Model):
    """One reading of one unit; a partition of each day, made by SQL. NULL means unknown, never zero.

    Django reads it; it is written by COPY only (``telemetry/ingest/samples.py``). (unit, ts) is indexed, not unique.
    """

    pk = models.CompositePrimaryKey("unit", "ts")
    unit = models.ForeignKey(Unit, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    ts = models.DateTimeField()
    allocation_id = models.BigIntegerField(null=True)
    utilisation = models.FloatField(null=True)
    sm_active = models.FloatField(null=True)
    tensor_active = models.FloatField(null=True)
    memory_used_mib = models.IntegerField(null=True)
    memory_utilisation = models.FloatField(null=True)
    power_w = models.FloatField(null=True)
    energy_mj = models.BigIntegerField(null=True)
    temperature_c = models.FloatField(null=True)
    memory_temperature_c = models.FloatField(null=True)
    sm_clock_mhz = models.IntegerField(null=True)
    throttle_reasons = models.BigIntegerField(null=True)
    pcie_rx_kib = models.BigIntegerField(null=True)
    pcie_tx_kib = models.BigIntegerField(null=True)
    nvlink_kib = models.BigIntegerField(null=True)
    processes = models.IntegerField(null=True)
    stray_processes = models.IntegerField(null=True)

    class Meta:
        managed = False
        db_table = "telemetry_sample"


class Rollup(models.Model):
    """Use of one unit by one allocation (or by nobody) in one bucket of time. Written once per (resolution, bucket, unit,
    allocation) and written again whole when a late sample arrives. Averages are made from sums when asked."""

    class Resolution(models.IntegerChoices):
        MINUTE = 60
        HOUR = 3600
        DAY = 86400

    resolution = models.PositiveIntegerField(choices=Resolution.choices)
    bucket = models.DateTimeField(help_text="its start")
    unit = models.ForeignKey(Unit, on_delete=models.PROTECT, related_name="+")
    allocation = models.ForeignKey(Allocation, null=True, on_delete=models.PROTECT, related_name="+")
    held_seconds = models.FloatField(help_text="how long the allocation held the unit within the bucket")
    covered_seconds = models.FloatField(help_text="how much of that samples speak for")
    samples = models.PositiveIntegerField()
    utilisation_seconds = models.FloatField(null=True, help_text="sum of utilisation/100 x covered seconds")
    utilisation_max = models.FloatField(null=True)
    busy_seconds = models.FloatField(null=True, help_text="seconds with utilisation above zero")
    inefficient_seconds = models.FloatField(
        null=True, help_text="of the busy ones, with little SM activity; empty: not measured"
    )
    idle_seconds = models.FloatField(null=True, help_text="seconds with a process on it that did nothing")
    empty_seconds = models.FloatField(null=True, help_text="seconds without any process on it")
    sm_active_seconds = models.FloatField(null=True)
    tensor_active_seconds = models.FloatField(null=True)
    memory_used_max_mib = models.IntegerField(null=True)
    energy_mj = models.BigIntegerField(null=True)
    simulated = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["resolution", "bucket", "unit", "allocation"],
                name="one_rollup_per_bucket_unit_and_allocation",
                nulls_distinct=False,
            )
        ]
        indexes = [models.Index(fields=["allocation", "resolution", "bucket"])]


class RollupDue(models.Model):
    """A bucket to be rolled up again: marked by ingest in the transaction that wrote the samples."""

    resolution = models.PositiveIntegerField(choices=Rollup.Resolution.choices)
    bucket = models.DateTimeField()
    host = models.ForeignKey(Host, on_delete=models.CASCADE)
    marked_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["resolution", "bucket", "host"], name="a_bucket_is_due_once")]


class HealthRule(models.Model):
    """What is done about a hardware event; operators edit it."""

    class Action(models.TextChoices):
        NOTE = "note"
        WARN = "warn"
        CORDON = "cordon"
        DRAIN = "drain"
        QUARANTINE_GPU = "quarantine_gpu"

    class Counts(models.TextChoices):
        EVENTS = "events", "events"
        PEOPLE = "people", "people's work"

    class Origin(models.TextChoices):
        DEFAULT = "default", "as it began"
        CHANGED = "changed", "changed"
        ADDED = "added", "added"

    code = models.CharField(max_length=40, unique=True, help_text="xid:79, ecc:uncorrectable")
    meaning = models.CharField(max_length=200)
    action = models.CharField(max_length=16, choices=Action.choices)
    repeats = models.PositiveSmallIntegerField(default=1, help_text="acts at this many within the window")
    window_seconds = models.PositiveIntegerField(default=3600)
    counts = models.CharField(
        max_length=6,
        choices=Counts.choices,
        default=Counts.EVENTS,
        help_text="people: a program can bring it about, so those of one person's work count as one",
    )
    source = models.CharField(max_length=200, help_text="who recommends it")
    elsewhere = models.CharField(
        max_length=300, default="", blank=True, help_text="where others do something else, and their source"
    )
    # What it is put back to. An operator's own rule has nothing to go back to.
    default_action = models.CharField(max_length=16, choices=Action.choices, default="", blank=True)
    default_repeats = models.PositiveSmallIntegerField(null=True, blank=True)
    default_window_seconds = models.PositiveIntegerField(null=True, blank=True)
    default_counts = models.CharField(max_length=6, choices=Counts.choices, default="", blank=True)

    def __str__(self) -> str:
        return self.code

    @property
    def origin(self) -> str:
        """One of Origin."""
        if not self.default_action:
            return self.Origin.ADDED
        is_default = (self.action, self.repeats, self.window_seconds, self.counts) == self.default
        return self.Origin.DEFAULT if is_default else self.Origin.CHANGED

    @property
    def default(self) -> tuple[str, int | None, int | None, str]:
        """Action, repeats, window in seconds and what counts, as it began; empty and None of a rule that an operator added."""
        return self.default_action, self.default_repeats, self.default_window_seconds, self.default_counts


class HealthEvent(models.Model):
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="health_events")
    gpu = models.ForeignKey(Gpu, null=True, on_delete=models.CASCADE, related_name="health_events")
    event_id = models.CharField(max_length=80)
    source = models.CharField(max_length=20)
    code = models.CharField(max_length=40)
    detail = models.CharField(max_length=1000, default="", blank=True)
    at = models.DateTimeField()
    received_at = models.DateTimeField()
    action_taken = models.CharField(max_length=16, default="", blank=True)
    handled_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "event_id"], name="a_health_event_lands_once")]
        indexes = [models.Index(fields=["-at"])]


class Stray(models.Model):
    """A process on a GPU that no allocation there accounts for, as its host saw it."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="strays")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="strays")
    pid = models.PositiveIntegerField()
    started = models.BigIntegerField(help_text="clock ticks after the boot: tells it from a later one with the same pid")
    user = models.CharField(max_length=64, default="", blank=True)
    name = models.CharField(max_length=64, default="", blank=True)
    memory_mib = models.PositiveIntegerField(null=True, blank=True, help_text="on that GPU; empty: unknown")
    run = models.CharField(max_length=40, default="", blank=True, help_text="of a workload that does not hold this GPU")
    done = models.CharField(max_length=200, default="", blank=True, help_text="what its host did about it, or why nothing")
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField()
    gone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host", "gpu", "pid", "started"], condition=models.Q(gone_at=None), name="a_stray_is_there_once"
            )
        ]
        indexes = [models.Index(fields=["host", "-last_seen"])]


class Price(models.Model):
    """Rate card: what one GPU-hour of a model costs from a date on, and what is charged for it. Append-only: a change is a
    new row with a later date. A slice costs its part of the slots."""

    pool = models.ForeignKey(Pool, null=True, blank=True, on_delete=models.PROTECT, help_text="empty: every pool")
    model = models.CharField(max_length=60)
    cost_per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=6, help_text="the owner's cost")
    price_per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=6, help_text="what teams are charged")
    valid_from = models.DateTimeField()
    note = models.CharField(max_length=300, default="", blank=True, help_text="how the cost was worked out")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "model", "valid_from"], name="one_price_per_model_and_date", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=Q(cost_per_gpu_hour__gte=0) & Q(price_per_gpu_hour__gte=0), name="prices_are_not_negative"
            ),
        ]


class CostCentre(models.Model):
    """Which cost centre pays for a project from a date on."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="cost_centres")
    code = models.CharField(max_length=40)
    valid_from = models.DateTimeField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "valid_from"], name="one_cost_centre_per_project_and_date")
        ]


class ChargeBucketChoices(models.TextChoices):
    """Where a second of a GPU lands; the seven are a partition."""

    USED = "used", "charged: held by a workload"
    RESERVED_UNUSED = "reserved_unused", "charged: reserved but not used"
    PREEMPTED = "preempted", "not charged: lost to a preemption"
    HARDWARE_LOST = "hardware_lost", "not charged: lost to hardware"
    UNALLOCATED = "unallocated", "free"
    UNHEALTHY = "unhealthy", "host or GPU unwell"
    MAINTENANCE = "maintenance", "in maintenance"


class Charge(models.Model):
    """One line: slots held (or not) over a stretch of one day, priced. Append-only.

    A late fact never edits a line: a reversal takes it back whole (negative slot-seconds and amounts, ``corrects`` names it), and
    new lines say what is so (``corrects`` names the first line they stand for). ``month`` is the statement they belong to: the
    month of ``start``, or the open month where that one is closed. Every name is copied in, so that renaming a team never changes
    the past.
    """

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    month = models.DateField(help_text="first day of the month on whose statement it stands")
    bucket = models.CharField(max_length=16, choices=ChargeBucketChoices.choices)
    start = models.DateTimeField()
    end = models.DateTimeField()
    slots = models.IntegerField(help_text="840 is one GPU; negative in a reversal")
    slot_seconds = models.BigIntegerField(help_text="slots x whole seconds; negative in a reversal")
    used_slot_seconds = models.FloatField(null=True, help_text="utilisation x slots x seconds where samples speak")
    covered_slot_seconds = models.FloatField(null=True)
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="+")
    model = models.CharField(max_length=60)
    allocation = models.ForeignKey(Allocation, null=True, on_delete=models.PROTECT, related_name="charges")
    reservation = models.ForeignKey(Reservation, null=True, on_delete=models.PROTECT, related_name="charges")
    workload = models.ForeignKey(Workload, null=True, on_delete=models.PROTECT, related_name="charges")
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+")
    project = models.ForeignKey(Project, null=True, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    team_name = models.CharField(max_length=80, default="")
    project_name = models.CharField(max_length=80, default="")
    user_name = models.CharField(max_length=150, default="")
    workload_name = models.CharField(max_length=80, default="")
    workload_type = models.CharField(max_length=12, default="")
    cost_centre = models.CharField(max_length=40, default="")
    price = models.ForeignKey(Price, null=True, on_delete=models.PROTECT, related_name="+")
    cost = models.DecimalField(max_digits=18, decimal_places=6, help_text="owner's cost of these slot-seconds")
    charged = models.DecimalField(
        max_digits=18, decimal_places=6, help_text="to the cost centre; 0 in uncharged buckets"
    )
    corrects = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="corrections")
    reversal = models.BooleanField(default=False, help_text="takes back the line it corrects")
    simulated = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(end__gt=F("start")), name="a_charge_has_a_length"),
            models.CheckConstraint(
                condition=Q(reversal=False, slot_seconds__gt=0)
                | Q(reversal=True, slot_seconds__lt=0, corrects__isnull=False),
                name="only_a_reversal_is_negative_and_it_names_its_line",
            ),
            models.UniqueConstraint(
                fields=["corrects"], condition=Q(reversal=True), name="a_charge_is_taken_back_once"
            ),
        ]
        indexes = [
            models.Index(fields=["month", "pool"]),
            models.Index(fields=["gpu", "start"]),
            models.Index(fields=["team", "start"]),
            models.Index(fields=["allocation"]),
        ]


class ChargedUntil(models.Model):
    """Per GPU: every second of ``[since, until)`` has its charge lines, in exactly one bucket."""

    gpu = models.OneToOneField(Gpu, primary_key=True, on_delete=models.CASCADE, related_name="charged")
    since = models.DateTimeField()
    until = models.DateTimeField()


class SettledAllocation(models.Model):
    """An allocation that has ended and whose charges were compared with how it ended."""

    allocation = models.OneToOneField(Allocation, primary_key=True, on_delete=models.CASCADE)
    settled_at = models.DateTimeField()


class SettledStateChange(models.Model):
    """A host's change of state whose moment has been looked at by charging, also when it was written late."""

    change = models.OneToOneField(HostStateChange, primary_key=True, on_delete=models.CASCADE)
    settled_at = models.DateTimeField()


class BudgetAction(models.TextChoices):
    NOTIFY = "notify"
    REFUSE_NEW = "refuse_new", "refuse new work"
    STOP_BORROWING = "stop_borrowing", "stop borrowing"


class BudgetMeasure(models.TextChoices):
    MONEY = "money"
    GPU_HOURS = "gpu_hours", "GPU-hours"


class Budget(models.Model):
    """What a team or a project may be charged in a month: money, or GPU-hours, whichever GPUs they are of."""

    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets")
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets")
    month = models.DateField(help_text="first day")
    measure = models.CharField(max_length=10, choices=BudgetMeasure.choices, default=BudgetMeasure.MONEY)
    amount = models.DecimalField(max_digits=14, decimal_places=2, help_text="in the measure")
    action = models.CharField(max_length=16, choices=BudgetAction.choices, default=BudgetAction.NOTIFY)
    notified_percent = models.PositiveSmallIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "project", "month", "measure"], name="one_budget_per_month", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=Q(team__isnull=True) ^ Q(project__isnull=True), name="a_budget_is_of_a_team_or_of_a_project"
            ),
        ]


class BudgetAlert(models.Model):
    """A fact for notices: this much of a budget was spent when a threshold was passed."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="alerts")
    percent = models.PositiveSmallIntegerField(help_text="the threshold: 50, 80 or 100")
    spent = models.DecimalField(max_digits=18, decimal_places=6)
    forecast = models.BooleanField(default=False, help_text="not spent yet: the month is on its way there")
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["budget", "percent", "forecast"], name="a_threshold_is_passed_once")
        ]


class Retention(models.Model):
    """One row: how long what is kept in detail."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    sample_days = models.PositiveSmallIntegerField(default=14, help_text="raw samples")
    minute_days = models.PositiveSmallIntegerField(default=30, help_text="rollups of a minute; hours and days are kept")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="there_is_one_retention_row"),
            models.CheckConstraint(
                condition=Q(sample_days__gte=2) & Q(minute_days__gte=2), name="at_least_two_days_are_kept"
            ),
        ]


class StatementState(models.TextChoices):
    OPEN = "open"
    CLOSING = "closing", "closing: no charge comes in any more, checks run"
    CLOSED = "closed"


STATEMENT_TRANSITIONS: dict[str, frozenset[str]] = {
    StatementState.OPEN: frozenset({StatementState.CLOSING}),
    StatementState.CLOSING: frozenset({StatementState.CLOSED, StatementState.OPEN}),
    StatementState.CLOSED: frozenset(),
}


class IdlePayer(models.TextChoices):
    OPERATOR = "operator", "the operator"
    GUARANTEE = "guarantee", "teams, by their guarantee"
    USE = "use", "teams, by their use"


class Statement(models.Model):
    """A month. Once closed a trigger refuses every change to it and to its lines."""

    month = models.DateField(unique=True, help_text="first day")
    state = models.CharField(max_length=8, choices=StatementState.choices, default=StatementState.OPEN)
    idle_payer = models.CharField(max_length=10, choices=IdlePayer.choices, default=IdlePayer.OPERATOR)
    currency = models.CharField(max_length=3, default="", blank=True, help_text="set when it closes")
    checks = models.JSONField(default=list, help_text="each check of the close with its figures")
    totals = models.JSONField(default=dict, help_text="the conservation line per pool, as decimal strings")
    digest = models.CharField(max_length=64, default="", blank=True, help_text="SHA-256 of its lines as CSV")
    closed_at = models.DateTimeField(null=True)
    closed_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")


class StatementLine(models.Model):
    """A frozen line of a closed month: one cost centre, project, workload type, model and bucket."""

    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="lines")
    pool_name = models.CharField(max_length=80)
    cost_centre = models.CharField(max_length=40)
    team_name = models.CharField(max_length=80)
    project_name = models.CharField(max_length=80)
    workload_type = models.CharField(max_length=12)
    model = models.CharField(max_length=60)
    bucket = models.CharField(max_length=16)
    gpu_hours = models.DecimalField(max_digits=18, decimal_places=6)
    covered_share = models.FloatField(
        null=True, help_text="part of its time that samples speak for; empty: none was expected"
    )
    used_share = models.FloatField(null=True, help_text="mean utilisation where samples speak")
    amount = models.DecimalField(
        max_digits=14, decimal_places=2, help_text="rounded so that the lines sum to the total"
    )
    cost = models.DecimalField(max_digits=14, decimal_places=2)
