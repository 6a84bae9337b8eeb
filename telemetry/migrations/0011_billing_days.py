"""The billing day of each charge line, and the time zones of billing months. Existing days are in UTC."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import PROTECT, Q

from scheduler.migrations._tables import ID, table

FILL_DAYS = """
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE telemetry_charge DISABLE TRIGGER charges_are_only_added;
UPDATE telemetry_charge SET day = (start AT TIME ZONE 'UTC')::date;
ALTER TABLE telemetry_charge ENABLE TRIGGER charges_are_only_added;
"""

GUARDS = """
CREATE OR REPLACE FUNCTION telemetry_refuse_charge_in_closed_month() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    month_state text;
BEGIN
    IF NEW.corrects_id IS NULL AND NEW.month <> date_trunc('month', NEW.day)::date THEN
        RAISE EXCEPTION 'month: % is not the month of %, and the line corrects none', NEW.month, NEW.day
            USING ERRCODE = 'check_violation';
    END IF;
    -- A local day differs from the day in UTC by one. The first day of a month may begin a day earlier.
    IF NEW.day NOT BETWEEN (NEW.start AT TIME ZONE 'UTC')::date - 2 AND (NEW.start AT TIME ZONE 'UTC')::date + 2 THEN
        RAISE EXCEPTION 'day: % is not the day of %', NEW.day, NEW.start USING ERRCODE = 'check_violation';
    END IF;
    -- The lock makes a close wait for the charges on their way, and them for it.
    SELECT state INTO month_state FROM telemetry_statement WHERE month = NEW.month FOR SHARE;
    IF month_state IS NOT NULL AND month_state <> 'open' THEN
        RAISE EXCEPTION 'month: % is %, a charge goes into an open month', NEW.month, month_state
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE FUNCTION telemetry_refuse_billing_zone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM now() AT TIME ZONE NEW.time_zone;  -- the audit needs a zone that the database knows, too
    IF EXISTS (SELECT FROM telemetry_billingzone WHERE first_month >= NEW.first_month) THEN
        RAISE EXCEPTION 'first_month: % is not later than that of every other zone', NEW.first_month
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF EXISTS (SELECT FROM telemetry_charge WHERE month >= NEW.first_month) THEN
        RAISE EXCEPTION 'first_month: % is charged already, a zone begins later', NEW.first_month
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_zones_begin_after_the_charged_months BEFORE INSERT ON telemetry_billingzone
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_billing_zone();
CREATE TRIGGER billing_zones_are_only_added BEFORE UPDATE OR DELETE ON telemetry_billingzone
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();
"""

DAY_HELP = "billing day of ``start``; its month is the month of the time"


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0010_cost_centre_statements"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField("charge", "day", models.DateField(null=True, help_text=DAY_HELP)),
        migrations.RunSQL(FILL_DAYS),
        migrations.AlterField("charge", "day", models.DateField(help_text=DAY_HELP)),
        table(
            "BillingZone",
            id=ID,
            first_month=models.DateField(unique=True, help_text="first day of the first month in this zone"),
            time_zone=models.CharField(max_length=60, help_text="name in the time zone database"),
            created_at=models.DateTimeField(),
            created_by=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, null=True, related_name="+"),
            constraints=[
                models.CheckConstraint(
                    condition=Q(first_month__day=1), name="a_billing_zone_begins_with_a_month"
                )
            ],
        ),
        migrations.AddField(
            "statement",
            "time_zone",
            models.CharField(
                max_length=60, default="", blank=True, help_text="time zone of the month, set at the close"
            ),
        ),
        migrations.AddField(
            "statement",
            "starts_at",
            models.DateTimeField(null=True, help_text="start of the month, set at the close"),
        ),
        migrations.AddField(
            "statement",
            "ends_at",
            models.DateTimeField(null=True, help_text="end of the month, set at the close"),
        ),
        migrations.RunSQL(GUARDS),
    ]
