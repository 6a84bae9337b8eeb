"""Charges have one guard per statement instead of per row, and fewer foreign keys and indexes."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


# The lock makes a close wait for the charges that are being written, and them for the close. The states are
# read in a statement of its own: it sees a close for which the lock has waited.
GUARD_OF_STATEMENTS = """
DROP TRIGGER charges_go_into_open_months ON telemetry_charge;
DROP FUNCTION telemetry_refuse_charge_in_closed_month();
CREATE FUNCTION telemetry_refuse_charges_in_closed_months() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    months date[];
    refused record;
BEGIN
    SELECT month, day INTO refused FROM added
    WHERE corrects_id IS NULL AND month <> date_trunc('month', day)::date LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'month: % is not the month of %, and the line corrects none', refused.month, refused.day
            USING ERRCODE = 'check_violation';
    END IF;
    -- A local day differs from the day in UTC by one. The first day of a month may begin a day earlier.
    SELECT day, start INTO refused FROM added
    WHERE abs(day - (start AT TIME ZONE 'UTC')::date) > 2 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'day: % is not the day of %', refused.day, refused.start USING ERRCODE = 'check_violation';
    END IF;
    SELECT array_agg(DISTINCT month) INTO months FROM added;
    PERFORM 1 FROM telemetry_statement WHERE month = ANY(months) ORDER BY month FOR SHARE;
    SELECT month, state INTO refused FROM telemetry_statement
    WHERE month = ANY(months) AND state <> 'open' ORDER BY month LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'month: % is %, a charge goes into an open month', refused.month, refused.state
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER charges_go_into_open_months AFTER INSERT ON telemetry_charge
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT
    EXECUTE FUNCTION telemetry_refuse_charges_in_closed_months();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0031_guarantee_changes"),
        ("telemetry", "0015_cost_centre_directory"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunSQL(GUARD_OF_STATEMENTS),
        migrations.AlterField(
            model_name="charge",
            name="allocation",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="charges",
                to="scheduler.allocation",
            ),
        ),
        migrations.AlterField(
            model_name="charge",
            name="gpu",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="scheduler.gpu",
            ),
        ),
        migrations.AlterField(
            model_name="charge",
            name="pool",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="scheduler.pool",
            ),
        ),
        migrations.AlterField(
            model_name="charge",
            name="price",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="telemetry.price",
            ),
        ),
        migrations.AlterField(
            model_name="charge",
            name="project",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="scheduler.project",
            ),
        ),
        migrations.AlterField(
            model_name="charge",
            name="reservation",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="charges",
                to="scheduler.reservation",
            ),
        ),
        migrations.AlterField(
            model_name="charge",
            name="team",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="scheduler.team",
            ),
        ),
        migrations.AlterField(
            model_name="charge",
            name="user",
            field=models.ForeignKey(
                db_constraint=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AlterField(
            model_name="charge",
            name="workload",
            field=models.ForeignKey(
                db_constraint=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="charges",
                to="scheduler.workload",
            ),
        ),
        migrations.AlterField(
            model_name="chargecell",
            name="statement",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="telemetry.statement",
            ),
        ),
        migrations.AlterField(
            model_name="chargecell",
            name="user",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AlterField(
            model_name="chargecell",
            name="workload",
            field=models.ForeignKey(
                db_constraint=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="charge_cells",
                to="scheduler.workload",
            ),
        ),
        migrations.AddIndex(
            model_name="charge",
            index=models.Index(
                condition=models.Q(("reservation__isnull", False)),
                fields=["reservation"],
                name="charges_of_a_reservation",
            ),
        ),
    ]
