"""Every API token has an end. Existing tokens keep all rights and end at most 90 days after the upgrade."""

from __future__ import annotations

from django.db import migrations, models

LIMIT_EXISTING_TOKENS = """
UPDATE portal_apitoken
SET expires_at = LEAST(expires_at, CURRENT_TIMESTAMP + interval '90 days')
WHERE revoked_at IS NULL OR expires_at IS NULL
"""


class Migration(migrations.Migration):
    dependencies = [("portal", "0018_token_scopes_service_accounts_and_repeatable_requests")]

    operations = [
        migrations.RunSQL(LIMIT_EXISTING_TOKENS, migrations.RunSQL.noop),
        # The foreign keys of the rows have checks that wait for the commit. They would block the change.
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", migrations.RunSQL.noop),
        migrations.AlterField("apitoken", "expires_at", models.DateTimeField()),
        migrations.AddConstraint(
            "apitoken",
            models.CheckConstraint(condition=~models.Q(scopes=[]), name="a_token_has_a_scope"),
        ),
    ]
