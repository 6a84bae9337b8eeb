"""What of a run's GPUs made it fail is kept with its end."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0024_gpus_that_are_missing")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="gpu_events",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text="hardware events of its GPUs that explain its failure, such as xid:79",
            ),
        ),
    ]
