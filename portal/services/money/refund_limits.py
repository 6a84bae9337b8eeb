"""Set how much lost work of a pool is refunded."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.services import audit
from portal.wording.problems import administration_problems
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool
from telemetry.models import MAX_FORGIVEN_MINUTES, RefundLimit


def set_refund_limit(
    *,
    actor: User,
    pool: Pool,
    forgiven_minutes: int,
    valid_from: datetime,
    now: datetime,
    why: str = "",
    via: str = "web",
) -> RefundLimit:
    """Set the refund limit of a pool for work that stops at ``valid_from`` or later.

    If work is preempted or lost to hardware, at most the last ``forgiven_minutes`` are not charged. Raises
    Invalid, NotAllowed. Raises OperationRejected if the pool has a limit with the same ``valid_from``.
    """
    policy.require(actor, "refund_limit.change")
    checks = InputChecks()
    minutes = checks.count("forgiven_minutes", forgiven_minutes, 0, MAX_FORGIVEN_MINUTES, "minutes")
    valid_from = checks.aware_datetime("valid_from", valid_from)
    why = checks.text("why", why, least=0, most=300)
    if "valid_from" not in checks.problems and valid_from < now:
        checks.note(
            "valid_from",
            valid_from.isoformat(),
            administration_problems.REFUND_LIMIT_IS_PAST.format(
                valid_from=valid_from.isoformat(), now=now.isoformat(timespec="seconds")
            ),
        )
    checks.done()
    with transaction.atomic():
        row, created = RefundLimit.objects.get_or_create(
            pool=pool, valid_from=valid_from, defaults={"forgiven_minutes": minutes, "created_at": now}
        )
        if not created:
            numbers = {"valid_from": valid_from.isoformat(), "pool": pool.name}
            raise OperationRejected("refund_limit_exists", numbers, field="valid_from")
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_refund_limit",
            target=row,
            team_id=pool.team_id,
            after={"pool": pool.slug, **audit.audited_fields(row, "forgiven_minutes", "valid_from")},
            why=why,
        )
    return row
