"""Cost centres of dedicated pools.

Until this migration, the oldest project of the pool's team paid for its unused time.
"""

import django.db.models.deletion
from django.db import migrations, models

COST_CENTRES_USED_UNTIL_NOW = """
INSERT INTO telemetry_costcentre (pool_id, code, valid_from, created_at)
SELECT pool.id, centre.code, centre.valid_from, now()
FROM scheduler_pool AS pool
CROSS JOIN LATERAL (
    SELECT id FROM scheduler_project WHERE team_id = pool.team_id ORDER BY created_at, id LIMIT 1
) AS oldest
JOIN telemetry_costcentre AS centre ON centre.project_id = oldest.id
WHERE pool.kind = 'static'
ORDER BY pool.id, centre.valid_from;
SET CONSTRAINTS ALL IMMEDIATE;
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0002_refund_limits")]

    operations = [
        migrations.AlterField(
            "costcentre",
            "project",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="cost_centres",
                to="scheduler.project",
            ),
        ),
        migrations.AddField(
            "costcentre",
            "pool",
            models.ForeignKey(
                blank=True,
                help_text="dedicated pool whose unused time it pays for",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="cost_centres",
                to="scheduler.pool",
            ),
        ),
        migrations.AddConstraint(
            "costcentre",
            models.UniqueConstraint(fields=("pool", "valid_from"), name="one_cost_centre_per_pool_and_date"),
        ),
        migrations.AddConstraint(
            "costcentre",
            models.CheckConstraint(
                condition=models.Q(("project__isnull", True), ("pool__isnull", True), _connector="XOR"),
                name="a_cost_centre_is_of_a_project_or_of_a_pool",
            ),
        ),
        migrations.AddIndex(
            "charge",
            models.Index(
                condition=models.Q(
                    ("cost_centre", ""),
                    ("reversal", False),
                    models.Q(("project__isnull", False), ("bucket", "reserved_unused"), _connector="OR"),
                ),
                fields=["month"],
                name="charges_without_cost_centre",
            ),
        ),
        migrations.RunSQL(COST_CENTRES_USED_UNTIL_NOW, migrations.RunSQL.noop),
    ]
