"""One more rule: processes of no workload that an agent ended, because their pool says so."""

from django.db import migrations

RULE = (
    "stray:ended",
    "a process that belongs to no workload was ended, as the pool says",
    "note",
    1,
    3600,
    "gpupool",
)


def add_rule(apps, schema_editor):
    """People's programs bring it about, so it takes nothing out of use by itself and uses up nothing of what real faults need."""
    code, meaning, action, repeats, window, source = RULE
    apps.get_model("telemetry", "HealthRule").objects.get_or_create(
        code=code,
        defaults={
            "meaning": meaning,
            "action": action,
            "repeats": repeats,
            "window_seconds": window,
            "source": source,
            "counts": "people",
            "default_action": action,
            "default_repeats": repeats,
            "default_window_seconds": window,
            "default_counts": "people",
        },
    )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0009_budgets_of_gpu_hours")]

    operations = [migrations.RunPython(add_rule, migrations.RunPython.noop)]
