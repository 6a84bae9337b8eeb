"""Changes of guarantees with their times. Guarantees of removed quotas ended at the removal."""

import django.db.models.deletion
from django.db import migrations, models

# Approved requests, which are recorded elsewhere, are added by a migration of portal.
REMOVED_GUARANTEES = """
INSERT INTO scheduler_guaranteechange (team_id, pool_id, model, slots_before, slots_after, at)
SELECT team_id, pool_id, model, guaranteed_slots, 0, removed_at FROM scheduler_quota
WHERE removed_at IS NOT NULL AND guaranteed_slots > 0;
"""

GUARD = """
CREATE FUNCTION scheduler_refuse_guarantee_edit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of %: its rows are only ever added', TG_OP, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER guarantee_changes_are_only_added BEFORE UPDATE OR DELETE ON scheduler_guaranteechange
    FOR EACH ROW EXECUTE FUNCTION scheduler_refuse_guarantee_edit();
"""


def link(to):
    return models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to=to)


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0030_removed_rows")]

    operations = [
        migrations.CreateModel(
            name="GuaranteeChange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("model", models.CharField(max_length=60)),
                ("slots_before", models.PositiveIntegerField(help_text="840 is one GPU")),
                ("slots_after", models.PositiveIntegerField(help_text="840 is one GPU")),
                ("at", models.DateTimeField()),
                ("pool", link("scheduler.pool")),
                ("team", link("scheduler.team")),
            ],
            options={"indexes": [models.Index(fields=["at"], name="guarantee_changes_by_time")]},
        ),
        migrations.RunSQL(REMOVED_GUARANTEES + "SET CONSTRAINTS ALL IMMEDIATE;", migrations.RunSQL.noop),
        migrations.RunSQL(GUARD),
    ]
