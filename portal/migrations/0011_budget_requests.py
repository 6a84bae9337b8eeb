"""Allow submissions that request another budget for a team."""

from django.db import migrations, models
from django.db.models.fields.json import KeyTextTransform

KINDS = [
    ("reservation", "Reservation"),
    ("series", "recurring reservation"),
    ("window_change", "another window"),
    ("quota_change", "Quota Change"),
    ("membership", "Membership"),
    ("budget", "Budget"),
]


class Migration(migrations.Migration):
    dependencies = [("portal", "0010_approved_guarantees")]

    operations = [
        migrations.AlterField("submission", "kind", models.CharField(choices=KINDS, max_length=16)),
        migrations.AddConstraint(
            "submission",
            models.UniqueConstraint(
                models.F("team"),
                KeyTextTransform("period", "payload"),
                KeyTextTransform("month", "payload"),
                KeyTextTransform("measure", "payload"),
                condition=models.Q(kind="budget", state="waiting"),
                name="one_request_for_a_budget_waits",
            ),
        ),
    ]
