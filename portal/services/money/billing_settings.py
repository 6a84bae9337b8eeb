"""Change the settings of billing: the texts and terms of statements, and the close in two steps."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import Organisation, User
from portal.services import audit
from telemetry.money.closing.cost_centre_statements import StatementTerms

MAX_PAYMENT_DAYS = 365
FIELDS = ("tax_text", "payment_days", "two_step_close")


def change_billing_settings(
    *,
    actor: User,
    tax_text: str,
    payment_days: int,
    two_step_close: bool,
    now: datetime,
    why: str = "",
    via: str = "web",
) -> Organisation:
    """Set the tax note, the payment term and the close in two steps. Raises Invalid, NotAllowed.

    They apply to months that are closed later. Closed months never change.
    """
    policy.require(actor, "billing.change")
    checks = InputChecks()
    given = {
        "tax_text": checks.text("tax_text", tax_text, least=0, most=300),
        "payment_days": checks.count("payment_days", payment_days, 0, MAX_PAYMENT_DAYS, "days"),
        "two_step_close": checks.flag("two_step_close", two_step_close),
    }
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        organisation = billing_organisation()
        before = audit.audited_fields(organisation, *FIELDS)
        Organisation.objects.update_or_create(pk=organisation.pk, defaults=given)
        organisation.refresh_from_db()
        after = audit.audited_fields(organisation, *FIELDS)
        if before != after:
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="change_billing_settings",
                target=organisation,
                before=before,
                after=after,
                why=why,
            )
    return organisation


def billing_organisation() -> Organisation:
    """Return the organisation. Before the setup has created it, return an unsaved one with defaults."""
    return Organisation.objects.first() or Organisation(name="")


def statement_terms() -> StatementTerms:
    """Return the texts and terms that a close copies into the statements of cost centres."""
    organisation = billing_organisation()
    return StatementTerms(organisation.name, organisation.tax_text, organisation.payment_days)
