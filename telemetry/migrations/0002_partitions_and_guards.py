"""Daily partitions of the samples, and what the database itself refuses: edits of a ledger and of closed months."""

from __future__ import annotations

from django.db import migrations

SAMPLES = """
CREATE TABLE telemetry_sample (
    unit_id bigint NOT NULL,
    ts timestamptz NOT NULL,
    allocation_id bigint,
    utilisation double precision,
    sm_active double precision,
    tensor_active double precision,
    memory_used_mib integer,
    memory_utilisation double precision,
    power_w double precision,
    energy_mj bigint,
    temperature_c double precision,
    memory_temperature_c double precision,
    sm_clock_mhz integer,
    throttle_reasons bigint,
    pcie_rx_kib bigint,
    pcie_tx_kib bigint,
    nvlink_kib bigint,
    processes integer,
    stray_processes integer
) PARTITION BY RANGE (ts);
CREATE INDEX telemetry_sample_unit_ts ON telemetry_sample (unit_id, ts);
CREATE TABLE telemetry_sample_default PARTITION OF telemetry_sample DEFAULT;

-- Security definer: the program's own role may not create or drop tables, only through these two functions.
CREATE FUNCTION telemetry_make_partitions(first_day date, days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    made integer := 0;
    day date;
    part text;
    low timestamptz;
    high timestamptz;
BEGIN
    IF days < 1 OR days > 400 THEN
        RAISE EXCEPTION 'days: % is not between 1 and 400', days;
    END IF;
    FOR day IN SELECT first_day + n FROM generate_series(0, days - 1) AS n LOOP
        part := 'telemetry_sample_' || to_char(day, 'YYYYMMDD');
        IF to_regclass(part) IS NOT NULL THEN
            CONTINUE;
        END IF;
        low := day::timestamp AT TIME ZONE 'UTC';
        high := (day + 1)::timestamp AT TIME ZONE 'UTC';
        EXECUTE format('CREATE TABLE %I (LIKE telemetry_sample INCLUDING DEFAULTS)', part);
        -- What came before its partition existed waits in the default one, and would keep this one from being attached.
        EXECUTE format(
            'WITH early AS (DELETE FROM telemetry_sample_default WHERE ts >= %L AND ts < %L RETURNING *) '
            'INSERT INTO %I SELECT * FROM early', low, high, part);
        EXECUTE format(
            'ALTER TABLE telemetry_sample ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, low, high);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;

CREATE FUNCTION telemetry_drop_samples_before(first_kept date) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    dropped integer := 0;
    part text;
BEGIN
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'telemetry_sample'::regclass AND c.relname ~ '^telemetry_sample_[0-9]{8}$'
          AND to_date(right(c.relname, 8), 'YYYYMMDD') < first_kept
    LOOP
        EXECUTE format('DROP TABLE %I', part);
        dropped := dropped + 1;
    END LOOP;
    DELETE FROM telemetry_sample_default WHERE ts < first_kept::timestamp AT TIME ZONE 'UTC';
    RETURN dropped;
END $$;
"""

NO_SAMPLES = """
DROP FUNCTION telemetry_drop_samples_before(date);
DROP FUNCTION telemetry_make_partitions(date, integer);
DROP TABLE telemetry_sample;
"""

GUARDS = """
CREATE FUNCTION telemetry_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of %: its rows are only ever added', TG_OP, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER charges_are_only_added BEFORE UPDATE OR DELETE ON telemetry_charge
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();
CREATE TRIGGER prices_are_only_added BEFORE UPDATE OR DELETE ON telemetry_price
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();
CREATE TRIGGER cost_centres_are_only_added BEFORE UPDATE OR DELETE ON telemetry_costcentre
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();

CREATE FUNCTION telemetry_refuse_charge_in_closed_month() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    month_state text;
BEGIN
    IF NEW.corrects_id IS NULL AND NEW.month <> date_trunc('month', NEW.start AT TIME ZONE 'UTC')::date THEN
        RAISE EXCEPTION 'month: % is not the month of %, and the line corrects none', NEW.month, NEW.start
            USING ERRCODE = 'check_violation';
    END IF;
    -- The lock makes a close wait for the charges on their way, and them for it.
    SELECT state INTO month_state FROM telemetry_statement WHERE month = NEW.month FOR SHARE;
    IF month_state IS NOT NULL AND month_state <> 'open' THEN
        RAISE EXCEPTION 'month: % is %, a charge goes into an open month', NEW.month, month_state
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER charges_go_into_open_months BEFORE INSERT ON telemetry_charge
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_charge_in_closed_month();

CREATE FUNCTION telemetry_refuse_price_in_the_past() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM telemetry_charge WHERE model = NEW.model AND "end" > NEW.valid_from
               AND (NEW.pool_id IS NULL OR pool_id = NEW.pool_id)) THEN
        RAISE EXCEPTION 'valid_from: time after % is already charged, a price begins later', NEW.valid_from
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER prices_begin_after_what_is_charged BEFORE INSERT ON telemetry_price
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_price_in_the_past();

CREATE FUNCTION telemetry_refuse_change_of_closed_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'closed' OR (TG_OP = 'DELETE' AND OLD.state <> 'open') THEN
        RAISE EXCEPTION 'statement of %: it is %, nothing changes it', OLD.month, OLD.state
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER closed_statements_stay BEFORE UPDATE OR DELETE ON telemetry_statement
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change_of_closed_statement();

CREATE FUNCTION telemetry_refuse_line_of_closed_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION '% of %: its rows are only ever added', TG_OP, TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF (SELECT state FROM telemetry_statement WHERE id = NEW.statement_id) <> 'closing' THEN
        RAISE EXCEPTION 'statement %: lines are written only while it closes', NEW.statement_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER lines_of_closed_statements_stay BEFORE INSERT OR UPDATE OR DELETE ON telemetry_statementline
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_line_of_closed_statement();
"""

NO_GUARDS = """
DROP TRIGGER lines_of_closed_statements_stay ON telemetry_statementline;
DROP FUNCTION telemetry_refuse_line_of_closed_statement();
DROP TRIGGER closed_statements_stay ON telemetry_statement;
DROP FUNCTION telemetry_refuse_change_of_closed_statement();
DROP TRIGGER prices_begin_after_what_is_charged ON telemetry_price;
DROP FUNCTION telemetry_refuse_price_in_the_past();
DROP TRIGGER charges_go_into_open_months ON telemetry_charge;
DROP FUNCTION telemetry_refuse_charge_in_closed_month();
DROP TRIGGER cost_centres_are_only_added ON telemetry_costcentre;
DROP TRIGGER prices_are_only_added ON telemetry_price;
DROP TRIGGER charges_are_only_added ON telemetry_charge;
DROP FUNCTION telemetry_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0001_initial")]

    operations = [
        migrations.RunSQL(SAMPLES, NO_SAMPLES),
        migrations.RunSQL(GUARDS, NO_GUARDS),
    ]
