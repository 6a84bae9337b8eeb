"""Cells have one guard per SQL statement, and lines have no foreign keys to rows that are never deleted."""

import django.db.models.deletion
from django.db import migrations, models

GUARDS = """
DROP TRIGGER cells_of_closed_statements_stay ON telemetry_chargecell;
CREATE FUNCTION telemetry_refuse_cells_of_closed_statements() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    refused bigint;
BEGIN
    SELECT id INTO refused FROM telemetry_statement
    WHERE state = 'closed' AND id IN (SELECT statement_id FROM changed) ORDER BY id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'statement %: it is closed, nothing changes its cells', refused
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER new_cells_are_of_open_statements AFTER INSERT ON telemetry_chargecell
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_cells_of_closed_statements();
CREATE TRIGGER cells_of_closed_statements_stay AFTER UPDATE ON telemetry_chargecell
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_cells_of_closed_statements();
CREATE TRIGGER cells_move_to_open_statements AFTER UPDATE ON telemetry_chargecell
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_cells_of_closed_statements();
CREATE TRIGGER cells_of_closed_statements_are_kept AFTER DELETE ON telemetry_chargecell
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_cells_of_closed_statements();
-- Cents are assigned after the insert. With room in its page, the new version of a cell needs no index entries.
ALTER TABLE telemetry_chargecell SET (fillfactor = 50);
"""


def unchecked(model: str, help_text: str = "") -> models.ForeignKey:
    return models.ForeignKey(
        db_constraint=False,
        db_index=False,
        help_text=help_text,
        null=True,
        on_delete=django.db.models.deletion.PROTECT,
        related_name="+",
        to=model,
    )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0018_rehearsals_and_unusual_spend")]

    operations = [
        migrations.RunSQL(GUARDS),
        migrations.AlterField("charge", "price", unchecked("telemetry.price")),
        migrations.AlterField(
            "charge",
            "priority_factor",
            unchecked("telemetry.pricefactor", "factor of the priority on the price; empty: 1"),
        ),
        migrations.AlterField(
            "charge",
            "type_factor",
            unchecked("telemetry.pricefactor", "factor of the workload type on the price; empty: 1"),
        ),
        migrations.AlterField(
            "chargeevidence",
            "charge",
            models.OneToOneField(
                db_constraint=False,
                on_delete=django.db.models.deletion.CASCADE,
                primary_key=True,
                related_name="evidence",
                serialize=False,
                to="telemetry.charge",
            ),
        ),
    ]
