"""Sessions, entry codes and workspace sessions have a generation; setup codes and addresses of tokens."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


def generation(help_text: str) -> models.PositiveIntegerField:
    return models.PositiveIntegerField(default=0, help_text=help_text)


class Migration(migrations.Migration):
    dependencies = [("portal", "0014_budget_requests_of_projects_and_cost_centres")]

    operations = [
        migrations.AddField(
            "user",
            "session_generation",
            generation("a session, an entry code or a workspace session of an older generation is refused"),
        ),
        migrations.AddField(
            "entrycode",
            "session_generation",
            generation("generation of the user's sessions that issued it; an older one is refused"),
        ),
        migrations.AddField(
            "workspacesession",
            "session_generation",
            generation("generation of the entry code; an older one than the user's is refused"),
        ),
        migrations.CreateModel(
            "SetupCode",
            [
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("code_hash", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(id=1), name="there_is_one_setup_code")
                ]
            },
        ),
        migrations.CreateModel(
            "TokenAddress",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "address",
                    models.CharField(
                        help_text="IPv4 address, or the first 64 bits of an IPv6 address", max_length=45
                    ),
                ),
                ("first_used_at", models.DateTimeField()),
                ("last_used_at", models.DateTimeField()),
                (
                    "token",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="addresses",
                        to="portal.apitoken",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["last_used_at"], name="portal_toke_last_us_47a462_idx")],
                "constraints": [
                    models.UniqueConstraint(fields=("token", "address"), name="one_row_per_token_and_address")
                ],
            },
        ),
    ]
