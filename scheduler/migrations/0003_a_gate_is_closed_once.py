from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0002_guards")]

    operations = [
        migrations.AddConstraint(
            model_name="budgetgate",
            constraint=models.UniqueConstraint(
                fields=("team", "project", "action"), name="a_gate_is_closed_once", nulls_distinct=False
            ),
        ),
    ]
