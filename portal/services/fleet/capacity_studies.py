"""Request a study of how many GPUs a pool needs."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal import locks, policy
from portal.input_checks import InputChecks, checked_reason, display_value
from portal.models import User
from portal.services import audit
from portal.wording.pages import capacity_pages
from scheduler.core.rejection import OperationRejected
from scheduler.models import Gpu, Pool
from telemetry.capacity import studies
from telemetry.models import CapacityStudy

MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 60, 30 * 86_400


def request_capacity_study(
    *,
    actor: User,
    pool: Pool,
    wait_limit_seconds: int,
    now: datetime,
    model: str = "",
    why: str = "",
    via: str = "web",
) -> CapacityStudy:
    """Request a replay of the last quarter of a pool with -20 % to +40 % of a model, or of each model.

    ``wait_limit_seconds`` is the p95 wait that the pool should keep. A background task runs the study. Raises
    Invalid, NotAllowed. Raises OperationRejected if the same study has not ended yet.
    """
    policy.require(actor, "capacity.study")
    checks = InputChecks()
    wait = checks.count("wait_limit_seconds", wait_limit_seconds, MIN_WAIT_SECONDS, MAX_WAIT_SECONDS)
    models = models_of_pool(pool)
    if model and model not in models:
        checks.note(
            "model",
            model,
            capacity_pages.MODEL_UNKNOWN.format(given=display_value(model), allowed=", ".join(models)),
        )
    why = checked_reason(why)
    checks.done()
    with transaction.atomic():
        locks.lock_organisation()
        if studies.open_study(pool, model) is not None:
            raise OperationRejected("capacity_study_runs", {"pool": pool.name})
        study = studies.create_study(pool, model, wait, actor, now)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="request_capacity_study",
            target=pool,
            why=why,
            after={"model": model, "wait_limit_seconds": wait},
        )
    return study


def models_of_pool(pool: Pool) -> list[str]:
    """Return the models of the GPUs of a pool."""
    return sorted(set(Gpu.objects.filter(pool=pool, retired_at=None).values_list("model", flat=True)))
