"""A GPU that its host stopped reporting is missing until it is reported again or somebody knows that it is gone. The planner does not
read it: such a GPU is retired, as before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0023_since_when_a_disk_is_full")]

    operations = [
        migrations.AddField(
            model_name="gpu",
            name="missing_since",
            field=models.DateTimeField(
                blank=True,
                help_text="its host stopped reporting it; until it does again, or an operator knows that it is gone",
                null=True,
            ),
        ),
    ]
