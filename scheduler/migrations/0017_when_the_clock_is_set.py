import django.db.models
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0016_keys_of_hosts")]

    operations = [
        migrations.CreateModel(
            name="ClockReading",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("wall", models.DateTimeField()),
                ("machine", models.CharField(max_length=120)),
                ("uptime", models.FloatField(help_text="seconds on CLOCK_BOOTTIME of that machine")),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=django.db.models.Q(id=1), name="there_is_one_clock_reading"
                    )
                ]
            },
        ),
    ]
