"""Statements name the format of their files, and rehearsals have the result of the rules of FOCUS."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0026_evidence_guard_reads_only_its_lines")]

    operations = [
        migrations.AddField(
            "statement",
            "file_format",
            models.PositiveSmallIntegerField(
                default=1,
                help_text="columns of its files: 2 has the billing mode of each line; set at the close",
            ),
        ),
        migrations.AddField(
            "monthrehearsal",
            "focus",
            models.JSONField(
                null=True, help_text="rows and broken rules of the FOCUS files; empty: they were not checked"
            ),
        ),
    ]
