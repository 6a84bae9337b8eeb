"""New pools demand the isolation that their first hosts provide. Existing pools keep what they demand."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0033_leases_without_a_database")]

    operations = [
        migrations.AddField(
            "pool",
            "isolation_from_hosts",
            models.BooleanField(
                default=False,
                help_text="True: the first hosts of the pool decide which isolation it demands",
            ),
        ),
    ]
