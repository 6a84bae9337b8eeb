"""Preview what would happen to a workload if it were submitted now."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from portal import policy
from portal.hardware_request import gpu_models_of_pool, network_warnings, whole_gpus_of
from portal.models import User
from portal.planner_budget import metered_planning
from portal.services.money import rate_card
from portal.services.work.request_checks import (
    WorkloadRequest,
    checked_job_request,
    checked_notebook_request,
    with_job_defaults,
    with_notebook_defaults,
    workload_columns,
)
from portal.wording import reason_texts, request_texts
from scheduler import services as engine
from scheduler.core.reasons import ReasonCode
from scheduler.models import JobArray, Pool, Project, Workload, WorkloadKind
from telemetry.core.amounts import round_amount


def preview_workload(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    now: datetime,
    kind: str = "job",
    via: str = "web",
    **arguments: Any,
) -> dict[str, Any]:
    """What would happen, without doing it. ``arguments`` are those of submit_job or launch_notebook (``kind`` says which).

    Returns ``starts_now`` (bool), ``code`` and ``numbers`` (the engine's reason), ``expected_start`` (datetime or None),
    ``never`` (``scheduler.services.Never``: why
    it would never start, or None), ``borrowed_slots``, ``quota_effect`` (list of ``scheduler.reads.capacity.QuotaUse``),
    ``gpus`` (float, in whole GPUs), ``price_per_hour`` and ``longest_cost`` (Decimal, or
    None when there is no price), ``currency``, ``wish`` (a warning, or empty), ``warnings`` (sentences that don't block).
    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "workload.launch", project)
    wish = (
        checked_notebook_request(actor, project, pool, now, **with_notebook_defaults(arguments))
        if kind == WorkloadKind.NOTEBOOK
        else checked_job_request(project, pool, now, **with_job_defaults(arguments))
    )
    return _preview_of(actor, wish, now)


def _preview_of(actor: User, wish: WorkloadRequest, now: datetime) -> dict[str, Any]:
    with metered_planning(actor, now):
        answer = engine.preview_workload(owner=actor, now=now, **workload_columns(wish))
    gpus = whole_gpus_of(wish.pool, wish.ask)
    price = rate_card.gpu_hour_price(
        pool=wish.pool, models=wish.ask.models_wanted or gpu_models_of_pool(wish.pool), now=now
    )
    per_hour = None if price is None else round_amount(price * Decimal(str(gpus)))
    longest = (
        None
        if price is None
        else round_amount(price * Decimal(str(gpus)) * Decimal(wish.max_runtime_seconds) / 3600)
    )
    answer["numbers"] |= reason_texts.requested_hardware(answer["code"], wish.ask)
    if answer["code"] == ReasonCode.DEPENDENCY and wish.after:
        answer["numbers"]["condition"] = _condition_of_dependency(wish, answer["numbers"])
    return {
        **answer,
        "gpus": gpus,
        "price_per_hour": per_hour,
        "longest_cost": longest,
        "currency": rate_card.organisation_currency(),
        "wish": _late_warning(wish, answer, now),
        "warnings": network_warnings(wish.pool, wish.ask),
    }


def _condition_of_dependency(wish: WorkloadRequest, numbers: dict[str, Any]) -> str:
    """How that has to end which the reason names."""
    sort, pk = (JobArray, numbers["array"]) if "array" in numbers else (Workload, numbers.get("workload"))
    return next((condition for condition, on in wish.after if isinstance(on, sort) and on.pk == pk), "")


def _late_warning(wish: WorkloadRequest, answer: dict[str, Any], now: datetime) -> str:
    """A warning when it would not be done when it is wanted; empty when it would, or nobody said."""
    start = answer["expected_start"]
    if wish.wanted_by is None or start is None:
        return ""
    predicted = timedelta(seconds=answer["predicted_seconds"])
    return request_texts.late_warning(wish.wanted_by, start + predicted)
