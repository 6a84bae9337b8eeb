"""Proposals to close a month, and the two people who closed it."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import PROTECT, F, Q

from scheduler.migrations._tables import ID, optional_text, table

GUARDS = """
CREATE TRIGGER close_proposals_are_only_added BEFORE UPDATE OR DELETE ON telemetry_closeproposal
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0011_billing_days"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        table(
            "CloseProposal",
            id=ID,
            proposed_at=models.DateTimeField(),
            charged=models.DecimalField(
                max_digits=14, decimal_places=2, help_text="charged total of the month"
            ),
            lines_digest=models.CharField(max_length=64, help_text="SHA-256 of the lines of the statement"),
            missing_samples_reason=optional_text(
                1000, help_text="why the month is closed without missing samples"
            ),
            note=optional_text(1000),
            proposed_by=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, related_name="+"),
            statement=models.ForeignKey("telemetry.statement", PROTECT, related_name="proposals"),
        ),
        migrations.AddField(
            "statement",
            "proposed_at",
            models.DateTimeField(null=True, help_text="when the close was proposed; empty: in one step"),
        ),
        migrations.AddField(
            "statement",
            "proposed_by",
            models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, null=True, related_name="+"),
        ),
        migrations.AddConstraint(
            "statement",
            models.CheckConstraint(
                condition=Q(proposed_by=None) | ~Q(proposed_by=F("closed_by")),
                name="two_different_people_close_a_month",
            ),
        ),
        migrations.RunSQL(GUARDS),
    ]
