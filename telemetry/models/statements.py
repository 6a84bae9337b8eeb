"""Define monthly statements, their lines, and the cells of the lines."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from scheduler.models import Pool, Project, Team, Workload
from telemetry.core.currencies import DEFAULT_CURRENCY
from telemetry.models.amounts import CurrencyAmountField


class StatementState(models.TextChoices):
    OPEN = "open"
    CLOSING = "closing", "closing: no new charges, checks run"
    CLOSED = "closed"


class IdlePayer(models.TextChoices):
    OPERATOR = "operator", "the operator"
    GUARANTEE = "guarantee", "teams, in proportion to their guarantees"
    USE = "use", "teams, in proportion to their use"


class Statement(models.Model):
    """The statement of a month. Once it is closed, a trigger rejects changes to it and to its lines."""

    month = models.DateField(unique=True, help_text="first day of the month")
    state = models.CharField(max_length=8, choices=StatementState.choices, default=StatementState.OPEN)
    idle_payer = models.CharField(max_length=10, choices=IdlePayer.choices, default=IdlePayer.OPERATOR)
    currency = models.CharField(
        max_length=3,
        default=DEFAULT_CURRENCY,
        help_text="currency of the month, set when it is first charged; of old months at the close",
    )
    time_zone = models.CharField(
        max_length=60, default="", blank=True, help_text="time zone of the month, set at the close"
    )
    starts_at = models.DateTimeField(null=True, help_text="start of the month, set at the close")
    ends_at = models.DateTimeField(null=True, help_text="end of the month, set at the close")
    checks = models.JSONField(default=list, help_text="checks of the close, with their figures")
    totals = models.JSONField(default=dict, help_text="conservation figures per pool, as decimal strings")
    digest = models.CharField(
        max_length=64, default="", blank=True, help_text="SHA-256 in the layout of digest_format"
    )
    digest_format = models.PositiveSmallIntegerField(
        default=1, help_text="1: the CSV of its lines; 2: also charges, prices, cost centres, previous digest"
    )
    file_format = models.PositiveSmallIntegerField(
        default=1, help_text="columns of its files: 2 has the billing mode of each line; set at the close"
    )
    previous_month = models.DateField(
        null=True,
        blank=True,
        help_text="month whose digest is part of this digest; empty: the first of format 2",
    )
    signature = models.CharField(
        max_length=88, default="", blank=True, help_text="Ed25519, base64; empty: closed without a key"
    )
    public_key = models.CharField(
        max_length=44, default="", blank=True, help_text="public key of the signature, base64"
    )
    key_fingerprint = models.CharField(
        max_length=64, default="", blank=True, help_text="SHA-256 of the public key"
    )
    missing_samples = models.JSONField(
        default=list, help_text="hosts that still owed samples at the close, with their hours"
    )
    missing_samples_reason = models.CharField(
        max_length=1000,
        default="",
        blank=True,
        help_text="why the month was closed without these samples, by the person who closed it",
    )
    proposed_at = models.DateTimeField(null=True, help_text="when the close was proposed; empty: in one step")
    proposed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    closed_at = models.DateTimeField(null=True)
    closed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(proposed_by=None) | ~models.Q(proposed_by=models.F("closed_by")),
                name="two_different_people_close_a_month",
            ),
        ]


class LedgerSums(models.Model):
    """The sums of charge lines, and the cents that pages, files and API answers show.

    ``slot_seconds``, ``cost`` and ``charged`` are written in the transaction that writes the charge lines.
    The columns of cents and the measured use of a line are written by ``assign_due_cents``. A cent is the
    smallest unit of the currency of the line.
    """

    slot_seconds = models.BigIntegerField(default=0)
    cost = models.DecimalField(max_digits=18, decimal_places=6, default=0)
    charged = models.DecimalField(max_digits=18, decimal_places=6, default=0)
    covered_slot_seconds = models.FloatField(null=True, help_text="held time with samples; empty: not held")
    used_slot_seconds = models.FloatField(null=True, help_text="utilisation x held time; empty: unknown")
    cost_cents = CurrencyAmountField(default=0, help_text="cost, a part of the rounded total of the month")
    charged_cents = CurrencyAmountField(default=0, help_text="charge, a part of the rounded total")
    used_cents = CurrencyAmountField(default=0, help_text="charge of measured use")
    idle_cents = CurrencyAmountField(default=0, help_text="charge of measured time without use")

    class Meta:
        abstract = True


class StatementLine(LedgerSums):
    """One line of a month's statement. It sums the charge lines of one pool, payer, work, model and bucket.

    In an open month, the line changes with each charge, and its names are looked up by id. The close of the
    month copies the names and writes ``gpu_hours`` and the shares. A trigger rejects every change after the
    close.

    Corrections of a closed month are lines of their own, with the month that they correct. Lines of months
    that version 0.1 closed group charges by name. If the charges of such a line have different ids of, for
    example, the project, the line has no id of a project.
    """

    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="lines")
    pool = models.ForeignKey(Pool, null=True, on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+")
    project = models.ForeignKey(Project, null=True, on_delete=models.PROTECT, related_name="+")
    cost_centre = models.CharField(max_length=40)
    workload_type = models.CharField(max_length=12)
    model = models.CharField(max_length=60)
    bucket = models.CharField(max_length=16)
    corrected_month = models.DateField(
        null=True, help_text="first day of the closed month that the charges correct; empty: none"
    )
    currency = models.CharField(
        max_length=3,
        default=DEFAULT_CURRENCY,
        help_text="currency of its amounts: that of the month of the use",
    )
    idle_share = models.BooleanField(
        default=False, help_text="a team's part of the idle time of the pool; not made from charge lines"
    )
    shared_out = models.BooleanField(
        default=False, help_text="idle time that teams pay in lines of their own; this line shows no amount"
    )
    showback = models.BooleanField(
        default=False, help_text="its charge is shown, not invoiced; assigned with the cents"
    )
    due = models.BooleanField(default=False, help_text="its sums changed after cents were assigned")
    pool_name = models.CharField(max_length=80, default="", help_text="name at the close")
    team_name = models.CharField(max_length=80, default="", help_text="name at the close")
    project_name = models.CharField(max_length=80, default="", help_text="name at the close")
    gpu_hours = models.DecimalField(max_digits=18, decimal_places=6, null=True, help_text="set at the close")
    covered_share = models.FloatField(
        null=True, help_text="part of its time covered by samples; empty: none was expected"
    )
    used_share = models.FloatField(null=True, help_text="mean utilisation where measured")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "statement",
                    "pool",
                    "cost_centre",
                    "team",
                    "project",
                    "workload_type",
                    "model",
                    "bucket",
                    "corrected_month",
                    "idle_share",
                ],
                # A month that version 0.1 closed may have two lines with the same ids and different names.
                condition=models.Q(gpu_hours=None),
                name="one_statement_line_per_payer_and_work",
                nulls_distinct=False,
            ),
        ]
        indexes = [
            models.Index(
                fields=["statement"], condition=models.Q(due=True), name="statement_lines_without_cents"
            ),
            models.Index(fields=["statement", "cost_centre"], name="lines_of_a_cost_centre"),
        ]


class ChargeCell(LedgerSums):
    """The part of a statement line that one person, workload and day caused.

    A figure for people, workloads or days is a sum of cells. The cents of the cells of a line sum to the
    cents of the line. The day (UTC) is the day of the use, also in a correction.
    """

    line = models.ForeignKey(StatementLine, on_delete=models.CASCADE, related_name="cells", db_index=False)
    # These rows cannot be deleted anyway: the statement line has a foreign key to the statement, and
    # allocations have foreign keys to the workload and its owner.
    statement = models.ForeignKey(
        Statement, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    workload = models.ForeignKey(
        Workload, null=True, on_delete=models.PROTECT, related_name="charge_cells", db_constraint=False
    )
    day = models.DateField()
    user_name = models.CharField(max_length=150, default="", help_text="name when first charged")
    workload_name = models.CharField(max_length=80, default="", help_text="name when first charged")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["line", "user", "workload", "day"],
                name="one_charge_cell_per_line_person_workload_and_day",
                nulls_distinct=False,
            ),
        ]
        indexes = [models.Index(fields=["user", "statement"], name="charge_cells_of_a_person")]


class StatementLineDay(models.Model):
    """The part of a statement line that one day caused: the sum of the line's cells of that day.

    It is written with the cents of the cells. Pages read the spending of days from it, because a line has far
    fewer days than cells. Once the statement is closed, a trigger rejects changes.
    """

    line = models.ForeignKey(StatementLine, on_delete=models.CASCADE, related_name="days", db_index=False)
    statement = models.ForeignKey(
        Statement, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    day = models.DateField(help_text="billing day of the use, also in a correction")
    slot_seconds = models.BigIntegerField()
    charged_cents = CurrencyAmountField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["line", "day"], name="one_row_per_statement_line_and_day"),
        ]
        indexes = [models.Index(fields=["statement", "day"], name="days_of_a_statement")]


class StatementLinePerson(models.Model):
    """The part of a statement line that one person caused: the sum of the line's cells of that person.

    It is written with the cents of the cells. The chargeback by person is read from it, because a person has
    far fewer lines than cells. Once the statement is closed, a trigger rejects changes.
    """

    line = models.ForeignKey(StatementLine, on_delete=models.CASCADE, related_name="people", db_index=False)
    statement = models.ForeignKey(
        Statement, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    user_name = models.CharField(max_length=150, default="", help_text="name when first charged")
    slot_seconds = models.BigIntegerField()
    covered_slot_seconds = models.FloatField(null=True, help_text="held time with samples; empty: not held")
    cost_cents = CurrencyAmountField()
    charged_cents = CurrencyAmountField()
    used_cents = CurrencyAmountField(help_text="charge of measured use")
    idle_cents = CurrencyAmountField(help_text="charge of measured time without use")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["line", "user"],
                name="one_row_per_statement_line_and_person",
                nulls_distinct=False,
            ),
        ]
        indexes = [models.Index(fields=["statement"], name="people_of_a_statement")]


class StatementDay(models.Model):
    """The charges of one day on a statement: the sum of the days of all lines in one currency.

    It is written together with the days of the lines. A day outside the month corrects an earlier month.
    """

    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="days")
    day = models.DateField(help_text="billing day of the use, also in a correction")
    currency = models.CharField(max_length=3)
    slot_seconds = models.BigIntegerField(help_text="of held and of reserved time")
    charged_cents = CurrencyAmountField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["statement", "day", "currency"], name="one_row_per_statement_day_and_currency"
            ),
        ]


STATEMENT_TRANSITIONS: dict[str, frozenset[str]] = {
    StatementState.OPEN: frozenset({StatementState.CLOSING}),
    StatementState.CLOSING: frozenset({StatementState.CLOSED, StatementState.OPEN}),
    StatementState.CLOSED: frozenset(),
}
