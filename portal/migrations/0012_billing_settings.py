"""Add settings of billing: the tax note and due date of statements, and the close in two steps."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("portal", "0011_budget_requests")]

    operations = [
        migrations.AddField(
            "organisation",
            "tax_text",
            models.CharField(
                blank=True,
                default="",
                help_text="tax note on each statement of a cost centre",
                max_length=300,
            ),
        ),
        migrations.AddField(
            "organisation",
            "payment_days",
            models.PositiveSmallIntegerField(
                default=30, help_text="days from the close of a month until its statements are due"
            ),
        ),
        migrations.AddField(
            "organisation",
            "two_step_close",
            models.BooleanField(
                default=False, help_text="one person proposes to close a month, and another person closes it"
            ),
        ),
    ]
