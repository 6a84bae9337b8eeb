"""Preview the start, the price and the warnings of a workload before it is submitted."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from portal import policy
from portal.hardware_request import gpu_models_of_pool, network_warnings, whole_gpus_of
from portal.models import User
from portal.planner_budget import metered_planning
from portal.services.money import rate_card
from portal.services.work.request_checks import checked_job_request, checked_notebook_request
from portal.wording import reason_texts, request_texts
from scheduler import services as scheduling
from scheduler.core.reasons import ReasonCode
from scheduler.models import JobArray, Pool, Project, Workload, WorkloadKind
from scheduler.requests import WorkloadRequest
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
    """Return the effect of submitting a workload now, without queueing it. Raises Invalid, NotAllowed.

    ``arguments``: see ``submit_job`` or, if ``kind`` is notebook, ``launch_notebook``. The result has
    ``starts_now`` (bool), ``code`` and ``numbers`` (the engine's reason), ``expected_start`` (datetime or
    None), ``never`` (``scheduler.services.ImpossibleStart``: why it could never start, or None),
    ``borrowed_slots``, ``quota_effect`` (list of the engine's quota usages), ``gpus`` (float, in whole GPUs),
    ``price_per_hour`` and ``longest_cost`` (Decimal, or None without a price), ``currency``, ``wish`` (a
    warning about ``wanted_by``, or empty) and ``warnings`` (sentences that block nothing).
    """
    policy.require(actor, "workload.launch", project)
    request = (
        checked_notebook_request(actor, project, pool, now, **arguments)
        if kind == WorkloadKind.NOTEBOOK
        else checked_job_request(project, pool, now, **arguments)
    )
    return _preview_of(actor, request, now)


def _preview_of(actor: User, request: WorkloadRequest, now: datetime) -> dict[str, Any]:
    with metered_planning(actor, now):
        answer = scheduling.preview_workload(request, owner=actor, now=now)
    gpus = whole_gpus_of(request.pool, request)
    price = rate_card.gpu_hour_price(
        pool=request.pool, models=request.models_wanted or gpu_models_of_pool(request.pool), now=now
    )
    per_hour = None if price is None else round_amount(price * Decimal(str(gpus)))
    longest = (
        None
        if price is None
        else round_amount(price * Decimal(str(gpus)) * Decimal(request.max_runtime_seconds) / 3600)
    )
    answer["numbers"] |= reason_texts.requested_hardware(answer["code"], request)
    if answer["code"] == ReasonCode.DEPENDENCY and request.after:
        answer["numbers"]["condition"] = _condition_of_dependency(request, answer["numbers"])
    return {
        **answer,
        "gpus": gpus,
        "price_per_hour": per_hour,
        "longest_cost": longest,
        "currency": rate_card.organisation_currency(),
        "wish": _late_warning(request, answer, now),
        "warnings": network_warnings(request.pool, request),
    }


def _condition_of_dependency(request: WorkloadRequest, numbers: dict[str, Any]) -> str:
    """Return the outcome that the dependency in the reason's ``numbers`` requires, or an empty text."""
    sort, pk = (JobArray, numbers["array"]) if "array" in numbers else (Workload, numbers.get("workload"))
    return next((condition for condition, on in request.after if isinstance(on, sort) and on.pk == pk), "")


def _late_warning(request: WorkloadRequest, answer: dict[str, Any], now: datetime) -> str:
    """Return a warning if the workload would end after ``wanted_by``, otherwise an empty text."""
    start = answer["expected_start"]
    if request.wanted_by is None or start is None:
        return ""
    predicted = timedelta(seconds=answer["predicted_seconds"])
    return request_texts.late_warning(request.wanted_by, start + predicted)
