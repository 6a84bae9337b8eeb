"""Since when a host's disk is full: operators are told when it is so for long. The planner does not read it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0022_full_disks_and_better_places")]

    operations = [
        migrations.AddField(
            model_name="host",
            name="disk_full_since",
            field=models.DateTimeField(blank=True, help_text="since when its agent has said so", null=True),
        ),
    ]
