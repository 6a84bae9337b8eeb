from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("portal", "0027_claims_of_the_unix_identity")]

    operations = [
        migrations.AddField(
            model_name="notification",
            name="matter",
            field=models.CharField(
                blank=True,
                default="",
                help_text="key of the matter; notices about one matter are one line; empty: its own matter",
                max_length=120,
            ),
        ),
    ]
