"""Add the rules about second factors and fresh proofs of identity, and the list of browser sessions."""

from __future__ import annotations

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("portal", "0021_directories"),
    ]

    operations = [
        migrations.AddField(
            model_name="organisation",
            name="second_factor_for",
            field=models.CharField(
                choices=[
                    ("nobody", "nobody"),
                    ("operators_and_finance", "operators and finance"),
                    ("everybody", "everybody"),
                ],
                default="nobody",
                help_text="people who must have a second factor",
                max_length=24,
            ),
        ),
        migrations.AddField(
            model_name="organisation",
            name="step_up_minutes",
            field=models.PositiveSmallIntegerField(
                default=10,
                help_text="minutes for which a proof of identity allows changes that need a fresh one",
            ),
        ),
        migrations.CreateModel(
            name="BrowserSession",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("session_key", models.CharField(max_length=40, unique=True)),
                (
                    "generation",
                    models.PositiveIntegerField(help_text="the session has ended if the user's is newer"),
                ),
                ("signed_in_at", models.DateTimeField()),
                ("last_used_at", models.DateTimeField()),
                ("address", models.CharField(max_length=45)),
                (
                    "agent",
                    models.CharField(blank=True, default="", help_text="User-Agent header", max_length=200),
                ),
                (
                    "method",
                    models.CharField(
                        blank=True, default="", help_text="steps of the sign-in", max_length=200
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="browser_sessions",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
    ]
