"""The grace that a run's host was told, and what the host says of its checkpoints."""

from django.db import migrations, models

# Of work that is there: what its host was told was its pool's.
FILL = """
UPDATE scheduler_run AS r SET grace_seconds = p.grace_seconds
FROM scheduler_workload AS w JOIN scheduler_pool AS p ON p.id = w.pool_id
WHERE w.id = r.workload_id AND r.state <> 'ended'
"""


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0019_geometries_of_gpus")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="grace_seconds",
            field=models.PositiveIntegerField(
                default=30,
                help_text="grace period of the pool at the time of placement; the shim uses this value",
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="checkpoint_told",
            field=models.DateTimeField(
                blank=True,
                help_text="checkpoint_at by the clock of the host, to detect a new checkpoint",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="saved",
            field=models.BooleanField(
                default=False, help_text="it has acknowledged a checkpoint since its notice"
            ),
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
