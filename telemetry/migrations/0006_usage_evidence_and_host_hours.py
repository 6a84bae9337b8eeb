"""Usage evidence of charge lines, the state of each host's samples by hour, and safe retention settings."""

from django.db import migrations, models
from django.db.models import CASCADE, F, Q

from scheduler.migrations._tables import ID, SINGLE_ROW_ID, table

# Earlier versions copied the measured use into the charge once, when the line was written.
COPY_EVIDENCE = """
INSERT INTO telemetry_chargeevidence (charge_id, used_slot_seconds, covered_slot_seconds, updated_at)
SELECT id, used_slot_seconds, covered_slot_seconds, created_at
FROM telemetry_charge WHERE covered_slot_seconds IS NOT NULL
"""
# Watermarks of earlier versions have no time. Their newest sample is the best that is known.
START_WATERMARKS = """
UPDATE telemetry_samplewatermark AS mark
SET agent_instance = host.agent_instance, sampled_until = (
    SELECT max(newest.ts) FROM scheduler_unit AS unit JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id
    CROSS JOIN LATERAL (
        SELECT ts FROM telemetry_sample WHERE unit_id = unit.id AND ts <= now() ORDER BY ts DESC LIMIT 1
    ) AS newest
    WHERE gpu.host_id = mark.host_id
)
FROM scheduler_host AS host WHERE host.id = mark.host_id
"""
# The new constraint would reject settings with which an hour could be merged from some of its minutes only.
KEEP_MINUTES_LONG_ENOUGH = """
UPDATE telemetry_retention SET minute_days = sample_days + 1 WHERE minute_days < sample_days + 1
"""


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0030_removed_rows"), ("telemetry", "0005_statement_digests")]

    operations = [
        table(
            "ChargeEvidence",
            charge=models.OneToOneField(
                "telemetry.charge", CASCADE, primary_key=True, serialize=False, related_name="evidence"
            ),
            used_slot_seconds=models.FloatField(
                null=True, help_text="utilisation x slots x covered seconds; empty: not measured"
            ),
            covered_slot_seconds=models.FloatField(help_text="slots x seconds that samples cover"),
            updated_at=models.DateTimeField(),
        ),
        table(
            "EvidenceDue",
            id=ID,
            hour=models.DateTimeField(),
            host=models.ForeignKey("scheduler.host", CASCADE),
            constraints=[models.UniqueConstraint(fields=("hour", "host"), name="evidence_is_due_once")],
        ),
        table(
            "HostHour",
            id=ID,
            hour=models.DateTimeField(help_text="start of the hour"),
            state=models.CharField(
                max_length=8,
                default="waiting",
                choices=[
                    ("complete", "every sample has arrived"),
                    ("waiting", "waiting for the spool of its agent"),
                    ("lost", "samples are lost"),
                ],
            ),
            lost_seconds=models.FloatField(default=0),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="sample_hours"),
            indexes=[
                models.Index(fields=["host", "hour"], condition=Q(state="waiting"), name="waiting_host_hours")
            ],
            constraints=[
                models.UniqueConstraint(fields=("host", "hour"), name="one_state_per_host_and_hour")
            ],
        ),
        table(
            "HostHoursRecorded",
            id=SINGLE_ROW_ID,
            until=models.DateTimeField(),
            constraints=[
                models.CheckConstraint(condition=Q(id=1), name="there_is_one_row_of_recorded_host_hours")
            ],
        ),
        table(
            "SampleGap",
            id=ID,
            cause=models.CharField(
                max_length=12,
                choices=[
                    ("skipped", "batches were missing for too long"),
                    ("reinstalled", "the agent was installed again, without its spool"),
                    ("removed", "the host was removed"),
                ],
            ),
            first_sequence=models.BigIntegerField(
                null=True, help_text="first missing batch; empty: not numbered"
            ),
            last_sequence=models.BigIntegerField(null=True),
            start=models.DateTimeField(),
            end=models.DateTimeField(),
            host=models.ForeignKey("scheduler.host", CASCADE, related_name="sample_gaps"),
            indexes=[models.Index(fields=["host", "end"], name="gaps_of_a_host")],
            constraints=[
                models.CheckConstraint(
                    condition=Q(end__gte=F("start")), name="a_sample_gap_ends_after_its_start"
                )
            ],
        ),
        migrations.AddField(
            "Batch",
            "first_sample",
            models.DateTimeField(help_text="time of its first valid sample", null=True),
        ),
        migrations.AddField(
            "Batch", "last_sample", models.DateTimeField(help_text="time of its last valid sample", null=True)
        ),
        migrations.AddField(
            "SampleWatermark",
            "agent_instance",
            models.CharField(
                default="",
                help_text="installation of the agent that sent the last of these batches",
                max_length=64,
            ),
        ),
        migrations.AddField(
            "SampleWatermark",
            "sampled_until",
            models.DateTimeField(
                help_text="time of the newest sample up to which no batch is awaited", null=True
            ),
        ),
        migrations.AddField(
            "Statement",
            "missing_samples",
            models.JSONField(
                default=list, help_text="hosts that still owed samples at the close, with their hours"
            ),
        ),
        migrations.AddField(
            "Statement",
            "missing_samples_reason",
            models.CharField(
                blank=True,
                default="",
                help_text="why the month was closed without these samples, by the person who closed it",
                max_length=1000,
            ),
        ),
        migrations.RunSQL(KEEP_MINUTES_LONG_ENOUGH),
        migrations.AddConstraint(
            "Retention",
            models.CheckConstraint(
                condition=Q(minute_days__gte=F("sample_days") + 1),
                name="minutes_are_kept_longer_than_samples",
            ),
        ),
        migrations.RunSQL(START_WATERMARKS),
        migrations.RunSQL(COPY_EVIDENCE),
    ]
