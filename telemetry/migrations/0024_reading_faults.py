"""Counts of impossible readings, energy that a counter makes unknown, and busy time without SM activity."""

from django.db import migrations, models
from django.db.models import CASCADE

from scheduler.migrations._tables import ID, table

KINDS = [
    ("out_of_bounds", "impossible value: stored as unknown"),
    ("counter", "the counter fell or grew too fast: the energy of the interval is unknown"),
    ("clock_corrected", "the clock was wrong: the time is corrected"),
    ("clock_refused", "the clock was too wrong: the sample is lost"),
]


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0031_guarantee_changes"),
        ("telemetry", "0023_billing_modes"),
    ]

    operations = [
        table(
            "ReadingFault",
            id=ID,
            day=models.DateField(),
            source=models.CharField(max_length=20, choices=[("nvml", "NVML"), ("simulated", "simulated")]),
            reading=models.CharField(max_length=30),
            kind=models.CharField(max_length=20, choices=KINDS),
            count=models.BigIntegerField(),
            last_at=models.DateTimeField(help_text="time of the last of these readings"),
            last_value=models.FloatField(
                null=True, help_text="the last of these readings; for a clock, seconds ahead of the server"
            ),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="reading_faults"),
            constraints=[
                models.UniqueConstraint(
                    fields=("host", "day", "source", "reading", "kind"), name="one_count_of_reading_faults"
                )
            ],
        ),
        migrations.AddField(
            "rollup",
            "sm_unmeasured_seconds",
            models.FloatField(
                null=True,
                help_text="busy seconds whose SM activity is unknown; empty: written by an earlier version",
            ),
        ),
        migrations.AddField(
            "rollup",
            "energy_faults",
            models.IntegerField(
                null=True, help_text="intervals whose energy is unknown because of the counter"
            ),
        ),
        migrations.AlterField(
            "rollup",
            "busy_seconds",
            models.FloatField(null=True, help_text="seconds with a utilisation of 5 % or more"),
        ),
        migrations.AlterField(
            "rollup",
            "inefficient_seconds",
            models.FloatField(null=True, help_text="busy seconds with little SM and little tensor activity"),
        ),
        migrations.AlterField(
            "rollup",
            "idle_seconds",
            models.FloatField(
                null=True, help_text="seconds with a process on the unit and a utilisation below 5 %"
            ),
        ),
    ]
