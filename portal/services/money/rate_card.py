"""Set prices of GPU-hours. Read the present price and the currency."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import IntegrityError, transaction
from psycopg.errors import RestrictViolation

from portal import policy
from portal.hardware_request import gpu_models_of_pool
from portal.input_checks import InputChecks
from portal.models import Organisation, User
from portal.services import audit
from portal.services.money.start_dates import check_start_date
from scheduler.core.rejection import OperationRejected
from scheduler.models import Gpu, Pool
from telemetry.models import Price
from telemetry.reads.prices import load_current_prices

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
    note: str = "",
    via: str = "web",
) -> Price:
    """Add a row to the rate card: the cost and the price of a GPU-hour from ``valid_from`` on.

    Past prices never change, so that ``valid_from`` is after all charged time of the model. Raises Invalid,
    NotAllowed. Raises OperationRejected if the rate card has a row
    with the same ``valid_from``.
    """
    policy.require(actor, "price.change")
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
    note = checks.text("note", note, least=0, most=300)
    checks.done()
    try:
        with transaction.atomic():
            row = Price.objects.create(
                pool=pool,
                model=model,
                cost_per_gpu_hour=amounts["cost"],
                price_per_gpu_hour=amounts["price"],
                valid_from=valid_from,
                note=note,
                created_at=now,
            )
            after = audit.audited_fields(
                row, "model", "cost_per_gpu_hour", "price_per_gpu_hour", "valid_from"
            )
            audit.record(actor=actor, via=via, now=now, verb="set_price", target=row, after=after, why=note)
    except IntegrityError as error:
        if isinstance(error.__cause__, RestrictViolation):
            # Time after ``valid_from`` was charged since the check.
            check_start_date(checks, given_start, now, subject, **charged)
            checks.done()
        numbers = {"valid_from": valid_from.isoformat(), "model": model}
        raise OperationRejected("price_exists", numbers, field="valid_from") from None
    return row


def gpu_hour_price(*, pool: Pool, models: Sequence[str], now: datetime) -> Decimal | None:
    """Return the present price of a GPU-hour of the most expensive of ``models``.

    The workload may get any of these models. Return None if one of them has no price, or if the list is
    empty.
    """
    card = load_current_prices(now)
    prices = [card.of(pool.pk, model) for model in models]
    return None if None in prices else max((price for price in prices if price is not None), default=None)


def organisation_currency() -> str:
    """Return the organisation's currency as a code of three letters."""
    return Organisation.objects.values_list("currency", flat=True).first() or Organisation().currency
