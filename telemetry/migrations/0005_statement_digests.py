"""Digests of format 2 and signatures. Months that are closed keep format 1."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0004_budget_periods_and_forecasts")]

    operations = [
        migrations.AlterField(
            "statement",
            "digest",
            models.CharField(
                blank=True, default="", help_text="SHA-256 in the layout of digest_format", max_length=64
            ),
        ),
        migrations.AddField(
            "statement",
            "digest_format",
            models.PositiveSmallIntegerField(
                default=1,
                help_text="1: the CSV of its lines; 2: also charges, prices, cost centres, previous digest",
            ),
        ),
        migrations.AddField(
            "statement",
            "previous_month",
            models.DateField(
                blank=True,
                help_text="month whose digest is part of this digest; empty: the first of format 2",
                null=True,
            ),
        ),
        migrations.AddField(
            "statement",
            "signature",
            models.CharField(
                blank=True,
                default="",
                help_text="Ed25519, base64; empty: closed without a key",
                max_length=88,
            ),
        ),
        migrations.AddField(
            "statement",
            "public_key",
            models.CharField(
                blank=True, default="", help_text="public key of the signature, base64", max_length=44
            ),
        ),
        migrations.AddField(
            "statement",
            "key_fingerprint",
            models.CharField(blank=True, default="", help_text="SHA-256 of the public key", max_length=64),
        ),
    ]
