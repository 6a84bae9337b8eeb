"""Showback: teams whose charges are shown and not invoiced."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import PROTECT, Q

from scheduler.migrations._tables import ID, flag, table

GUARDS = """
CREATE TRIGGER billing_modes_are_only_added BEFORE UPDATE OR DELETE ON telemetry_teambillingmode
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();

CREATE FUNCTION telemetry_refuse_billing_mode_of_closed_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM telemetry_statement WHERE month >= NEW.first_month AND state <> 'open') THEN
        RAISE EXCEPTION 'first_month: % or a later month is closed, allowed: a later month', NEW.first_month
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_modes_begin_in_open_months BEFORE INSERT ON telemetry_teambillingmode
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_billing_mode_of_closed_month();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0022_adjustments"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        table(
            "TeamBillingMode",
            id=ID,
            mode=models.CharField(
                max_length=10,
                choices=[
                    ("chargeback", "chargeback: the charges are invoiced"),
                    ("showback", "showback: the charges are shown, not invoiced"),
                ],
            ),
            first_month=models.DateField(help_text="first day of the first month in this mode"),
            created_at=models.DateTimeField(),
            created_by=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, related_name="+"),
            team=models.ForeignKey("scheduler.team", PROTECT, related_name="billing_modes"),
            constraints=[
                models.CheckConstraint(
                    condition=Q(first_month__day=1), name="a_billing_mode_begins_with_a_month"
                ),
            ],
            indexes=[models.Index(fields=["team", "first_month"], name="billing_modes_of_a_team")],
        ),
        migrations.AddField(
            "statementline", "showback", flag("its charge is shown, not invoiced; assigned with the cents")
        ),
        migrations.RunSQL(GUARDS),
    ]
