"""Studies of the number of GPUs that a pool needs."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import PROTECT, SET_NULL, F, Q

from scheduler.migrations._tables import ID, PUBLIC_ID, table


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("scheduler", "0032_run_cpu_and_memory"),
        ("telemetry", "0036_alerts"),
    ]

    operations = [
        table(
            "CapacityStudy",
            id=ID,
            public_id=PUBLIC_ID,
            pool=models.ForeignKey("scheduler.pool", PROTECT, related_name="+"),
            model=models.CharField(blank=True, help_text="only this model; empty: each model", max_length=80),
            wait_limit_seconds=models.PositiveIntegerField(help_text="p95 wait that the pool should keep"),
            start=models.DateTimeField(help_text="start of the replayed time"),
            end=models.DateTimeField(),
            state=models.CharField(
                choices=[
                    ("waiting", "Waiting"),
                    ("running", "Running"),
                    ("done", "Done"),
                    ("cut_short", "stopped at its time limit; sizes are missing"),
                    ("empty", "the period has no request that started"),
                    ("failed", "Failed"),
                ],
                default="waiting",
                max_length=10,
            ),
            requested_by=models.ForeignKey(settings.AUTH_USER_MODEL, SET_NULL, null=True, related_name="+"),
            created_at=models.DateTimeField(),
            active_at=models.DateTimeField(null=True, help_text="last sign of life of the task"),
            ended_at=models.DateTimeField(null=True),
            progress=models.FloatField(default=0, help_text="done part of the work, 0 to 1"),
            inputs=models.BinaryField(null=True, help_text="frozen demand; empty: the task has not begun"),
            facts=models.JSONField(
                default=dict, help_text="counts of the frozen demand, and what was left out"
            ),
            sizes=models.JSONField(default=list, help_text="figures of each replayed size"),
            recorded=models.JSONField(default=dict, help_text="waits that there were, by model"),
            constraints=[
                models.CheckConstraint(condition=Q(end__gt=F("start")), name="a_capacity_study_has_a_period")
            ],
            indexes=[
                models.Index(
                    fields=["created_at"],
                    condition=Q(state__in=("waiting", "running")),
                    name="capacity_studies_to_run",
                )
            ],
        ),
    ]
