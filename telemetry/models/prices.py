"""Define prices and refund limits. Both are dated and append-only."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from scheduler.models import PRIORITIES, Pool, WorkloadType
from telemetry.core.currencies import DEFAULT_CURRENCY


class BillingCurrency(models.Model):
    """The currency of all months from ``first_month`` on, until the next row.

    A month has one currency. A trigger rejects a row if a statement of ``first_month`` or later has another
    currency. The table is append-only.
    """

    currency = models.CharField(max_length=3)
    first_month = models.DateField(unique=True, help_text="first day of the month")
    valid_from = models.DateTimeField(unique=True, help_text="start of the first month")
    created_at = models.DateTimeField()


class Price(models.Model):
    """A line of the rate card: the cost and the price of one GPU-hour of a model from a date on.

    The table is append-only. A slice has a part of this cost and price, in proportion to its slots. A price
    applies only in months with the same currency.
    """

    pool = models.ForeignKey(
        Pool, null=True, blank=True, on_delete=models.PROTECT, help_text="empty: every pool"
    )
    model = models.CharField(max_length=60)
    cost_per_gpu_hour = models.DecimalField(
        max_digits=12, decimal_places=6, help_text="cost to the owner per GPU-hour"
    )
    price_per_gpu_hour = models.DecimalField(
        max_digits=12, decimal_places=6, help_text="price per GPU-hour that teams are charged"
    )
    currency = models.CharField(max_length=3, default=DEFAULT_CURRENCY)
    valid_from = models.DateTimeField()
    note = models.CharField(max_length=300, default="", blank=True, help_text="how the cost was calculated")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "model", "currency", "valid_from"],
                name="one_price_per_model_currency_and_date",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=Q(cost_per_gpu_hour__gte=0) & Q(price_per_gpu_hour__gte=0),
                name="prices_are_not_negative",
            ),
        ]


class PriceFactor(models.Model):
    """A price factor for work of one priority or one workload type, from a date on.

    It multiplies the price, not the cost. Time inside a reservation and in a dedicated pool has no factor,
    because it is paid for whether used or not. The table is append-only.
    """

    pool = models.ForeignKey(
        Pool, null=True, blank=True, on_delete=models.PROTECT, help_text="empty: every shared pool"
    )
    priority = models.PositiveSmallIntegerField(null=True, blank=True, choices=PRIORITIES)
    workload_type = models.CharField(max_length=12, default="", blank=True, choices=WorkloadType.choices)
    factor = models.DecimalField(max_digits=7, decimal_places=4, help_text="1 is the price itself")
    valid_from = models.DateTimeField()
    note = models.CharField(max_length=300, default="", blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "priority", "workload_type", "valid_from"],
                name="one_price_factor_per_kind_and_date",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=Q(priority__isnull=False, workload_type="")
                | (Q(priority__isnull=True) & ~Q(workload_type="")),
                name="a_price_factor_is_of_a_priority_or_of_a_type",
            ),
            models.CheckConstraint(condition=Q(factor__gt=0), name="a_price_factor_is_positive"),
        ]


MAX_FORGIVEN_MINUTES = 7 * 24 * 60


class RefundLimit(models.Model):
    """The refund limit of a pool from a date on.

    If work is preempted or lost to hardware, at most the last ``forgiven_minutes`` before its stop are not
    charged. The limit in force at the stop applies. The table is append-only. A pool without a limit has
    ``DEFAULT_FORGIVEN_MINUTES`` (``telemetry.money.refund_limits``).
    """

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="refund_limits")
    forgiven_minutes = models.PositiveIntegerField(
        null=True, help_text="empty: no limit, the rule before version 0.2"
    )
    valid_from = models.DateTimeField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["pool", "valid_from"], name="one_refund_limit_per_pool_and_date"),
            models.CheckConstraint(
                condition=Q(forgiven_minutes__isnull=True) | Q(forgiven_minutes__lte=MAX_FORGIVEN_MINUTES),
                name="at_most_a_week_is_forgiven",
            ),
        ]
