"""Price factors by priority and workload type, and prices of one date in two currencies."""

from django.db import migrations, models
from django.db.models import PROTECT, Q

from scheduler.migrations._tables import ID, table

GUARDS = """
CREATE TRIGGER price_factors_are_only_added BEFORE UPDATE OR DELETE ON telemetry_pricefactor
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();

CREATE FUNCTION telemetry_refuse_factor_in_the_past() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM telemetry_chargeduntil AS charged JOIN scheduler_gpu AS gpu ON gpu.id = charged.gpu_id
               WHERE (NEW.pool_id IS NULL OR gpu.pool_id = NEW.pool_id) AND charged."until" > NEW.valid_from) THEN
        RAISE EXCEPTION 'valid_from: time after % is already charged, a factor begins later', NEW.valid_from
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER price_factors_begin_after_charged_time BEFORE INSERT ON telemetry_pricefactor
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_factor_in_the_past();
"""
PRIORITIES = [(0, "low"), (1, "normal"), (2, "high"), (3, "critical")]
TYPES = [
    ("training", "Training"),
    ("inference", "Inference"),
    ("interactive", "Interactive"),
    ("other", "Other"),
]


def factor_of_a_charge(help_text: str) -> models.ForeignKey:
    """Return the column of a charge that names a factor."""
    return models.ForeignKey(
        "telemetry.pricefactor", PROTECT, null=True, related_name="+", db_index=False, help_text=help_text
    )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0013_currencies"), ("scheduler", "0030_removed_rows")]

    operations = [
        migrations.RemoveConstraint("price", "one_price_per_model_and_date"),
        migrations.AddConstraint(
            "price",
            models.UniqueConstraint(
                fields=["pool", "model", "currency", "valid_from"],
                name="one_price_per_model_currency_and_date",
                nulls_distinct=False,
            ),
        ),
        table(
            "PriceFactor",
            id=ID,
            priority=models.PositiveSmallIntegerField(null=True, blank=True, choices=PRIORITIES),
            workload_type=models.CharField(max_length=12, default="", blank=True, choices=TYPES),
            factor=models.DecimalField(max_digits=7, decimal_places=4, help_text="1 is the price itself"),
            valid_from=models.DateTimeField(),
            note=models.CharField(max_length=300, default="", blank=True),
            created_at=models.DateTimeField(),
            pool=models.ForeignKey(
                "scheduler.pool", PROTECT, null=True, blank=True, help_text="empty: every shared pool"
            ),
            constraints=[
                models.UniqueConstraint(
                    fields=["pool", "priority", "workload_type", "valid_from"],
                    name="one_price_factor_per_kind_and_date",
                    nulls_distinct=False,
                ),
                models.CheckConstraint(
                    condition=Q(priority__isnull=False, workload_type="")
                    | (Q(priority__isnull=True) & ~Q(workload_type="")),
                    name="a_price_factor_is_of_a_priority_or_of_a_type",
                ),
                models.CheckConstraint(condition=Q(factor__gt=0), name="a_price_factor_is_positive"),
            ],
        ),
        migrations.AddField(
            "charge", "priority_factor", factor_of_a_charge("factor of the priority on the price; empty: 1")
        ),
        migrations.AddField(
            "charge", "type_factor", factor_of_a_charge("factor of the workload type on the price; empty: 1")
        ),
        migrations.RunSQL(GUARDS),
    ]
