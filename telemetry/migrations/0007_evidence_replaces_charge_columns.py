"""Charges no longer hold measured use. Evidence of a closed month does not change."""

from django.db import migrations

# One check per SQL statement, not per row: a run may write the evidence of ten thousand lines. The lock makes a
# close wait for evidence that is being written, and the writer wait for the close.
GUARDS = """
CREATE FUNCTION telemetry_refuse_evidence_of_closed_month() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    months date[];
    refused date;
BEGIN
    SELECT array_agg(DISTINCT charge.month) INTO months
    FROM changed JOIN telemetry_charge AS charge ON charge.id = changed.charge_id;
    -- The states are read in a statement of its own: it sees a close for which the lock has waited.
    PERFORM 1 FROM telemetry_statement WHERE month = ANY(months) ORDER BY month FOR SHARE;
    SELECT month INTO refused FROM telemetry_statement WHERE month = ANY(months) AND state <> 'open' LIMIT 1;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION 'evidence of %: the month is not open, nothing changes its evidence', refused
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER new_evidence_is_of_open_months AFTER INSERT ON telemetry_chargeevidence
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_evidence_of_closed_month();
CREATE TRIGGER evidence_of_closed_months_stays AFTER UPDATE ON telemetry_chargeevidence
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_evidence_of_closed_month();
CREATE TRIGGER evidence_of_closed_months_is_kept AFTER DELETE ON telemetry_chargeevidence
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_evidence_of_closed_month();
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0006_usage_evidence_and_host_hours")]

    operations = [
        migrations.RemoveField("Charge", "used_slot_seconds"),
        migrations.RemoveField("Charge", "covered_slot_seconds"),
        migrations.RunSQL(GUARDS),
    ]
