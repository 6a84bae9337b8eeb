"""Count people for events that a program can cause, so that one person's programs take no GPU out of use."""

from django.db import migrations, models

from telemetry.migrations._health_rules import rules_of


def count_people(apps, schema_editor):
    """Set what counts. An action that an operator changed stays.

    The second update is for databases whose xid:109 was inserted with the values of an earlier version of the table.
    """
    rules = apps.get_model("telemetry", "HealthRule").objects
    of_programs = [row.code for row in rules_of("0003", "0005") if row.counts == "people"]
    rules.filter(code__in=of_programs).update(counts="people")
    rules.filter(code="xid:109", action="quarantine_gpu", repeats=1, window_seconds=3600).update(
        repeats=3, window_seconds=86_400
    )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0005_strays_and_more_rules")]

    operations = [
        migrations.AddField(
            model_name="healthrule",
            name="counts",
            field=models.CharField(
                choices=[("events", "events"), ("people", "people's work")],
                default="events",
                help_text="people: a program can bring it about, so those of one person's work count as one",
                max_length=6,
            ),
        ),
        migrations.RunPython(count_people, migrations.RunPython.noop),
    ]
