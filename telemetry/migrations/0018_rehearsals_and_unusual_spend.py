"""Stored rehearsals of a close, unusual spend and its explanations."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import CASCADE, PROTECT, SET_NULL

import telemetry.models.amounts
from scheduler.migrations._tables import ID, optional_text, table

GUARDS = """
CREATE TRIGGER unusual_spend_explanations_are_only_added
    BEFORE UPDATE OR DELETE ON telemetry_unusualspendexplanation
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();
CREATE FUNCTION telemetry_refuse_explanation_in_closed_month() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    refused date;
BEGIN
    SELECT statement.month INTO refused FROM telemetry_unusualspend spend
        JOIN telemetry_statement statement ON statement.id = spend.statement_id
    WHERE spend.id = NEW.spend_id AND statement.state = 'closed';
    IF FOUND THEN
        RAISE EXCEPTION 'month: % is closed, an explanation goes into an open month', refused
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER unusual_spend_is_explained_in_open_months
    BEFORE INSERT ON telemetry_unusualspendexplanation
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_explanation_in_closed_month();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0031_guarantee_changes"),
        ("telemetry", "0017_statement_line_days"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        table(
            "MonthRehearsal",
            statement=models.OneToOneField(
                "telemetry.statement", CASCADE, primary_key=True, related_name="rehearsal", serialize=False
            ),
            started_at=models.DateTimeField(),
            checked_at=models.DateTimeField(
                help_text="start of the last run that has ended; empty: none has ended", null=True
            ),
            checks=models.JSONField(default=list, help_text="each with check, ok and figures"),
            run_by=models.ForeignKey(
                settings.AUTH_USER_MODEL,
                SET_NULL,
                null=True,
                related_name="+",
                help_text="person who rehearsed the close; empty: the nightly run",
            ),
        ),
        table(
            "UnusualSpend",
            id=ID,
            kind=models.CharField(
                choices=[
                    ("high_day", "a day far above the usual day"),
                    ("not_taken", "reserved time that was not taken"),
                    ("new_price", "a new price"),
                    ("new_project", "a new project"),
                ],
                max_length=12,
            ),
            workload_name=optional_text(80),
            subject=models.CharField(help_text="name of the subject when it was found", max_length=200),
            first_day=models.DateField(help_text="first unusual billing day"),
            last_day=models.DateField(help_text="last unusual billing day"),
            currency=models.CharField(max_length=3),
            amount=telemetry.models.amounts.CurrencyAmountField(
                help_text="charge of these days, or of the time that was not taken"
            ),
            usual=telemetry.models.amounts.CurrencyAmountField(
                help_text="usual charge of one of these days; empty: no usual day", null=True
            ),
            figures=models.JSONField(
                default=dict, help_text="further figures of the rule, such as hours and days"
            ),
            found_at=models.DateTimeField(help_text="when a search first found it"),
            project=models.ForeignKey("scheduler.project", PROTECT, null=True, related_name="+"),
            statement=models.ForeignKey("telemetry.statement", PROTECT, related_name="unusual_spend"),
            team=models.ForeignKey("scheduler.team", PROTECT, null=True, related_name="+"),
            user=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, null=True, related_name="+"),
            constraints=[
                models.UniqueConstraint(
                    fields=["statement", "kind", "project", "user", "workload_name", "subject", "first_day"],
                    name="unusual_spend_is_found_once",
                    nulls_distinct=False,
                )
            ],
        ),
        table(
            "UnusualSpendExplanation",
            id=ID,
            reason=models.CharField(max_length=1000),
            at=models.DateTimeField(),
            author=models.ForeignKey(settings.AUTH_USER_MODEL, PROTECT, related_name="+"),
            spend=models.ForeignKey("telemetry.unusualspend", PROTECT, related_name="explanations"),
        ),
        table(
            "UnusualSpendSearch",
            statement=models.OneToOneField(
                "telemetry.statement",
                CASCADE,
                primary_key=True,
                related_name="unusual_spend_search",
                serialize=False,
            ),
            searched_at=models.DateTimeField(),
        ),
        migrations.RunSQL(GUARDS),
    ]
