"""Choose the currency of billing months."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import FIRST_YEAR, InputChecks
from portal.models import User
from portal.services import audit
from portal.services.step_up import require_fresh_proof
from portal.wording.formatting import local_time_text
from portal.wording.problems import administration_problems
from scheduler.models import Gpu
from telemetry.core.currencies import DECIMALS_BY_CURRENCY
from telemetry.models import BillingCurrency, Price, Statement
from telemetry.money.billing_months import month_bounds, month_of, next_month
from telemetry.money.pricing.billing_currencies import load_billing_currencies

FIRST_MONTH = date(FIRST_YEAR, 1, 1)


def checked_currency(checks: InputChecks, currency: Any) -> str:
    """Return a known currency in capital letters. Any other value is a problem of the field ``currency``."""
    code = currency.strip().upper() if isinstance(currency, str) else ""
    if code not in DECIMALS_BY_CURRENCY:
        checks.note("currency", currency, administration_problems.CURRENCY_INVALID.format(given=currency))
        return ""
    return code


def set_first_currency(currency: str, now: datetime) -> BillingCurrency:
    """Set the currency of all months. The caller has checked that no currency is set."""
    start = datetime.combine(FIRST_MONTH, datetime.min.time(), UTC)
    return BillingCurrency.objects.create(
        currency=currency, first_month=FIRST_MONTH, valid_from=start, created_at=now
    )


@transaction.atomic
def change_currency(
    *, actor: User, currency: str, first_month: date, now: datetime, why: str = "", via: str = "web"
) -> BillingCurrency:
    """Charge in another currency from ``first_month`` on. Earlier months keep their currency.

    No amount is converted. Nothing may be charged in ``first_month`` yet. Each model with a price must have a
    price in the new currency, in force from the start of ``first_month``. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "price.change")
    require_fresh_proof(actor, "change_currency", now)
    checks = InputChecks()
    currency = checked_currency(checks, currency)
    month = checks.month("first_month", first_month)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    if not checks.problems:
        _check_first_month(checks, month, now)
    if not checks.problems:
        _check_new_currency(checks, currency, month)
    checks.done()
    row = BillingCurrency.objects.create(
        currency=currency, first_month=month, valid_from=month_bounds(month)[0], created_at=now
    )
    after = audit.audited_fields(row, "currency", "first_month")
    audit.record(actor=actor, via=via, now=now, verb="change_currency", target=row, after=after, why=why)
    return row


def _check_first_month(checks: InputChecks, month: date, now: datetime) -> None:
    """Add a problem if charges or a change of currency exist for the month or a later month."""
    charged = Statement.objects.order_by("-month").values_list("month", flat=True).first()
    changed = BillingCurrency.objects.order_by("-first_month").values_list("first_month", flat=True).first()
    earliest = max([month_of(now), *(next_month(last) for last in (charged, changed) if last is not None)])
    if month < earliest:
        message = administration_problems.CURRENCY_MONTH_IS_CHARGED.format(month=month, earliest=earliest)
        checks.note("first_month", month.isoformat(), message)


def _check_new_currency(checks: InputChecks, currency: str, month: date) -> None:
    """Add a problem if the month has this currency already, or if a model has no price in this currency."""
    if currency == load_billing_currencies().of(month):
        message = administration_problems.CURRENCY_IS_IN_FORCE.format(currency=currency, month=month)
        checks.note("currency", currency, message)
        return
    start = month_bounds(month)[0]
    priced = set(Price.objects.filter(valid_from__lt=start).values_list("pool", "model"))
    ready = set(Price.objects.filter(valid_from=start, currency=currency).values_list("pool", "model"))
    kinds = set(Gpu.objects.filter(retired_at=None).values_list("pool", "pool__name", "model"))
    missing = sorted(
        f"{model} in {name}"
        for pool, name, model in kinds
        if {(pool, model), (None, model)} & priced and not {(pool, model), (None, model)} & ready
    )
    if missing:
        message = administration_problems.CURRENCY_WITHOUT_PRICES.format(
            month=month, currency=currency, start=local_time_text(start), what=", ".join(missing[:5])
        )
        checks.note("first_month", month.isoformat(), message)
