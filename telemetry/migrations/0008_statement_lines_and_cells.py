"""Keep statement lines of open months, and a cell per line, person, workload and day."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import CASCADE, PROTECT, Q

from scheduler.migrations._tables import ID, flag, table

LINE, CELL = "statementline", "chargecell"


def amount() -> models.DecimalField:
    """Return a column with a sum of charge lines."""
    return models.DecimalField(max_digits=18, decimal_places=6, default=0)


def cents(help_text: str) -> models.DecimalField:
    """Return a column with cents."""
    return models.DecimalField(max_digits=14, decimal_places=2, default=0, help_text=help_text)


COST_CENTS = cents("cost, a part of the rounded total of the month")
CHARGED_CENTS = cents("charge, a part of the rounded total")


def measured_use() -> dict[str, models.Field]:
    return {
        "covered_slot_seconds": models.FloatField(
            null=True, help_text="held time with samples; empty: not held"
        ),
        "used_slot_seconds": models.FloatField(
            null=True, help_text="utilisation x held time; empty: unknown"
        ),
    }


def parts_of_use() -> dict[str, models.Field]:
    return {
        "used_cents": cents("charge of measured use"),
        "idle_cents": cents("charge of measured time without use"),
    }


def name_at_close() -> models.CharField:
    return models.CharField(max_length=80, default="", help_text="name at the close")


NEW_COLUMNS = {
    "slot_seconds": models.BigIntegerField(default=0),
    "cost": amount(),
    "charged": amount(),
    **measured_use(),
    **parts_of_use(),
    "pool": models.ForeignKey("scheduler.pool", PROTECT, null=True, related_name="+"),
    "team": models.ForeignKey("scheduler.team", PROTECT, null=True, related_name="+"),
    "project": models.ForeignKey("scheduler.project", PROTECT, null=True, related_name="+"),
    "corrected_month": models.DateField(
        null=True, help_text="first day of the closed month that the charges correct; empty: none"
    ),
    "idle_share": flag("a team's part of the idle time of the pool; not made from charge lines"),
    "shared_out": flag("idle time that teams pay in lines of their own; this line shows no amount"),
    "due": flag("its sums changed after cents were assigned"),
}
KEY = [
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
]


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0007_evidence_replaces_charge_columns"),
        ("scheduler", "0030_removed_rows"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        # The next migration creates new triggers.
        migrations.RunSQL("DROP TRIGGER lines_of_closed_statements_stay ON telemetry_statementline"),
        migrations.AddField(
            "charge",
            "cause_code",
            models.CharField(
                max_length=40,
                default="",
                help_text="late fact that caused the correction; empty: no correction",
            ),
        ),
        migrations.AddField(
            "charge",
            "cause_numbers",
            models.JSONField(default=dict, help_text="values for the sentence of cause_code"),
        ),
        migrations.AddIndex(
            "charge",
            models.Index(fields=["month"], condition=Q(corrects__isnull=False), name="correcting_charges"),
        ),
        migrations.AddIndex(
            "charge", models.Index(fields=["month"], condition=Q(simulated=True), name="simulated_charges")
        ),
        migrations.RenameField(LINE, "amount", "charged_cents"),
        migrations.RenameField(LINE, "cost", "cost_cents"),
        migrations.AlterField(LINE, "charged_cents", CHARGED_CENTS),
        migrations.AlterField(LINE, "cost_cents", COST_CENTS),
        migrations.AlterField(LINE, "pool_name", name_at_close()),
        migrations.AlterField(LINE, "team_name", name_at_close()),
        migrations.AlterField(LINE, "project_name", name_at_close()),
        migrations.AlterField(
            LINE,
            "gpu_hours",
            models.DecimalField(max_digits=18, decimal_places=6, null=True, help_text="set at the close"),
        ),
        *(migrations.AddField(LINE, name, column) for name, column in NEW_COLUMNS.items()),
        migrations.AddConstraint(
            LINE,
            models.UniqueConstraint(
                fields=KEY,
                condition=Q(gpu_hours=None),
                name="one_statement_line_per_payer_and_work",
                nulls_distinct=False,
            ),
        ),
        migrations.AddIndex(
            LINE,
            models.Index(fields=["statement"], condition=Q(due=True), name="statement_lines_without_cents"),
        ),
        table(
            "ChargeCell",
            id=ID,
            slot_seconds=models.BigIntegerField(default=0),
            cost=amount(),
            charged=amount(),
            **measured_use(),
            cost_cents=cents("cost, a part of the rounded total of the month"),
            charged_cents=cents("charge, a part of the rounded total"),
            **parts_of_use(),
            day=models.DateField(),
            user_name=models.CharField(max_length=150, default="", help_text="name when first charged"),
            workload_name=models.CharField(max_length=80, default="", help_text="name when first charged"),
            line=models.ForeignKey("telemetry.statementline", CASCADE, related_name="cells", db_index=False),
            statement=models.ForeignKey("telemetry.statement", PROTECT, related_name="+", db_index=False),
            user=models.ForeignKey(
                settings.AUTH_USER_MODEL, PROTECT, null=True, related_name="+", db_index=False
            ),
            workload=models.ForeignKey("scheduler.workload", PROTECT, null=True, related_name="charge_cells"),
            indexes=[models.Index(fields=["user", "statement"], name="charge_cells_of_a_person")],
            constraints=[
                models.UniqueConstraint(
                    fields=["line", "user", "workload", "day"],
                    name="one_charge_cell_per_line_person_workload_and_day",
                    nulls_distinct=False,
                )
            ],
        ),
    ]
