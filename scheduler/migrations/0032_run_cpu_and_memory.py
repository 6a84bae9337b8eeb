"""CPU time and peak memory of ended runs, as their agents measured them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0031_guarantee_changes")]

    operations = [
        migrations.AddField(
            "run",
            "cpu_seconds",
            models.FloatField(
                null=True, blank=True, help_text="CPU time of all its processes; empty: not measured"
            ),
        ),
        migrations.AddField(
            "run",
            "memory_peak_mib",
            models.PositiveIntegerField(
                null=True, blank=True, help_text="peak of its memory on the host; empty: not measured"
            ),
        ),
    ]
