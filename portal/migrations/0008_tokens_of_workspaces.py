import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now


def end_those_of_unknown_tokens(apps, schema_editor):
    """Which token opened them was not kept, so its end would not be theirs. Whoever is there opens them again."""
    sessions = apps.get_model("portal", "WorkspaceSession").objects
    sessions.filter(session_key_hash="", ended_at=None).update(ended_at=Now())
    apps.get_model("portal", "EntryCode").objects.filter(session_key_hash="", used_at=None).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("portal", "0007_hosts_of_a_template"),
    ]

    operations = [
        migrations.AddField(
            model_name="entrycode",
            name="api_token",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="portal.apitoken",
            ),
        ),
        migrations.AddField(
            model_name="workspacesession",
            name="api_token",
            field=models.ForeignKey(
                blank=True,
                help_text="it came from",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="portal.apitoken",
            ),
        ),
        migrations.RunPython(end_those_of_unknown_tokens, migrations.RunPython.noop),
    ]
