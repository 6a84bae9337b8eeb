"""The key that a host registers when it joins, and the start of its agent that spoke last."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0015_isolation")]

    operations = [
        migrations.AddField(
            model_name="host",
            name="agent_start",
            field=models.CharField(
                blank=True,
                default="",
                max_length=64,
                help_text="the start of the agent that spoke last: tells a copy of its folder",
            ),
        ),
        migrations.AddField(
            model_name="host",
            name="public_key",
            field=models.CharField(
                blank=True,
                default="",
                max_length=60,
                help_text="Ed25519, base64; made on the host, registered when it joined",
            ),
        ),
    ]
