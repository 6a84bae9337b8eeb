"""Create the chain of seals over the audit records. A trigger makes it append-only."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

# The function is the one of the audit records.
SEALS_ARE_APPEND_ONLY = """
CREATE TRIGGER seals_are_append_only BEFORE UPDATE OR DELETE ON portal_auditseal
    FOR EACH ROW EXECUTE FUNCTION portal_audit_is_append_only();
CREATE TRIGGER sealed_events_are_append_only BEFORE UPDATE OR DELETE ON portal_sealedauditevent
    FOR EACH ROW EXECUTE FUNCTION portal_audit_is_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("portal", "0015_session_generations")]

    operations = [
        migrations.CreateModel(
            name="AuditProgress",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                (
                    "delivered_seal",
                    models.BigIntegerField(default=0, help_text="the receiver has all records up to it"),
                ),
                ("delivered_at", models.DateTimeField(blank=True, null=True)),
                ("failing_since", models.DateTimeField(blank=True, null=True)),
                ("failure", models.CharField(blank=True, default="", max_length=300)),
                (
                    "checked_seal",
                    models.BigIntegerField(default=0, help_text="the present check has reached it"),
                ),
                (
                    "checked_at",
                    models.DateTimeField(blank=True, help_text="end of the last complete check", null=True),
                ),
                ("findings", models.JSONField(default=list, help_text="what the last complete check found")),
                (
                    "new_findings",
                    models.JSONField(default=list, help_text="what the present check has found so far"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="AuditSeal",
            fields=[
                (
                    "number",
                    models.BigIntegerField(
                        help_text="1, 2, 3 and so on, without a gap", primary_key=True, serialize=False
                    ),
                ),
                ("sealed_at", models.DateTimeField(db_index=True)),
                ("events", models.PositiveIntegerField(help_text="number of sealed records")),
                (
                    "highest_event",
                    models.BigIntegerField(help_text="highest id of the records sealed so far"),
                ),
                (
                    "previous",
                    models.CharField(
                        help_text="digest of the previous link; zeros for the first", max_length=64
                    ),
                ),
                ("digest", models.CharField(max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name="SealedAuditEvent",
            fields=[
                ("event_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("digest", models.CharField(max_length=64)),
                (
                    "seal",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="entries",
                        to="portal.auditseal",
                    ),
                ),
            ],
        ),
        migrations.RunSQL(SEALS_ARE_APPEND_ONLY),
    ]
