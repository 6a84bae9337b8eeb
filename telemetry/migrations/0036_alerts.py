"""Alerts of pools, and the rules that operators changed."""

import uuid

from django.conf import settings
from django.db import migrations, models
from django.db.models import CASCADE, SET_NULL, F, Q

from scheduler.migrations._tables import ID, table

KINDS = [
    (kind, kind)
    for kind in (
        "held_empty",
        "held_idle",
        "over_asked",
        "reserved_unused",
        "hot",
        "throttled",
        "ecc_growth",
        "telemetry_gap",
        "clock_skew",
        "long_wait",
    )
]
STATES = [(state, state) for state in ("firing", "acknowledged", "snoozed", "ended")]


def subject(model):
    return models.ForeignKey(model, CASCADE, null=True, related_name="alerts")


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("scheduler", "0032_run_cpu_and_memory"),
        ("telemetry", "0035_usage"),
    ]

    operations = [
        table(
            "AlertRule",
            id=ID,
            kind=models.CharField(max_length=16, choices=KINDS),
            enabled=models.BooleanField(default=True),
            begin=models.FloatField(help_text="an alert begins at this value or more"),
            end=models.FloatField(help_text="an alert ends at this value or less"),
            begin_minutes=models.PositiveIntegerField(
                help_text="time for which the value must hold to begin"
            ),
            end_minutes=models.PositiveIntegerField(help_text="time for which the value must hold to end"),
            stop_work=models.BooleanField(default=False, help_text="stop unused work after a warning"),
            notice_minutes=models.PositiveIntegerField(help_text="time from the warning to the stop"),
            pool=models.ForeignKey("scheduler.pool", CASCADE, related_name="alert_rules"),
            constraints=[
                models.UniqueConstraint(fields=("pool", "kind"), name="one_alert_rule_per_pool_and_kind"),
                models.CheckConstraint(
                    condition=Q(("end__lt", F("begin"))), name="an_alert_ends_below_its_begin"
                ),
            ],
        ),
        table(
            "Alert",
            id=ID,
            public_id=models.UUIDField(default=uuid.uuid4, editable=False, unique=True),
            kind=models.CharField(max_length=16, choices=KINDS),
            subject=models.CharField(
                max_length=40, help_text="kind and number of the subject, such as gpu:12"
            ),
            state=models.CharField(max_length=12, choices=STATES, default="firing"),
            value=models.FloatField(help_text="value at the begin, in the unit of the kind"),
            evidence=models.JSONField(default=dict, help_text="numbers for the sentence of the alert"),
            began_at=models.DateTimeField(),
            ended_at=models.DateTimeField(null=True),
            acknowledged_at=models.DateTimeField(null=True),
            snoozed_until=models.DateTimeField(null=True),
            stop_at=models.DateTimeField(null=True, help_text="time at which the unused work is stopped"),
            stopped_at=models.DateTimeField(null=True, help_text="time at which the stop was ordered"),
            acknowledged_by=models.ForeignKey(
                settings.AUTH_USER_MODEL, SET_NULL, null=True, related_name="+"
            ),
            pool=models.ForeignKey("scheduler.pool", CASCADE, related_name="alerts"),
            host=subject("scheduler.host"),
            gpu=subject("scheduler.gpu"),
            workload=subject("scheduler.workload"),
            reservation=subject("scheduler.reservation"),
            constraints=[
                models.UniqueConstraint(
                    fields=("kind", "subject"),
                    condition=Q(ended_at=None),
                    name="a_subject_has_one_open_alert",
                ),
                models.CheckConstraint(
                    condition=Q(state="ended", ended_at__isnull=False)
                    | (~Q(state="ended") & Q(ended_at=None)),
                    name="an_ended_alert_has_an_end",
                ),
            ],
            indexes=[
                models.Index(fields=["-began_at"], name="alerts_by_begin"),
                models.Index(fields=["ended_at"], name="alerts_by_end"),
            ],
        ),
    ]
