"""Statements of cost centres, which the close of a month makes. Months that are closed keep none."""

from django.db import migrations, models
from django.db.models import PROTECT

from scheduler.migrations._tables import ID, optional_text, table

GUARDS = """
CREATE TRIGGER documents_of_closed_statements_stay
    BEFORE INSERT OR UPDATE OR DELETE ON telemetry_costcentrestatement
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_line_of_closed_statement();
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0009_sums_of_earlier_charges")]

    operations = [
        table(
            "CostCentreStatement",
            id=ID,
            cost_centre=models.CharField(max_length=40, help_text="code of the cost centre"),
            currency=models.CharField(max_length=3, blank=True),
            sequence=models.PositiveSmallIntegerField(help_text="1 for the first currency, 2 for the second"),
            number=models.CharField(max_length=60, unique=True, help_text="such as 2026-10/CC-4110/1"),
            name=optional_text(200, help_text="name of the cost centre"),
            postal_address=optional_text(1000),
            purchase_order=optional_text(100),
            issuer=optional_text(80, help_text="name of the organisation"),
            tax_text=optional_text(300),
            due_on=models.DateField(),
            total=models.DecimalField(
                max_digits=14, decimal_places=2, help_text="sum of the cents of its lines"
            ),
            budget=models.DecimalField(
                max_digits=14,
                decimal_places=2,
                null=True,
                help_text="budget of the cost centre for the month; empty: none",
            ),
            statement=models.ForeignKey("telemetry.statement", PROTECT, related_name="documents"),
            constraints=[
                models.UniqueConstraint(
                    fields=["statement", "cost_centre", "currency"],
                    name="one_statement_per_month_cost_centre_and_currency",
                )
            ],
        ),
        migrations.RunSQL(GUARDS),
    ]
