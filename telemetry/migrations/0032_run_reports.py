"""Reports of ended workloads, which are kept after their samples are deleted."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import CASCADE, PROTECT, F, Q

from scheduler.migrations._tables import ID, table

GUARD = """
CREATE TRIGGER frozen_run_reports_do_not_change BEFORE UPDATE ON telemetry_runreport
    FOR EACH ROW WHEN (OLD.frozen_at IS NOT NULL) EXECUTE FUNCTION telemetry_refuse_change();
"""
REMOVE_GUARD = "DROP TRIGGER frozen_run_reports_do_not_change ON telemetry_runreport;"


def series(help_text):
    return ArrayField(models.FloatField(null=True), default=list, help_text=help_text)


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0031_guarantee_changes"),
        ("telemetry", "0028_statement_line_people"),
    ]

    operations = [
        table(
            "RunReport",
            workload=models.OneToOneField(
                "scheduler.workload", CASCADE, primary_key=True, related_name="report", serialize=False
            ),
            start=models.DateTimeField(help_text="start of the first time in which it held a unit"),
            end=models.DateTimeField(help_text="end of the last time in which it held a unit"),
            point_seconds=models.PositiveIntegerField(help_text="length of a point of the series"),
            advice=models.JSONField(
                default=list, help_text="what to ask for next time: codes with their numbers"
            ),
            made_at=models.DateTimeField(help_text="time at which it was last written"),
            refresh_at=models.DateTimeField(null=True, help_text="time of the next look; empty: frozen"),
            frozen_at=models.DateTimeField(null=True),
            constraints=[
                models.CheckConstraint(condition=Q(end__gte=F("start")), name="a_run_report_has_a_length"),
                models.CheckConstraint(
                    condition=Q(frozen_at__isnull=True) ^ Q(refresh_at__isnull=True),
                    name="a_run_report_is_frozen_or_looked_at_again",
                ),
            ],
            indexes=[
                models.Index(
                    fields=["refresh_at"],
                    condition=Q(frozen_at__isnull=True),
                    name="run_reports_not_frozen",
                )
            ],
        ),
        table(
            "RunReportUnit",
            id=ID,
            held_seconds=models.FloatField(),
            covered_seconds=models.FloatField(),
            samples=models.PositiveIntegerField(),
            utilisation_seconds=models.FloatField(null=True),
            utilisation_max=models.FloatField(null=True),
            busy_seconds=models.FloatField(null=True),
            inefficient_seconds=models.FloatField(null=True),
            sm_unmeasured_seconds=models.FloatField(null=True),
            idle_seconds=models.FloatField(null=True),
            empty_seconds=models.FloatField(null=True),
            sm_active_seconds=models.FloatField(null=True),
            tensor_active_seconds=models.FloatField(null=True),
            memory_used_max_mib=models.IntegerField(null=True),
            energy_mj=models.BigIntegerField(null=True),
            energy_faults=models.IntegerField(null=True),
            memory_peak_at=models.DateTimeField(
                null=True, help_text="start of the time with the memory's peak"
            ),
            busy=series("busy part of the time, in percent"),
            empty=series("part of the time without a process, in percent"),
            utilisation=series("mean, in percent"),
            sm_active=series("mean, in percent"),
            tensor_active=series("mean, in percent"),
            memory_mib=series("peak, in MiB"),
            power_w=series("mean, in watts"),
            report=models.ForeignKey("telemetry.runreport", CASCADE, related_name="units"),
            unit=models.ForeignKey("scheduler.unit", PROTECT, related_name="+"),
            constraints=[
                models.UniqueConstraint(fields=("report", "unit"), name="a_unit_is_once_in_a_run_report")
            ],
        ),
        migrations.RunSQL(GUARD, REMOVE_GUARD),
    ]
