"""Two more rules: GPUs that can't be read because NVML does not start, and GPUs that their host does not report any more."""

from django.db import migrations

OWN = "gpupool"
RULES = [
    ("nvml:unreadable", "the driver can't be asked", "cordon", 1, 3600, OWN),
    ("gpu:missing", "its host does not report it any more", "warn", 1, 3600, OWN),
]


def add_rules(apps, schema_editor):
    """What an operator has made for the same code stays as it is."""
    rule = apps.get_model("telemetry", "HealthRule")
    for code, meaning, action, repeats, window, source in RULES:
        rule.objects.get_or_create(
            code=code,
            defaults={
                "meaning": meaning,
                "action": action,
                "repeats": repeats,
                "window_seconds": window,
                "source": source,
                "default_action": action,
                "default_repeats": repeats,
                "default_window_seconds": window,
                "default_counts": "events",
            },
        )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0007_what_health_rules_began_with")]

    operations = [migrations.RunPython(add_rules, migrations.RunPython.noop)]
