"""When, and from which hosts, a reservation last let go of GPUs that can't be used."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0017_when_the_clock_is_set")]

    operations = [
        migrations.AddField(
            model_name="reservation",
            name="moved_at",
            field=models.DateTimeField(
                blank=True, help_text="when it last let go of GPUs that can't be used", null=True
            ),
        ),
        migrations.AddField(
            model_name="reservation",
            name="moved_from",
            field=models.CharField(blank=True, default="", help_text="the hosts of those", max_length=200),
        ),
    ]
