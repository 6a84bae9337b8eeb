"""Preview a reservation, and find the first windows that fit."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from portal import policy
from portal.hardware_request import gpu_models_of_pool
from portal.models import User
from portal.planner_budget import metered_planning
from portal.services.calendar.reservation_checks import (
    alternative_windows_of,
    check_time_for_approval,
    checked_reservation_request,
    reservation_warnings,
)
from portal.services.money import rate_card
from scheduler import services as scheduling
from scheduler.models import Pool, Project
from telemetry.core.amounts import round_amount
from telemetry.core.currencies import smallest_unit
from telemetry.reads.prices import load_current_prices


def preview_reservation(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    start: datetime,
    end: datetime,
    now: datetime,
    may_exceed_guarantee: bool = False,
    name: str = "preview",
    via: str = "web",
    **hardware: Any,
) -> dict[str, Any]:
    """Check a window without reserving it. Raises Invalid, NotAllowed.

    The result has these keys:

    - ``fits``: True if the window fits. ``code`` and ``numbers``: the engine's reason.
    - ``windows``: the first windows that fit, as pairs of start and end.
    - ``needs_approval``: True if an operator must approve the reservation.
    - ``gpus``: the size in whole GPUs.
    - ``promised_slots``: the most slots that the team already has promised or in use during the window.
    - ``price``: the price of the whole window. ``price_per_hour``: the price of all requested GPUs for one
      hour. Both are None if a model has no price.
    - ``currency``: the currency of the present month.
    - ``warnings``: sentences about circumstances that do not prevent the reservation.
    """
    policy.require(actor, "reservation.request", project)
    request = checked_reservation_request(
        project, pool, name, start, end, now, may_exceed_guarantee=may_exceed_guarantee, **hardware
    )
    check_time_for_approval(request, now)
    with metered_planning(actor, now):
        answer = scheduling.check_window(now=now, owner=actor, **request.columns)
    prices = load_current_prices(now)
    price = rate_card.gpu_hour_price(prices, pool, request.models_wanted or gpu_models_of_pool(pool))
    unit, count = smallest_unit(prices.currency), Decimal(str(request.gpus))
    hours = Decimal(int((request.end - request.start).total_seconds())) / 3600
    return {
        "fits": answer.fits,
        "code": answer.code,
        "numbers": dict(answer.numbers),
        "windows": alternative_windows_of(answer),
        "needs_approval": request.needs_approval,
        "gpus": request.gpus,
        "promised_slots": answer.promised_slots,
        "price_per_hour": None if price is None else round_amount(price * count, unit),
        "price": None if price is None else round_amount(price * count * hours, unit),
        "currency": prices.currency,
        "warnings": reservation_warnings(request),
    }


def first_fitting_windows(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    length: timedelta,
    now: datetime,
    may_exceed_guarantee: bool = False,
    **hardware: Any,
) -> list[tuple[datetime, datetime]]:
    """Return the first windows of the given length that fit, for a person who has entered no start.

    Each window is a pair of start and end. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "reservation.request", project)
    request = checked_reservation_request(
        project,
        pool,
        "preview",
        now,
        now + length,
        now,
        may_exceed_guarantee=may_exceed_guarantee,
        **hardware,
    )
    columns = {name: value for name, value in request.columns.items() if name not in ("name", "start", "end")}
    with metered_planning(actor, now):
        return scheduling.first_windows(length=length, owner=actor, now=now, **columns)
