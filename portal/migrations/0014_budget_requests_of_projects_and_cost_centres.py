"""A team may have one waiting request for the budget of the team, of each project and of each cost centre."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce


class Migration(migrations.Migration):
    dependencies = [("portal", "0013_currency_is_dated")]

    operations = [
        migrations.RemoveConstraint("submission", "one_request_for_a_budget_waits"),
        migrations.AddConstraint(
            "submission",
            models.UniqueConstraint(
                models.F("team"),
                KeyTextTransform("period", "payload"),
                KeyTextTransform("month", "payload"),
                KeyTextTransform("measure", "payload"),
                Coalesce(KeyTextTransform("project", "payload"), models.Value("")),
                Coalesce(KeyTextTransform("cost_centre", "payload"), models.Value("")),
                condition=models.Q(kind="budget", state="waiting"),
                name="one_request_for_a_budget_waits",
            ),
        ),
    ]
