"""A directory of cost centres, with an entry for each code in use, and percentage splits.

The dated rows of projects and pools become shares. Each of them pays 100 %.
"""

from decimal import Decimal

from django.db import migrations, models

RENAMED = """
ALTER INDEX telemetry_costcentre_pkey RENAME TO telemetry_costcentreshare_pkey;
ALTER SEQUENCE telemetry_costcentre_id_seq RENAME TO telemetry_costcentreshare_id_seq;
ALTER TRIGGER cost_centres_are_only_added ON telemetry_costcentreshare
    RENAME TO cost_centre_shares_are_only_added;
"""

CODES_IN_USE = """
INSERT INTO telemetry_costcentre (code, name, postal_address, purchase_order, created_at)
SELECT code, '', '', '', now() FROM (
    SELECT code FROM telemetry_costcentreshare
    UNION SELECT cost_centre FROM telemetry_budget
    UNION SELECT cost_centre FROM telemetry_statementline
) AS used WHERE code <> '' ORDER BY code;
SET CONSTRAINTS ALL IMMEDIATE;
"""

# Until now, lines of open months without a cost centre were corrected by each charging run. Shares whose time
# has such lines stay due.
SHARES_BEFORE = """
INSERT INTO telemetry_settledshare (share_id, settled_at)
SELECT id, now() FROM telemetry_costcentreshare AS share
WHERE NOT EXISTS (
    SELECT FROM telemetry_charge AS line JOIN telemetry_statement AS statement ON statement.month = line.month
    WHERE statement.state = 'open' AND line.cost_centre = '' AND NOT line.reversal
        AND line.start >= share.valid_from
        AND (line.project_id = share.project_id
            OR (line.pool_id = share.pool_id AND line.project_id IS NULL AND line.bucket = 'reserved_unused'))
);
SET CONSTRAINTS ALL IMMEDIATE;
"""

GUARDS = """
CREATE FUNCTION telemetry_refuse_incomplete_split() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    total numeric;
BEGIN
    SELECT sum(percent) INTO total FROM telemetry_costcentreshare
    WHERE (project_id = NEW.project_id OR pool_id = NEW.pool_id)
        AND valid_from = NEW.valid_from AND created_at = NEW.created_at;
    IF total <> 100 THEN
        RAISE EXCEPTION 'percent: the shares from % sum to %, allowed: exactly 100', NEW.valid_from, total
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER shares_of_a_split_sum_to_the_whole AFTER INSERT ON telemetry_costcentreshare
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_incomplete_split();

CREATE FUNCTION telemetry_refuse_other_code() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of cost centre %: it is retired, not deleted, and keeps its code', TG_OP, OLD.code
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER cost_centres_are_retired BEFORE DELETE ON telemetry_costcentre
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_other_code();
CREATE TRIGGER cost_centres_keep_their_code BEFORE UPDATE ON telemetry_costcentre
    FOR EACH ROW WHEN (OLD.code <> NEW.code) EXECUTE FUNCTION telemetry_refuse_other_code();
"""


def payer(name: str, help_text: str = "") -> models.ForeignKey:
    return models.ForeignKey(
        f"scheduler.{name}",
        models.PROTECT,
        blank=True,
        null=True,
        related_name="cost_centre_shares",
        help_text=help_text,
    )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0014_price_factors")]

    operations = [
        migrations.RenameModel("CostCentre", "CostCentreShare"),
        migrations.RunSQL(RENAMED, migrations.RunSQL.noop),
        migrations.AlterField("CostCentreShare", "project", payer("project")),
        migrations.AlterField(
            "CostCentreShare", "pool", payer("pool", "dedicated pool whose unused time it pays for")
        ),
        migrations.AlterField(
            "CostCentreShare", "code", models.CharField(max_length=40, help_text="code of the cost centre")
        ),
        migrations.AddField(
            "CostCentreShare",
            "percent",
            models.DecimalField(max_digits=5, decimal_places=2, default=Decimal(100)),
        ),
        migrations.RemoveConstraint("CostCentreShare", "one_cost_centre_per_project_and_date"),
        migrations.RemoveConstraint("CostCentreShare", "one_cost_centre_per_pool_and_date"),
        migrations.RemoveConstraint("CostCentreShare", "a_cost_centre_is_of_a_project_or_of_a_pool"),
        migrations.AddConstraint(
            "CostCentreShare",
            models.UniqueConstraint(
                fields=["project", "valid_from", "created_at", "code"],
                name="one_share_per_project_split_and_cost_centre",
            ),
        ),
        migrations.AddConstraint(
            "CostCentreShare",
            models.UniqueConstraint(
                fields=["pool", "valid_from", "created_at", "code"],
                name="one_share_per_pool_split_and_cost_centre",
            ),
        ),
        migrations.AddConstraint(
            "CostCentreShare",
            models.CheckConstraint(
                condition=models.Q(project__isnull=True) ^ models.Q(pool__isnull=True),
                name="a_share_is_of_a_project_or_of_a_pool",
            ),
        ),
        migrations.AddConstraint(
            "CostCentreShare",
            models.CheckConstraint(
                condition=models.Q(percent__gt=0) & models.Q(percent__lte=100),
                name="a_share_is_at_most_the_whole",
            ),
        ),
        migrations.CreateModel(
            "CostCentre",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("code", models.CharField(max_length=40, unique=True)),
                ("name", models.CharField(max_length=120, default="", blank=True)),
                ("postal_address", models.CharField(max_length=500, default="", blank=True)),
                (
                    "purchase_order",
                    models.CharField(
                        max_length=80, default="", blank=True, help_text="reference that statements show"
                    ),
                ),
                (
                    "retired_from",
                    models.DateTimeField(
                        null=True, blank=True, help_text="it pays until this time; empty: not retired"
                    ),
                ),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=~models.Q(code=""), name="a_cost_centre_has_a_code")
                ]
            },
        ),
        migrations.CreateModel(
            "SettledShare",
            [
                (
                    "share",
                    models.OneToOneField(
                        primary_key=True,
                        on_delete=models.CASCADE,
                        serialize=False,
                        to="telemetry.costcentreshare",
                    ),
                ),
                ("settled_at", models.DateTimeField()),
            ],
        ),
        migrations.RunSQL(CODES_IN_USE, migrations.RunSQL.noop),
        migrations.RunSQL(SHARES_BEFORE, migrations.RunSQL.noop),
        migrations.RunSQL(GUARDS),
        migrations.AddField(
            "Charge",
            "share_percent",
            models.DecimalField(
                max_digits=5,
                decimal_places=2,
                default=Decimal(100),
                help_text="share of the time that its cost centre pays",
            ),
        ),
        migrations.RemoveConstraint("Charge", "only_a_reversal_is_negative_and_it_names_its_line"),
        migrations.AddConstraint(
            "Charge",
            models.CheckConstraint(
                condition=models.Q(reversal=False, slots__gt=0, slot_seconds__gte=0)
                | models.Q(reversal=True, slots__lt=0, slot_seconds__lte=0, corrects__isnull=False),
                name="only_a_reversal_is_negative_and_it_names_its_line",
            ),
        ),
    ]
