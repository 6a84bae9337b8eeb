"""API tokens have scopes and a parent. Service accounts belong to a team. Requests can be repeated safely."""

from __future__ import annotations

import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import portal.models.accounts


class Migration(migrations.Migration):
    dependencies = [("portal", "0017_encrypt_environments")]

    operations = [
        migrations.AddField(
            "apitoken",
            "scopes",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(
                    choices=[
                        ("read", "Read"),
                        ("submit", "Submit"),
                        ("manage", "Manage"),
                        ("finance", "Finance"),
                    ],
                    max_length=8,
                ),
                default=portal.models.accounts.all_scopes,
                size=None,
            ),
        ),
        migrations.AddField(
            "apitoken",
            "parent",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="children",
                to="portal.apitoken",
            ),
        ),
        migrations.AddField(
            "user",
            "service_team",
            models.ForeignKey(
                blank=True,
                help_text="team of a service account; null: a person",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="service_accounts",
                to="scheduler.team",
            ),
        ),
        migrations.AddField(
            "user",
            "service_owner",
            models.ForeignKey(
                blank=True,
                help_text="person who answers for a service account",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="service_accounts",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            "organisation",
            "token_days",
            models.PositiveSmallIntegerField(
                default=365,
                help_text="longest life of an API token that is made in the browser, in days",
            ),
        ),
        migrations.AddField(
            "organisation",
            "separate_approver",
            models.BooleanField(
                default=None,
                help_text="nobody decides their own request; null: where there are two operators",
                null=True,
            ),
        ),
        migrations.CreateModel(
            "IdempotencyRecord",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key_hash", models.CharField(max_length=64)),
                (
                    "digest",
                    models.CharField(
                        help_text="SHA-256 of method, path and body of the request", max_length=64
                    ),
                ),
                ("status", models.PositiveSmallIntegerField()),
                ("answer", models.BinaryField()),
                ("created_at", models.DateTimeField(db_index=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=["user", "key_hash"], name="one_answer_per_key")
                ]
            },
        ),
    ]
