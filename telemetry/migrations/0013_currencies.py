"""Currencies of prices, months and amounts. All existing amounts have the organisation's currency.

A closed month keeps its own. Amounts keep the decimals with which they are stored.
"""

from django.db import migrations, models

from scheduler.migrations._tables import ID, table
from telemetry.models.amounts import CurrencyAmountField

AMOUNTS = {
    "cost_cents": "cost, a part of the rounded total of the month",
    "charged_cents": "charge, a part of the rounded total",
    "used_cents": "charge of measured use",
    "idle_cents": "charge of measured time without use",
}

CURRENCY_OF_THE_ORGANISATION = """
INSERT INTO telemetry_billingcurrency (currency, first_month, valid_from, created_at)
SELECT currency, '2000-01-01', '2000-01-01 00:00:00+00', now() FROM portal_organisation;

ALTER TABLE telemetry_price DISABLE TRIGGER prices_are_only_added;
UPDATE telemetry_price SET currency = first.currency
FROM telemetry_billingcurrency AS first WHERE telemetry_price.currency <> first.currency;
ALTER TABLE telemetry_price ENABLE TRIGGER prices_are_only_added;

UPDATE telemetry_budget SET currency = first.currency FROM telemetry_billingcurrency AS first;

UPDATE telemetry_statement SET currency = coalesce((SELECT currency FROM telemetry_billingcurrency), 'EUR')
WHERE state <> 'closed';

ALTER TABLE telemetry_statementline DISABLE TRIGGER lines_of_closed_statements_stay;
UPDATE telemetry_statementline AS line SET currency = wanted.currency
FROM (
    SELECT statement.id, coalesce(nullif(statement.currency, ''), first.currency, 'EUR') AS currency
    FROM telemetry_statement AS statement LEFT JOIN telemetry_billingcurrency AS first ON true
) AS wanted WHERE wanted.id = line.statement_id AND wanted.currency <> line.currency;
ALTER TABLE telemetry_statementline ENABLE TRIGGER lines_of_closed_statements_stay;
"""

GUARDS = """
CREATE TRIGGER billing_currencies_are_only_added BEFORE UPDATE OR DELETE ON telemetry_billingcurrency
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();

CREATE FUNCTION telemetry_refuse_currency_of_a_charged_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM telemetry_statement WHERE month >= NEW.first_month AND currency <> NEW.currency) THEN
        RAISE EXCEPTION 'first_month: % or a later month has a statement in another currency', NEW.first_month
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER currencies_begin_in_months_without_charges BEFORE INSERT ON telemetry_billingcurrency
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_currency_of_a_charged_month();
"""


def currency(help_text: str = "") -> models.CharField:
    """Return a column with the code of a currency."""
    return models.CharField(max_length=3, default="EUR", help_text=help_text)


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0012_close_proposals"), ("portal", "0012_billing_settings")]

    operations = [
        table(
            "BillingCurrency",
            id=ID,
            currency=models.CharField(max_length=3),
            first_month=models.DateField(unique=True, help_text="first day of the month"),
            valid_from=models.DateTimeField(unique=True, help_text="start of the first month"),
            created_at=models.DateTimeField(),
        ),
        migrations.AddField("price", "currency", currency()),
        migrations.AddField(
            "statementline", "currency", currency("currency of its amounts: that of the month of the use")
        ),
        migrations.AlterField(
            "statement",
            "currency",
            currency("currency of the month, set when it is first charged; of old months at the close"),
        ),
        *(
            migrations.AlterField(model, name, CurrencyAmountField(default=0, help_text=help_text))
            for model in ("statementline", "chargecell")
            for name, help_text in AMOUNTS.items()
        ),
        migrations.AlterField(
            "closeproposal", "charged", CurrencyAmountField(help_text="charged total of the month")
        ),
        migrations.AlterField(
            "costcentrestatement", "total", CurrencyAmountField(help_text="sum of the cents of its lines")
        ),
        migrations.AlterField(
            "costcentrestatement",
            "budget",
            CurrencyAmountField(null=True, help_text="budget of the cost centre for the month; empty: none"),
        ),
        migrations.AddField(
            "budget", "currency", currency("of a budget in money; only this currency counts")
        ),
        migrations.AlterField(
            "budget", "amount", CurrencyAmountField(help_text="limit, in units of the measure")
        ),
        *(
            migrations.AlterField("budgetforecast", name, CurrencyAmountField())
            for name in ("expected", "low", "high")
        ),
        migrations.RunSQL(CURRENCY_OF_THE_ORGANISATION),
        migrations.RunSQL(GUARDS),
    ]
