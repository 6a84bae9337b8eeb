"""Change the settings of billing: the texts and terms of statements, and the close in two steps."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from django.db import DataError, IntegrityError, transaction
from django.db.models import Max

from portal import policy
from portal.errors import Invalid
from portal.input_checks import InputChecks
from portal.models import Organisation, User
from portal.services import audit
from portal.wording.problems import administration_problems
from scheduler.core.rejection import OperationRejected
from telemetry.models import BillingZone, Charge
from telemetry.money.billing_months import (
    LEAST_NOTICE,
    add_billing_zone,
    billing_calendar,
    month_bounds,
    month_of,
    next_month,
)
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


def set_billing_zone(
    *, actor: User, first_month: date, time_zone: str, now: datetime, why: str = "", via: str = "web"
) -> BillingZone:
    """Set the time zone of billing months from ``first_month`` on. ``first_month`` must not have begun.

    The first month starts when the previous month ends in the old zone. Raises Invalid, NotAllowed.
    Raises OperationRejected if another person has just added a zone for the same or a later month.
    """
    policy.require(actor, "billing.change")
    checks = InputChecks()
    time_zone = checks.time_zone("time_zone", time_zone)
    first_month = checks.month("first_month", first_month)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    earliest = earliest_zone_month(now)
    latest = date(earliest.year + 1, earliest.month, 1)
    if "first_month" not in checks.problems and not earliest <= first_month <= latest:
        problem = administration_problems.BILLING_ZONE_MONTH.format(
            month=first_month, earliest=earliest, latest=latest
        )
        checks.note("first_month", first_month.isoformat(), problem)
    before = billing_calendar().zone_name(first_month)
    if "time_zone" not in checks.problems and time_zone == before:
        problem = administration_problems.BILLING_ZONE_IS_THE_SAME.format(zone=time_zone)
        checks.note("time_zone", time_zone, problem)
    checks.done()
    numbers: dict[str, Any] = {"month": f"{first_month:%Y-%m}"}
    try:
        with transaction.atomic():
            row = add_billing_zone(first_month, time_zone, actor, now)
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="set_billing_zone",
                target=row,
                before={"time_zone": before},
                after=audit.audited_fields(row, "first_month", "time_zone"),
                why=why,
            )
    except DataError:
        problem = administration_problems.BILLING_ZONE_UNKNOWN.format(zone=time_zone)
        raise Invalid({"time_zone": problem}, {"time_zone": time_zone}) from None
    except IntegrityError:
        raise OperationRejected("billing_zone_is_fixed", numbers, field="first_month") from None
    return row


def billing_zones() -> list[BillingZone]:
    """Return the time zones of billing months, newest first."""
    return list(BillingZone.objects.select_related("created_by").order_by("-first_month"))


def earliest_zone_month(now: datetime) -> date:
    """Return the first month from which a new time zone can apply.

    This month begins an hour from now or later. Nothing is charged in it or later, and no time zone begins
    with it or later.
    """
    earliest = next_month(month_of(now))
    if month_bounds(earliest)[0] < now + LEAST_NOTICE:
        earliest = next_month(earliest)
    charged: date | None = Charge.objects.aggregate(last=Max("month"))["last"]
    zones = [zone.first_month for zone in billing_calendar().zones]
    return max([earliest, *(next_month(month) for month in (charged, *zones) if month is not None)])


def billing_organisation() -> Organisation:
    """Return the organisation. Before the setup has created it, return an unsaved one with defaults."""
    return Organisation.objects.first() or Organisation(name="")


def statement_terms() -> StatementTerms:
    """Return the texts and terms that a close copies into the statements of cost centres."""
    organisation = billing_organisation()
    return StatementTerms(organisation.name, organisation.tax_text, organisation.payment_days)
