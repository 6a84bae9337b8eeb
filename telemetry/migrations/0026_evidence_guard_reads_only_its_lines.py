"""The guard of usage evidence reads only the charge lines of the changed evidence."""

from django.db import migrations

# A join could read all charge lines for each statement, so the time would grow with the square of a month.
GUARD = """
CREATE OR REPLACE FUNCTION telemetry_refuse_evidence_of_closed_month() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    months date[];
    refused date;
BEGIN
    SELECT array_agg(DISTINCT month) INTO months FROM (
        SELECT (SELECT month FROM telemetry_charge WHERE id = changed.charge_id) AS month FROM changed
    ) AS lines;
    -- The states are read in a statement of its own: it sees a close for which the lock has waited.
    PERFORM 1 FROM telemetry_statement WHERE month = ANY(months) ORDER BY month FOR SHARE;
    SELECT month INTO refused FROM telemetry_statement WHERE month = ANY(months) AND state <> 'open' LIMIT 1;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION 'evidence of %: the month is not open, nothing changes its evidence', refused
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0025_clock_skew")]

    operations = [migrations.RunSQL(GUARD)]
