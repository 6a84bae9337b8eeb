"""Pools and teams can limit the size of new homes, and homes have the limit of their file system."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0035_work_runs_as_its_owner")]

    operations = [
        migrations.AddField(
            "pool",
            "home_limit_gib",
            models.PositiveIntegerField(
                blank=True,
                help_text="largest size of a new home on its hosts; empty: no limit",
                null=True,
            ),
        ),
        migrations.AddField(
            "team",
            "home_limit_gib",
            models.PositiveIntegerField(
                blank=True, help_text="largest size of a new home; empty: that of the pool", null=True
            ),
        ),
        migrations.AddField(
            "volume",
            "limit_bytes",
            models.BigIntegerField(
                blank=True,
                help_text="largest size that its file system allows; empty: no limit, or unknown",
                null=True,
            ),
        ),
    ]
