"""The sums of statement lines per day, also of the months before, and the forecast of all charges."""

from django.db import migrations, models
from django.db.models import CASCADE, PROTECT, F, Q

from scheduler.migrations._tables import ID, table
from telemetry.models.amounts import CurrencyAmountField

EARLIER_DAYS = """
INSERT INTO telemetry_statementlineday (line_id, statement_id, day, slot_seconds, charged_cents)
SELECT line_id, statement_id, day, sum(slot_seconds), sum(charged_cents)
FROM telemetry_chargecell GROUP BY 1, 2, 3 ORDER BY 1, 3;

INSERT INTO telemetry_statementday (statement_id, day, currency, slot_seconds, charged_cents)
SELECT days.statement_id, days.day, line.currency,
    coalesce(sum(days.slot_seconds)
        FILTER (WHERE line.bucket IN ('used', 'reserved_unused') AND NOT line.idle_share), 0),
    sum(days.charged_cents)
FROM telemetry_statementlineday days JOIN telemetry_statementline line ON line.id = days.line_id
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;
SET CONSTRAINTS ALL IMMEDIATE;
"""

# A guard runs once for each statement. An update has one for the rows before and one for the rows after.
GUARDS = """
CREATE FUNCTION telemetry_refuse_days_of_closed_statements() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    refused bigint;
BEGIN
    SELECT id INTO refused FROM telemetry_statement
    WHERE state = 'closed' AND id IN (SELECT statement_id FROM changed) ORDER BY id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'statement %: it is closed, nothing changes its days', refused
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER days_are_added_to_open_statements AFTER INSERT ON telemetry_statementlineday
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_days_of_closed_statements();
CREATE TRIGGER days_change_in_open_statements AFTER UPDATE ON telemetry_statementlineday
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_days_of_closed_statements();
CREATE TRIGGER days_move_to_open_statements AFTER UPDATE ON telemetry_statementlineday
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_days_of_closed_statements();
CREATE TRIGGER days_leave_open_statements AFTER DELETE ON telemetry_statementlineday
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_days_of_closed_statements();
CREATE TRIGGER totals_of_days_are_added_to_open_statements AFTER INSERT ON telemetry_statementday
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_days_of_closed_statements();
CREATE TRIGGER totals_of_days_change_in_open_statements AFTER UPDATE ON telemetry_statementday
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_days_of_closed_statements();
CREATE TRIGGER totals_of_days_move_to_open_statements AFTER UPDATE ON telemetry_statementday
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_days_of_closed_statements();
CREATE TRIGGER totals_of_days_leave_open_statements AFTER DELETE ON telemetry_statementday
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_days_of_closed_statements();
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0016_charges_have_fewer_constraints")]

    operations = [
        table(
            "StatementLineDay",
            id=ID,
            day=models.DateField(help_text="billing day of the use, also in a correction"),
            slot_seconds=models.BigIntegerField(),
            charged_cents=CurrencyAmountField(),
            line=models.ForeignKey("telemetry.statementline", CASCADE, related_name="days", db_index=False),
            statement=models.ForeignKey(
                "telemetry.statement", PROTECT, related_name="+", db_constraint=False, db_index=False
            ),
            constraints=[
                models.UniqueConstraint(fields=["line", "day"], name="one_row_per_statement_line_and_day")
            ],
            indexes=[models.Index(fields=["statement", "day"], name="days_of_a_statement")],
        ),
        table(
            "StatementDay",
            id=ID,
            day=models.DateField(help_text="billing day of the use, also in a correction"),
            currency=models.CharField(max_length=3),
            slot_seconds=models.BigIntegerField(help_text="of held and of reserved time"),
            charged_cents=CurrencyAmountField(),
            statement=models.ForeignKey("telemetry.statement", PROTECT, related_name="days"),
            constraints=[
                models.UniqueConstraint(
                    fields=["statement", "day", "currency"], name="one_row_per_statement_day_and_currency"
                )
            ],
        ),
        table(
            "OrganisationForecast",
            id=ID,
            month=models.DateField(unique=True, help_text="first day of the month"),
            currency=models.CharField(max_length=3),
            expected=CurrencyAmountField(),
            low=CurrencyAmountField(),
            high=CurrencyAmountField(),
            past_periods=models.PositiveSmallIntegerField(default=0),
            past_inside=models.PositiveSmallIntegerField(default=0),
            as_of=models.DateTimeField(),
            constraints=[
                models.CheckConstraint(
                    condition=Q(low__lte=F("expected")) & Q(expected__lte=F("high")),
                    name="the_forecast_of_all_is_inside_its_range",
                )
            ],
        ),
        migrations.RunSQL(EARLIER_DAYS, migrations.RunSQL.noop),
        migrations.RunSQL(GUARDS),
    ]
