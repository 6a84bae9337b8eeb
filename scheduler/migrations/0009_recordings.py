from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0008_dependencies_and_arrays")]

    operations = [
        migrations.CreateModel(
            name="Recording",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(db_index=True)),
                (
                    "planned_at",
                    models.BigIntegerField(help_text="the plan's moment, in whole seconds since the epoch"),
                ),
                ("epoch", models.BigIntegerField()),
                ("parts", models.JSONField(help_text="the digest of each table's part")),
                ("plan_sha256", models.CharField(help_text="of the plan's canonical text", max_length=64)),
                ("placed", models.PositiveIntegerField()),
                ("evicted", models.PositiveIntegerField()),
                ("refused", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="RecordingPart",
            fields=[
                ("digest", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("body", models.BinaryField()),
                (
                    "used_at",
                    models.DateTimeField(db_index=True, help_text="about when a recording last named it"),
                ),
            ],
        ),
        # It is compressed already.
        migrations.RunSQL(
            "ALTER TABLE scheduler_recordingpart ALTER COLUMN body SET STORAGE EXTERNAL",
            migrations.RunSQL.noop,
        ),
    ]
