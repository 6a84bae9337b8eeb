"""Providers name the claims with the Unix identity of a person."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("portal", "0025_leaver_work")]

    operations = [
        migrations.AddField(
            "identityprovider",
            "uid_claim",
            models.CharField(
                blank=True,
                default="",
                help_text="claim with the Unix user number; empty: none is taken",
                max_length=80,
            ),
        ),
        *(
            migrations.AddField(
                "identityprovider", name, models.CharField(blank=True, default="", max_length=80)
            )
            for name in ("gid_claim", "groups_claim", "unix_name_claim", "home_claim")
        ),
    ]
