from django.db import migrations, models
from django.db.models import F, Q
from django.db.models.fields.json import KeyTextTransform

# Of several that wait for the same the first stays, as it would have done had the others been refused.
WITHDRAW_THE_OTHERS = """
UPDATE portal_submission AS later SET state = 'withdrawn'
FROM portal_submission AS first
WHERE later.state = 'waiting' AND first.state = 'waiting' AND later.id > first.id AND later.kind = first.kind
  AND (later.kind = 'window_change' AND later.reservation_id = first.reservation_id
    OR later.kind = 'membership' AND later.team_id = first.team_id AND later.author_id = first.author_id
    OR later.kind = 'quota_change' AND later.team_id = first.team_id AND later.pool_id = first.pool_id
       AND later.payload ->> 'model' = first.payload ->> 'model')
"""


class Migration(migrations.Migration):
    atomic = False  # the constraints come after the rows are in order

    dependencies = [("portal", "0005_recurring_and_changed_reservations")]

    operations = [
        migrations.RunSQL(WITHDRAW_THE_OTHERS, migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name="submission",
            constraint=models.UniqueConstraint(
                fields=["reservation"],
                condition=Q(kind="window_change", state="waiting"),
                name="one_change_of_a_reservation_waits",
            ),
        ),
        migrations.AddConstraint(
            model_name="submission",
            constraint=models.UniqueConstraint(
                fields=["team", "author"],
                condition=Q(kind="membership", state="waiting"),
                name="one_wish_to_join_a_team_waits",
            ),
        ),
        migrations.AddConstraint(
            model_name="submission",
            constraint=models.UniqueConstraint(
                F("team"),
                F("pool"),
                KeyTextTransform("model", "payload"),
                condition=Q(kind="quota_change", state="waiting"),
                name="one_change_of_a_quota_waits",
            ),
        ),
    ]
