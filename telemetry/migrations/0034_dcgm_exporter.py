"""dcgm-exporters of hosts, the readings that they give, and counters and flags of GPUs that seldom change."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import CASCADE

from scheduler.migrations._tables import ID, table

SAMPLE_COLUMNS = """
ALTER TABLE telemetry_sample
    ADD COLUMN graphics_active real,
    ADD COLUMN sm_occupancy real,
    ADD COLUMN dram_active real,
    ADD COLUMN fp64_active real,
    ADD COLUMN fp32_active real,
    ADD COLUMN fp16_active real,
    ADD COLUMN encoder_utilisation real,
    ADD COLUMN decoder_utilisation real,
    ADD COLUMN fan_percent real,
    ADD COLUMN power_limit_w real,
    ADD COLUMN memory_clock_mhz integer,
    ADD COLUMN video_clock_mhz integer,
    ADD COLUMN dcgm_readings bigint
"""
DROP_SAMPLE_COLUMNS = """
ALTER TABLE telemetry_sample
    DROP COLUMN graphics_active,
    DROP COLUMN sm_occupancy,
    DROP COLUMN dram_active,
    DROP COLUMN fp64_active,
    DROP COLUMN fp32_active,
    DROP COLUMN fp16_active,
    DROP COLUMN encoder_utilisation,
    DROP COLUMN decoder_utilisation,
    DROP COLUMN fan_percent,
    DROP COLUMN power_limit_w,
    DROP COLUMN memory_clock_mhz,
    DROP COLUMN video_clock_mhz,
    DROP COLUMN dcgm_readings
"""
SOURCES = [("nvml", "NVML"), ("simulated", "simulated"), ("dcgm", "dcgm-exporter")]
KINDS = [
    ("out_of_bounds", "impossible value: stored as unknown"),
    ("counter", "the counter fell or grew too fast: the energy of the interval is unknown"),
    ("clock_corrected", "the clock was wrong: the time is corrected"),
    ("clock_refused", "the clock was too wrong: the sample is lost"),
    ("unreadable_line", "line that cannot be parsed: ignored"),
    ("foreign_gpu", "GPU that the host does not have: refused"),
]
PROBLEMS = [
    ("", "none"),
    ("unreachable", "no connection"),
    ("timeout", "no complete answer in time"),
    ("redirect", "answered with a redirect"),
    ("status", "answered with an error"),
    ("too_large", "the answer is too large"),
    ("encoded", "the answer is compressed"),
    ("not_text", "the answer is not UTF-8 text"),
    ("no_gpu", "the answer has no value of a GPU of this host"),
]


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0032_run_reports")]

    operations = [
        migrations.RunSQL(SAMPLE_COLUMNS, DROP_SAMPLE_COLUMNS),
        table(
            "DcgmTarget",
            id=ID,
            url=models.CharField(max_length=300),
            created_at=models.DateTimeField(),
            due_at=models.DateTimeField(help_text="time of the next scrape"),
            scraped_at=models.DateTimeField(null=True, help_text="time of the last scrape"),
            succeeded_at=models.DateTimeField(
                null=True, help_text="time of the last scrape without a problem"
            ),
            problem=models.CharField(max_length=20, choices=PROBLEMS, default="", blank=True),
            fields_read=models.PositiveIntegerField(
                null=True, help_text="fields of DCGM with a value in the last successful scrape"
            ),
            units_read=models.PositiveIntegerField(null=True, help_text="units with a value in that scrape"),
            unreadable_lines=models.PositiveIntegerField(
                null=True, help_text="lines that could not be parsed"
            ),
            refused_gpus=models.PositiveIntegerField(
                null=True, help_text="GPUs and MIG instances that are not of this host"
            ),
            host=models.OneToOneField("scheduler.host", CASCADE, related_name="dcgm_target"),
            indexes=[models.Index(fields=["due_at"], name="due_dcgm_targets")],
        ),
        table(
            "DcgmScrape",
            id=ID,
            at=models.DateTimeField(),
            units=ArrayField(models.BigIntegerField()),
            values=models.BinaryField(),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="+"),
            indexes=[
                models.Index(fields=["host", "at"], name="dcgm_scrapes_of_a_host"),
                models.Index(fields=["at"], name="old_dcgm_scrapes"),
            ],
        ),
        table(
            "SlowReading",
            id=ID,
            reading=models.CharField(max_length=30),
            source=models.CharField(max_length=10, choices=[("dcgm", "dcgm-exporter")]),
            at=models.DateTimeField(),
            value=models.BigIntegerField(),
            gpu=models.ForeignKey("scheduler.gpu", CASCADE, related_name="+"),
            constraints=[
                models.UniqueConstraint(
                    fields=("gpu", "reading", "source", "at"), name="one_slow_reading_at_a_time"
                )
            ],
        ),
        migrations.AlterField("readingfault", "source", models.CharField(max_length=20, choices=SOURCES)),
        migrations.AlterField("readingfault", "kind", models.CharField(max_length=20, choices=KINDS)),
    ]
