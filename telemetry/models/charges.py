"""Define charge lines, and the records of the times and events that charging has already processed."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from scheduler.models import Allocation, Gpu, HostStateChange, Pool, Project, Reservation, Team, Workload
from telemetry.core.amounts import MICRO, round_amount
from telemetry.core.billing_calendar import corrected_month
from telemetry.models.prices import Price, PriceFactor


class ChargeBucketChoices(models.TextChoices):
    """The category in which the time of a slot is counted. A slot is 1/840 of a GPU.

    Every second of every slot is in exactly one of the seven buckets.
    """

    USED = "used", "charged: held by a workload"
    RESERVED_UNUSED = "reserved_unused", "charged: reserved but not used"
    PREEMPTED = "preempted", "not charged: lost to a preemption"
    HARDWARE_LOST = "hardware_lost", "not charged: lost to hardware"
    UNALLOCATED = "unallocated", "free"
    UNHEALTHY = "unhealthy", "host or GPU out of service"
    MAINTENANCE = "maintenance", "in maintenance"


# Selects the lines that need a cost centre and have none. Lines of projects need one, and so do lines of the
# unused time of dedicated pools.
UNMAPPED_LINE = Q(cost_centre="", reversal=False) & (Q(project__isnull=False) | Q(bucket="reserved_unused"))


class Charge(models.Model):
    """One priced line of the ledger, for slots of a GPU during a part of one billing day.

    A line is never edited. After a late fact, a reversal cancels the whole line, and new lines replace it. A
    reversal has negative slot-seconds and amounts. Its ``corrects`` is the cancelled line. A new line can
    replace several cancelled lines. Its ``corrects`` is the first of them.

    ``month`` identifies the statement on which the line appears. Usually this is the month of ``day``. If
    that month is closed, the line is a correction, and ``month`` is a later month that is open. Names are
    copied into the line, so renaming a team does not change earlier lines.
    """

    # For each new line, the database makes a check for each foreign key and an entry in each index. The
    # allocation, the reservation and the GPU have foreign keys. These rows keep their pool, workload,
    # project, team and person from being deleted. Prices and factors are never deleted
    # (docs/decisions/0015).
    pool = models.ForeignKey(
        Pool, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    month = models.DateField(help_text="first day of the month of its statement")
    bucket = models.CharField(max_length=16, choices=ChargeBucketChoices.choices)
    day = models.DateField(help_text="billing day of ``start``; its month is the month of the time")
    start = models.DateTimeField()
    end = models.DateTimeField()
    slots = models.IntegerField(help_text="840 is one GPU; negative in a reversal")
    slot_seconds = models.BigIntegerField(help_text="slots x whole seconds; negative in a reversal")
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="+", db_index=False)
    model = models.CharField(max_length=60)
    allocation = models.ForeignKey(
        Allocation, null=True, on_delete=models.PROTECT, related_name="charges", db_index=False
    )
    reservation = models.ForeignKey(
        Reservation, null=True, on_delete=models.PROTECT, related_name="charges", db_index=False
    )
    workload = models.ForeignKey(
        Workload, null=True, on_delete=models.PROTECT, related_name="charges", db_constraint=False
    )
    team = models.ForeignKey(
        Team, null=True, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    project = models.ForeignKey(
        Project, null=True, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_constraint=False
    )
    team_name = models.CharField(max_length=80, default="")
    project_name = models.CharField(max_length=80, default="")
    user_name = models.CharField(max_length=150, default="")
    workload_name = models.CharField(max_length=80, default="")
    workload_type = models.CharField(max_length=12, default="")
    cost_centre = models.CharField(max_length=40, default="")
    share_percent = models.DecimalField(
        max_digits=5,
        decimal_places=2,
        default=Decimal(100),
        help_text="share of the time that its cost centre pays",
    )
    price = models.ForeignKey(
        Price, null=True, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    priority_factor = models.ForeignKey(
        PriceFactor,
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_constraint=False,
        db_index=False,
        help_text="factor of the priority on the price; empty: 1",
    )
    type_factor = models.ForeignKey(
        PriceFactor,
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_constraint=False,
        db_index=False,
        help_text="factor of the workload type on the price; empty: 1",
    )
    cost = models.DecimalField(
        max_digits=18, decimal_places=6, help_text="cost of these slot-seconds to the owner"
    )
    charged = models.DecimalField(
        max_digits=18, decimal_places=6, help_text="charge to the cost centre; 0 in uncharged buckets"
    )
    corrects = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="corrections")
    reversal = models.BooleanField(default=False, help_text="reverses the line that it corrects")
    cause_code = models.CharField(
        max_length=40, default="", help_text="late fact that caused the correction; empty: no correction"
    )
    cause_numbers = models.JSONField(default=dict, help_text="values for the sentence of cause_code")
    simulated = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    @property
    def corrected_month(self) -> date | None:
        """Return the closed month that the line corrects; None if the line corrects no closed month."""
        return corrected_month(self.month, self.day)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(end__gt=F("start")), name="a_charge_has_a_length"),
            models.CheckConstraint(
                # A small share of a short time may be less than one slot-second.
                condition=Q(reversal=False, slots__gt=0, slot_seconds__gte=0)
                | Q(reversal=True, slots__lt=0, slot_seconds__lte=0, corrects__isnull=False),
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
            models.Index(
                fields=["reservation"],
                condition=Q(reservation__isnull=False),
                name="charges_of_a_reservation",
            ),
            models.Index(fields=["month"], condition=UNMAPPED_LINE, name="charges_without_cost_centre"),
            models.Index(fields=["month"], condition=Q(corrects__isnull=False), name="correcting_charges"),
            models.Index(fields=["month"], condition=Q(simulated=True), name="simulated_charges"),
        ]

    @property
    def price_factor(self) -> Decimal:
        """Return the product of the factors on the price; 1 without factors."""
        of_priority = self.priority_factor.factor if self.priority_factor else Decimal(1)
        return of_priority * (self.type_factor.factor if self.type_factor else Decimal(1))

    @property
    def work_price(self) -> Decimal | None:
        """Return the price of a GPU-hour with its factors, rounded to six decimals; None without a price."""
        if self.price is None:
            return None
        return round_amount(self.price.price_per_gpu_hour * self.price_factor, MICRO)


class ChargeEvidence(models.Model):
    """The measured use of a charge line of an allocation.

    The row is updated from rollups until the month of the line is closed. Afterwards a trigger rejects
    changes. The evidence of a reversal is the negative of the evidence of its line.
    """

    # Charge lines are never deleted, so evidence needs no foreign key of the database.
    charge = models.OneToOneField(
        Charge, primary_key=True, on_delete=models.CASCADE, related_name="evidence", db_constraint=False
    )
    used_slot_seconds = models.FloatField(
        null=True, help_text="utilisation x slots x covered seconds; empty: not measured"
    )
    covered_slot_seconds = models.FloatField(help_text="slots x seconds that samples cover")
    updated_at = models.DateTimeField()


class ChargedUntil(models.Model):
    """The charged time ``[since, until)`` of a GPU.

    Charge lines put every second of this time into exactly one bucket.
    """

    gpu = models.OneToOneField(Gpu, primary_key=True, on_delete=models.CASCADE, related_name="charged")
    since = models.DateTimeField()
    until = models.DateTimeField()


class SettledAllocation(models.Model):
    """A record that the charges of an ended allocation were compared with the facts of its end."""

    allocation = models.OneToOneField(Allocation, primary_key=True, on_delete=models.CASCADE)
    settled_at = models.DateTimeField()


class SettledStateChange(models.Model):
    """A record that charging has taken a host state change into account.

    A change that arrived late gets its record after the charges were corrected.
    """

    change = models.OneToOneField(HostStateChange, primary_key=True, on_delete=models.CASCADE)
    settled_at = models.DateTimeField()
