"""The sums of statement lines per person, also of the months before, and the lines of a cost centre."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import CASCADE, PROTECT

from scheduler.migrations._tables import ID, table
from telemetry.models.amounts import CurrencyAmountField

EARLIER_PEOPLE = """
INSERT INTO telemetry_statementlineperson (line_id, statement_id, user_id, user_name, slot_seconds,
    covered_slot_seconds, cost_cents, charged_cents, used_cents, idle_cents)
SELECT line_id, statement_id, user_id, max(user_name), sum(slot_seconds), sum(covered_slot_seconds),
    sum(cost_cents), sum(charged_cents), sum(used_cents), sum(idle_cents)
FROM telemetry_chargecell GROUP BY 1, 2, 3 ORDER BY 1, 3;
SET CONSTRAINTS ALL IMMEDIATE;
"""

GUARDS = """
CREATE FUNCTION telemetry_refuse_people_of_closed_statements() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    refused bigint;
BEGIN
    SELECT id INTO refused FROM telemetry_statement
    WHERE state = 'closed' AND id IN (SELECT statement_id FROM changed) ORDER BY id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'statement %: it is closed, nothing changes the sums of its people', refused
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER people_are_added_to_open_statements AFTER INSERT ON telemetry_statementlineperson
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_people_of_closed_statements();
CREATE TRIGGER people_change_in_open_statements AFTER UPDATE ON telemetry_statementlineperson
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_people_of_closed_statements();
CREATE TRIGGER people_move_to_open_statements AFTER UPDATE ON telemetry_statementlineperson
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_people_of_closed_statements();
CREATE TRIGGER people_leave_open_statements AFTER DELETE ON telemetry_statementlineperson
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_people_of_closed_statements();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0027_file_formats_and_focus_checks"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        table(
            "StatementLinePerson",
            id=ID,
            user_name=models.CharField(max_length=150, default="", help_text="name when first charged"),
            slot_seconds=models.BigIntegerField(),
            covered_slot_seconds=models.FloatField(
                null=True, help_text="held time with samples; empty: not held"
            ),
            cost_cents=CurrencyAmountField(),
            charged_cents=CurrencyAmountField(),
            used_cents=CurrencyAmountField(help_text="charge of measured use"),
            idle_cents=CurrencyAmountField(help_text="charge of measured time without use"),
            line=models.ForeignKey("telemetry.statementline", CASCADE, related_name="people", db_index=False),
            statement=models.ForeignKey(
                "telemetry.statement", PROTECT, related_name="+", db_constraint=False, db_index=False
            ),
            user=models.ForeignKey(
                settings.AUTH_USER_MODEL,
                PROTECT,
                null=True,
                related_name="+",
                db_constraint=False,
                db_index=False,
            ),
            constraints=[
                models.UniqueConstraint(
                    fields=["line", "user"],
                    name="one_row_per_statement_line_and_person",
                    nulls_distinct=False,
                )
            ],
            indexes=[models.Index(fields=["statement"], name="people_of_a_statement")],
        ),
        migrations.AddIndex(
            "StatementLine",
            models.Index(fields=["statement", "cost_centre"], name="lines_of_a_cost_centre"),
        ),
        migrations.RunSQL(EARLIER_PEOPLE, migrations.RunSQL.noop),
        migrations.RunSQL(GUARDS),
    ]
