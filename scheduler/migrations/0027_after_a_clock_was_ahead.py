"""Where the clock was ahead and was set back, what ended meanwhile ends in a time to come: it holds nothing, so a reservation that
begins may take its slots."""

from django.db import migrations, models

ONLY_WHAT_IS_HELD = """
CREATE OR REPLACE FUNCTION scheduler_bind_only_free_slots() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM scheduler_allocation held
        WHERE held.slots && NEW.slots AND upper_inf(held.period) AND held.period && NEW.period
          AND held.reservation_id IS DISTINCT FROM NEW.reservation_id
    ) THEN
        RAISE EXCEPTION 'slots % are held by work outside the reservation', NEW.slots USING ERRCODE = 'exclusion_violation';
    END IF;
    RETURN NEW;
END $$;
"""
AS_BEFORE = ONLY_WHAT_IS_HELD.replace("upper_inf(held.period) AND ", "")


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0026_what_a_budget_gate_tells")]

    operations = [
        migrations.RunSQL(ONLY_WHAT_IS_HELD, AS_BEFORE),
        migrations.AddField(
            model_name="clockreading",
            name="set_at",
            field=models.DateTimeField(
                blank=True, help_text="when it was last found that the wall clock had been set", null=True
            ),
        ),
    ]
