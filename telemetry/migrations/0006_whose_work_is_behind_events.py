"""Events that a program can bring about count by people: one person's work takes no GPU from the others."""

from django.db import migrations, models

# What the vendor answers with a restart of the application or ignores, and may be the program's own: its remedy is not the GPU's.
OF_PROGRAMS = tuple(f"xid:{code}" for code in (8, 11, 13, 25, 31, 32, 43, 45, 68, 69, 80, 109))


def count_people(apps, schema_editor):
    """What an operator has changed of what is done stays as it is."""
    rules = apps.get_model("telemetry", "HealthRule").objects
    rules.filter(code__in=OF_PROGRAMS).update(counts="people")
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
