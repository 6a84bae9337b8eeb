"""Since when a host's disk is full: operators are told when it is so for long. The planner does not read it."""

from django.db import migrations, models
from django.utils import timezone


def begin_now(apps, schema_editor):
    """A disk that is full already is no news of its agent any more: nobody would ever be told."""
    apps.get_model("scheduler", "Host").objects.filter(disk_full=True, disk_full_since=None).update(
        disk_full_since=timezone.now()
    )


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0022_full_disks_and_better_places")]

    operations = [
        migrations.AddField(
            model_name="host",
            name="disk_full_since",
            field=models.DateTimeField(
                blank=True, help_text="time since which its agent reports this", null=True
            ),
        ),
        migrations.RunPython(begin_now, migrations.RunPython.noop),
    ]
