"""Set prices of GPU-hours. Read the present price."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from psycopg.errors import RestrictViolation

from portal import policy
from portal.hardware_request import gpu_models_of_pool
from portal.input_checks import InputChecks
from portal.models import User
from portal.services import audit
from portal.services.money.billing_currency import checked_currency
from portal.services.money.start_dates import check_start_date
from portal.services.step_up import require_fresh_proof
from portal.wording.problems import administration_problems
from scheduler.core.rejection import OperationRejected
from scheduler.models import Gpu, Pool
from telemetry.models import BillingCurrency, Price
from telemetry.money.billing_months import month_bounds, month_of
from telemetry.money.pricing.billing_currencies import load_billing_currencies
from telemetry.reads.prices import CurrentPrices

MAX_PRICE = Decimal(100_000)


def set_price(
    *,
    actor: User,
    model: str,
    cost: Decimal | str,
    price: Decimal | str,
    valid_from: datetime,
    now: datetime,
    pool: Pool | None = None,
    currency: str = "",
    note: str = "",
    via: str = "web",
) -> Price:
    """Add a row to the rate card: the cost and the price of a GPU-hour from ``valid_from`` on.

    Past prices never change, so ``valid_from`` must not be before the end of the model's charged time. If
    ``currency`` is empty, the price has the currency of the month that contains ``valid_from``. A price in
    another currency prepares a change of the currency, so it must begin at the start of a later month. Raises
    Invalid, NotAllowed. Raises OperationRejected if the rate card has a row with the same ``valid_from`` and
    currency.
    """
    policy.require(actor, "price.change")
    require_fresh_proof(actor, "set_price", now)
    checks = InputChecks()
    known = gpu_models_of_pool(pool) if pool else sorted(set(Gpu.objects.values_list("model", flat=True)))
    model = checks.choice("model", model, known)
    amounts = {
        name: checks.amount(name, value, high=MAX_PRICE, decimals=6)
        for name, value in (("cost", cost), ("price", price))
    }
    given_start = valid_from
    charged: dict[str, Any] = {"model": model, "pool": pool} if pool else {"model": model}
    subject = f"{model} in {pool.name}" if pool else model
    valid_from = check_start_date(checks, given_start, now, subject, **charged)
    if "valid_from" not in checks.problems:
        currency = _checked_currency(checks, currency, valid_from, now)
        _check_successor(checks, pool, model, valid_from)
    note = checks.text("note", note, least=0, most=300)
    checks.done()
    try:
        with transaction.atomic():
            row = Price.objects.create(
                pool=pool,
                model=model,
                currency=currency,
                cost_per_gpu_hour=amounts["cost"],
                price_per_gpu_hour=amounts["price"],
                valid_from=valid_from,
                note=note,
                created_at=now,
            )
            after = audit.audited_fields(
                row, "model", "currency", "cost_per_gpu_hour", "price_per_gpu_hour", "valid_from"
            )
            audit.record(actor=actor, via=via, now=now, verb="set_price", target=row, after=after, why=note)
    except IntegrityError as error:
        if isinstance(error.__cause__, RestrictViolation):
            # Since the first check, time after ``valid_from`` was charged. Check again for the error message.
            check_start_date(checks, given_start, now, subject, **charged)
            checks.done()
        numbers = {"valid_from": valid_from.isoformat(), "model": model}
        raise OperationRejected("price_exists", numbers, field="valid_from") from None
    return row


def _checked_currency(checks: InputChecks, currency: str, valid_from: datetime, now: datetime) -> str:
    """Return the currency of a price.

    Note a problem if it is not the currency of the month, unless the price begins at the start of a later
    month.
    """
    month = month_of(valid_from)
    of_month = load_billing_currencies().of(month)
    clean = checked_currency(checks, currency) if currency else of_month
    prepares = month > month_of(now) and valid_from == month_bounds(month)[0]
    if clean and clean != of_month and not prepares:
        message = administration_problems.PRICE_CURRENCY.format(
            currency=clean, of_month=of_month, month=month
        )
        checks.note("currency", clean, message)
    return clean


def _check_successor(checks: InputChecks, pool: Pool | None, model: str, valid_from: datetime) -> None:
    """Add a problem if a change of currency is planned and the model has no price in the new currency."""
    planned = BillingCurrency.objects.filter(valid_from__gt=valid_from).order_by("valid_from").first()
    if planned is None:
        return
    ready = Price.objects.filter(
        Q(pool=pool) | Q(pool=None), model=model, currency=planned.currency, valid_from=planned.valid_from
    )
    if not ready.exists():
        message = administration_problems.PRICE_WITHOUT_SUCCESSOR.format(
            valid_from=valid_from.isoformat(),
            currency=planned.currency,
            month=planned.first_month,
            model=model,
        )
        checks.note("valid_from", valid_from.isoformat(), message)


def gpu_hour_price(
    prices: CurrentPrices, pool: Pool, models: Sequence[str], work: tuple[int, str] | None = None
) -> Decimal | None:
    """Return the present price of a GPU-hour on the most expensive of ``models``.

    The request may get any of these models. ``work`` is the priority and the type of a workload outside of
    reservations. If it is given, the price includes the factors of such work. Return None if one of the
    models has no price, or if ``models`` is empty.
    """
    prices_of_models = [
        prices.of(pool.pk, model) if work is None else prices.of_work(pool.pk, model, work)
        for model in models
    ]
    known = [price for price in prices_of_models if price is not None]
    return None if len(known) < len(prices_of_models) else max(known, default=None)
