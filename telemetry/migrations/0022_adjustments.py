"""Credits and manual adjustments of statements."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import PROTECT, F, Q

from scheduler.migrations._tables import ID, table
from telemetry.models.amounts import CurrencyAmountField

USER = settings.AUTH_USER_MODEL

# A decision is the only change. It is refused like a new row if the month is not open.
GUARDS = """
CREATE FUNCTION telemetry_guard_adjustment() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    month_state text;
    decision text[] := ARRAY['state', 'decided_by_id', 'decided_by_name', 'decided_at', 'decision_note', 'cell_id'];
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'adjustment %: it is withdrawn, not deleted', OLD.number
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_OP = 'INSERT' AND NEW.state <> 'proposed' THEN
        RAISE EXCEPTION 'state: a new adjustment is %, allowed: proposed', NEW.state
            USING ERRCODE = 'check_violation';
    END IF;
    IF TG_OP = 'UPDATE' AND (OLD.state <> 'proposed' OR to_jsonb(OLD) - decision <> to_jsonb(NEW) - decision) THEN
        RAISE EXCEPTION 'adjustment %: only a decision changes it, and only once', OLD.number
            USING ERRCODE = 'restrict_violation';
    END IF;
    SELECT state INTO month_state FROM telemetry_statement WHERE id = NEW.statement_id FOR SHARE;
    IF month_state <> 'open' THEN
        RAISE EXCEPTION 'statement: it is %, an adjustment goes into an open month', month_state
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER adjustments_are_decided_once BEFORE INSERT OR UPDATE OR DELETE ON telemetry_adjustment
    FOR EACH ROW EXECUTE FUNCTION telemetry_guard_adjustment();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0021_fewer_checks_of_charges"),
        migrations.swappable_dependency(USER),
    ]

    operations = [
        table(
            "Adjustment",
            id=ID,
            number=models.CharField(max_length=20, unique=True, help_text="such as 2026-10-A1"),
            kind=models.CharField(
                max_length=10,
                choices=[
                    ("credit", "credit: gives back a part of a charge"),
                    ("adjustment", "adjustment: adds to a statement, or takes from it"),
                ],
            ),
            cost_centre=models.CharField(max_length=40),
            currency=models.CharField(max_length=3),
            amount=CurrencyAmountField(help_text="negative: less to pay"),
            reason=models.CharField(max_length=1000),
            day=models.DateField(help_text="billing day of the month on which it counts"),
            author_name=models.CharField(max_length=150, help_text="name at the proposal"),
            proposed_at=models.DateTimeField(),
            state=models.CharField(
                max_length=10,
                choices=[
                    ("proposed", "proposed: waits for another person"),
                    ("approved", "approved: on the statement"),
                    ("rejected", "Rejected"),
                    ("withdrawn", "withdrawn before a decision"),
                ],
                default="proposed",
            ),
            decided_by_name=models.CharField(max_length=150, default="", help_text="name at the decision"),
            decided_at=models.DateTimeField(null=True),
            decision_note=models.CharField(max_length=1000, default=""),
            author=models.ForeignKey(USER, PROTECT, related_name="+"),
            cell=models.ForeignKey(
                "telemetry.chargecell",
                PROTECT,
                null=True,
                related_name="adjustments",
                help_text="sum of the statement that contains it, set by the approval",
            ),
            charge=models.ForeignKey("telemetry.charge", PROTECT, null=True, related_name="credits"),
            credited=models.ForeignKey(
                "telemetry.statement",
                PROTECT,
                null=True,
                related_name="+",
                help_text="month of the charges that a credit gives back",
            ),
            decided_by=models.ForeignKey(USER, PROTECT, null=True, related_name="+"),
            line=models.ForeignKey("telemetry.statementline", PROTECT, null=True, related_name="credits"),
            project=models.ForeignKey("scheduler.project", PROTECT, null=True, related_name="+"),
            statement=models.ForeignKey("telemetry.statement", PROTECT, related_name="adjustments"),
            team=models.ForeignKey("scheduler.team", PROTECT, null=True, related_name="+"),
            withdraws=models.ForeignKey(
                "telemetry.adjustment",
                PROTECT,
                null=True,
                related_name="withdrawals",
                help_text="it takes this back",
            ),
            indexes=[models.Index(fields=["statement", "cost_centre"], name="adjustments_of_a_statement")],
            constraints=[
                models.CheckConstraint(
                    condition=Q(kind="adjustment", credited=None, line=None, charge=None)
                    | Q(kind="credit", credited__isnull=False),
                    name="a_credit_refers_to_charges",
                ),
                models.CheckConstraint(
                    condition=Q(charge=None) | Q(line__isnull=False), name="a_credited_charge_has_a_line"
                ),
                models.CheckConstraint(
                    condition=~Q(amount=0)
                    & (
                        ~Q(kind="credit")
                        | Q(withdraws=None, amount__lt=0)
                        | Q(withdraws__isnull=False, amount__gt=0)
                    ),
                    name="a_credit_is_negative",
                ),
                models.CheckConstraint(
                    condition=Q(cell=None) ^ Q(state="approved"),
                    name="an_approved_adjustment_is_on_a_statement",
                ),
                models.CheckConstraint(
                    condition=~Q(state="approved")
                    | (Q(decided_by__isnull=False) & ~Q(decided_by=F("author"))),
                    name="two_different_people_make_an_adjustment",
                ),
                models.UniqueConstraint(
                    fields=["withdraws"],
                    condition=Q(state__in=["proposed", "approved"]),
                    name="an_adjustment_is_withdrawn_once",
                ),
            ],
        ),
        migrations.RunSQL(GUARDS),
    ]
