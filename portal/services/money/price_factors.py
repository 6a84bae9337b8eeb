"""Set the factors by which the price of work is multiplied, by its priority and its workload type."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from django.db import IntegrityError, transaction
from psycopg.errors import RestrictViolation

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.services import audit
from portal.services.money.start_dates import check_start_date
from portal.services.step_up import require_fresh_proof
from portal.wording.problems import administration_problems
from scheduler.core.model.snapshot import PoolKind
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, WorkloadType
from scheduler.requests import PRIORITY_NAMES
from telemetry.models import PriceFactor

MAX_FACTOR = 100
FACTOR_DECIMALS = 4


def set_price_factor(
    *,
    actor: User,
    factor: Decimal | str,
    valid_from: datetime,
    now: datetime,
    priority: str = "",
    workload_type: str = "",
    pool: Pool | None = None,
    note: str = "",
    via: str = "web",
) -> PriceFactor:
    """Set a price factor for one priority or one workload type, from ``valid_from`` on.

    Past factors never change, so ``valid_from`` must not be before the end of the pool's charged time.
    Without ``pool``, the factor applies to all shared pools. Then ``valid_from`` must not be before the end
    of the charged time of any pool. Raises Invalid, NotAllowed. Raises OperationRejected if the priority or
    the type has a factor with the same ``valid_from``.
    """
    policy.require(actor, "price.change")
    require_fresh_proof(actor, "set_price_factor", now)
    checks = InputChecks()
    if bool(priority) == bool(workload_type):
        checks.note("priority", priority, administration_problems.FACTOR_KIND)
    elif priority:
        priority = checks.choice("priority", priority, list(PRIORITY_NAMES))
    else:
        workload_type = checks.choice("workload_type", workload_type, WorkloadType.values)
    clean = _checked_factor(checks, factor)
    if pool is not None and pool.kind == PoolKind.STATIC:
        message = administration_problems.FACTOR_OF_DEDICATED_POOL.format(pool=pool.slug)
        checks.note("pool", pool.slug, message)
    charged: dict[str, Any] = {"pool": pool} if pool else {}
    subject, given_start = pool.name if pool else "some GPU", valid_from
    valid_from = check_start_date(checks, given_start, now, subject, **charged)
    note = checks.text("note", note, least=0, most=300)
    checks.done()
    try:
        with transaction.atomic():
            row = PriceFactor.objects.create(
                pool=pool,
                priority=int(PRIORITY_NAMES[priority]) if priority else None,
                workload_type=workload_type,
                factor=clean,
                valid_from=valid_from,
                note=note,
                created_at=now,
            )
            after = audit.audited_fields(row, "priority", "workload_type", "factor", "valid_from")
            audit.record(
                actor=actor, via=via, now=now, verb="set_price_factor", target=row, after=after, why=note
            )
    except IntegrityError as error:
        if isinstance(error.__cause__, RestrictViolation):
            # Since the first check, time after ``valid_from`` was charged. Check again for the error message.
            check_start_date(checks, given_start, now, subject, **charged)
            checks.done()
        given = f"priority {priority}" if priority else f"type {workload_type}"
        numbers = {"valid_from": valid_from.isoformat(), "subject": given}
        raise OperationRejected("price_factor_exists", numbers, field="valid_from") from None
    return row


def _checked_factor(checks: InputChecks, value: Any) -> Decimal:
    """Return the factor if it is above 0, at most MAX_FACTOR, and has at most four decimals."""
    try:
        factor = Decimal(value) if isinstance(value, str | Decimal) else None
    except InvalidOperation:
        factor = None
    exponent = factor.as_tuple().exponent if factor is not None else None
    is_allowed = isinstance(exponent, int) and -exponent <= FACTOR_DECIMALS
    if factor is None or not is_allowed or not 0 < factor <= MAX_FACTOR:
        message = administration_problems.FACTOR_VALUE.format(
            given=value if isinstance(value, str) else str(value), high=MAX_FACTOR, decimals=FACTOR_DECIMALS
        )
        checks.note("factor", value, message)
        return Decimal(1)
    return factor
