"""Create the tables of version 0.0 that refer to scheduler tables, and make the audit append-only."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import CASCADE, PROTECT, F, Q
from django.db.models.fields.json import KeyTextTransform

from scheduler.migrations._tables import (
    ID,
    PUBLIC_ID,
    SINGLE_ROW_ID,
    optional_link,
    optional_text,
    optional_time,
    spaced,
    table,
    titled,
)

# A trigger refuses UPDATE and DELETE by every role. The program's role also loses the right to TRUNCATE.
AUDIT_IS_APPEND_ONLY = """
CREATE FUNCTION portal_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit records are append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON portal_auditevent
    FOR EACH ROW EXECUTE FUNCTION portal_audit_is_append_only();

DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gpupool_app') THEN
        REVOKE UPDATE, DELETE, TRUNCATE ON portal_auditevent FROM gpupool_app;
    END IF;
END $$;
"""


class Migration(migrations.Migration):
    initial = True
    replaces = [
        ("portal", "0002_initial"),
        ("portal", "0003_audit_is_append_only"),
        ("portal", "0004_notice_marks"),
        ("portal", "0005_recurring_and_changed_reservations"),
        ("portal", "0006_one_of_a_kind_waits"),
        ("portal", "0007_hosts_of_a_template"),
        ("portal", "0008_tokens_of_workspaces"),
    ]
    dependencies = [("portal", "0001_user"), ("scheduler", "0001_squashed_0027")]

    operations = [
        table(
            "ApiToken",
            id=ID,
            name=models.CharField(max_length=80),
            prefix=models.CharField(max_length=12, help_text="first characters of the token, to identify it"),
            token_hash=models.CharField(max_length=64, unique=True),
            created_at=models.DateTimeField(),
            expires_at=optional_time(),
            last_used_at=optional_time(),
            revoked_at=optional_time(),
            user=models.ForeignKey(settings.AUTH_USER_MODEL, CASCADE, related_name="api_tokens"),
        ),
        table(
            "AuditEvent",
            id=ID,
            at=models.DateTimeField(),
            actor_name=models.CharField(max_length=150),
            verb=models.CharField(max_length=60, help_text="name of the service"),
            target=models.CharField(max_length=120, help_text="kind and id of the object"),
            target_name=models.CharField(max_length=120, default=""),
            before=models.JSONField(null=True),
            after=models.JSONField(null=True),
            why=optional_text(1000),
            via=models.CharField(
                max_length=10, default="web", help_text="where the action came from: web, api, cli or program"
            ),
            actor=models.ForeignKey(
                settings.AUTH_USER_MODEL,
                PROTECT,
                null=True,
                help_text="person who acted; empty: the program",
                related_name="+",
            ),
            team=models.ForeignKey("scheduler.team", PROTECT, null=True, related_name="+"),
            indexes=[
                models.Index(fields=["-at"], name="portal_audi_at_c81230_idx"),
                models.Index(fields=["target"], name="portal_audi_target_68d5ba_idx"),
            ],
        ),
        table(
            "EntryCode",
            id=ID,
            code_hash=models.CharField(max_length=64, unique=True),
            session_key_hash=optional_text(64),
            created_at=models.DateTimeField(),
            expires_at=models.DateTimeField(),
            used_at=optional_time(),
            user=models.ForeignKey(settings.AUTH_USER_MODEL, CASCADE, related_name="+"),
            workload=models.ForeignKey("scheduler.workload", CASCADE, related_name="+"),
            api_token=optional_link("portal.apitoken", CASCADE, related_name="+"),
        ),
        table(
            "Membership",
            id=ID,
            role=models.CharField(max_length=6, default="member", choices=titled("member", "lead")),
            created_at=models.DateTimeField(),
            team=models.ForeignKey("scheduler.team", CASCADE, related_name="memberships"),
            user=models.ForeignKey(settings.AUTH_USER_MODEL, CASCADE, related_name="memberships"),
            constraints=[
                models.UniqueConstraint(fields=("user", "team"), name="one_membership_per_user_and_team")
            ],
        ),
        table(
            "Organisation",
            id=SINGLE_ROW_ID,
            name=models.CharField(max_length=80),
            time_zone=models.CharField(max_length=60, default="UTC"),
            currency=models.CharField(max_length=3, default="EUR"),
            simulated_history_until=optional_time(),
            history_progress=models.JSONField(
                blank=True,
                null=True,
                help_text="progress of loading the simulated history: done, total, text",
            ),
            constraints=[models.CheckConstraint(condition=Q(("id", 1)), name="there_is_one_organisation")],
        ),
        table(
            "Submission",
            id=ID,
            public_id=PUBLIC_ID,
            kind=models.CharField(
                max_length=16,
                choices=[
                    ("reservation", "Reservation"),
                    ("series", "recurring reservation"),
                    ("window_change", "another window"),
                    ("quota_change", "Quota Change"),
                    ("membership", "Membership"),
                ],
            ),
            why=optional_text(1000),
            payload=models.JSONField(help_text="validated arguments of the verb"),
            state=models.CharField(
                max_length=10,
                default="waiting",
                choices=titled("waiting", "approved", "declined", "withdrawn"),
            ),
            created_at=models.DateTimeField(),
            author=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, related_name="submissions"),
            pool=optional_link("scheduler.pool", PROTECT, related_name="+"),
            reservation=optional_link("scheduler.reservation", PROTECT, related_name="submissions"),
            team=models.ForeignKey("scheduler.team", PROTECT, related_name="submissions"),
            indexes=[models.Index(fields=["state", "created_at"], name="portal_subm_state_73b3cb_idx")],
            constraints=[
                models.UniqueConstraint(
                    condition=Q(("kind", "window_change"), ("state", "waiting")),
                    fields=("reservation",),
                    name="one_change_of_a_reservation_waits",
                ),
                models.UniqueConstraint(
                    condition=Q(("kind", "membership"), ("state", "waiting")),
                    fields=("team", "author"),
                    name="one_wish_to_join_a_team_waits",
                ),
                models.UniqueConstraint(
                    F("team"),
                    F("pool"),
                    KeyTextTransform("model", "payload"),
                    condition=Q(("kind", "quota_change"), ("state", "waiting")),
                    name="one_change_of_a_quota_waits",
                ),
            ],
        ),
        table(
            "Approval",
            id=ID,
            approved=models.BooleanField(),
            changed_payload=models.JSONField(blank=True, null=True),
            comment=optional_text(1000),
            decided_at=models.DateTimeField(),
            decided_by=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, related_name="+"),
            submission=models.OneToOneField("portal.submission", PROTECT, related_name="approval"),
        ),
        table(
            "Notification",
            id=ID,
            kind=models.CharField(max_length=40),
            numbers=models.JSONField(default=dict),
            source=models.CharField(
                max_length=80, help_text="key of the fact that it reports; one notice per key"
            ),
            at=models.DateTimeField(),
            read_at=optional_time(),
            reservation=optional_link("scheduler.reservation", CASCADE, related_name="+"),
            user=models.ForeignKey(settings.AUTH_USER_MODEL, CASCADE, related_name="notifications"),
            workload=optional_link("scheduler.workload", CASCADE, related_name="+"),
            submission=optional_link("portal.submission", CASCADE, related_name="+"),
            indexes=[models.Index(fields=["user", "-at"], name="portal_noti_user_id_88f86d_idx")],
            constraints=[models.UniqueConstraint(fields=("user", "source"), name="a_fact_is_told_once")],
        ),
        table(
            "Template",
            id=ID,
            slug=models.SlugField(max_length=40, unique=True),
            name=models.CharField(max_length=80),
            description=optional_text(300),
            kind=models.CharField(max_length=10, choices=spaced("notebook", "job")),
            type=models.CharField(
                max_length=12, choices=titled("training", "inference", "interactive", "other")
            ),
            units=models.PositiveIntegerField(default=1),
            profile=optional_text(30),
            command=models.TextField(blank=True, default=""),
            max_runtime_seconds=models.PositiveIntegerField(),
            position=models.PositiveSmallIntegerField(default=0),
            hosts=models.PositiveIntegerField(
                default=1, help_text="number of hosts of a job; each gets ``units`` units"
            ),
        ),
        table(
            "WorkspaceOrigin",
            workload=models.OneToOneField(
                "scheduler.workload",
                CASCADE,
                primary_key=True,
                serialize=False,
                related_name="workspace_origin",
            ),
            label=models.CharField(max_length=40, unique=True),
            created_at=models.DateTimeField(),
        ),
        table(
            "WorkspaceSession",
            id=ID,
            token_hash=models.CharField(max_length=64, unique=True),
            session_key_hash=optional_text(64, help_text="session key of the portal session that created it"),
            created_at=models.DateTimeField(),
            ended_at=optional_time(),
            user=models.ForeignKey(settings.AUTH_USER_MODEL, CASCADE, related_name="+"),
            workload=models.ForeignKey("scheduler.workload", CASCADE, related_name="+"),
            api_token=optional_link(
                "portal.apitoken", CASCADE, help_text="token that created it", related_name="+"
            ),
        ),
        table(
            "ToldStart",
            workload=models.OneToOneField(
                "scheduler.workload", CASCADE, primary_key=True, serialize=False, related_name="told_start"
            ),
            expected_start=models.DateTimeField(),
            at=models.DateTimeField(),
        ),
        table(
            "NoticeMark",
            id=SINGLE_ROW_ID,
            looked_until=models.DateTimeField(),
            constraints=[models.CheckConstraint(condition=Q(("id", 1)), name="there_is_one_notice_mark")],
        ),
        migrations.RunSQL(AUDIT_IS_APPEND_ONLY),
    ]
