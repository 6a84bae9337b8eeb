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
from telemetry.core.currencies import smallest_unit
from telemetry.reads.prices import load_current_prices


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

    ``arguments`` are those of ``launch_notebook`` if ``kind`` is "notebook", otherwise those of
    ``submit_job``. The result has these keys:

    - ``starts_now``: True if the workload would start at once. ``code`` and ``numbers``: the engine's reason.
    - ``expected_start``: the expected time of the start, or None.
    - ``never``: a ``scheduler.services.ImpossibleStart`` with the reason why the workload could never start,
      or None.
    - ``borrowed_slots``: the slots above the team's guarantee (840 slots are one GPU).
    - ``quota_effect``: the engine's list of quota usages.
    - ``gpus``: the size in whole GPUs.
    - ``price_per_hour`` and ``longest_cost`` (the price of the whole runtime limit): None if a model has no
      price. Both include ``price_factor``, the factor of the priority and the workload type.
    - ``currency``: the currency of the prices.
    - ``wish``: a warning if the workload would end after ``wanted_by``; otherwise empty.
    - ``warnings``: sentences about circumstances that do not prevent the submission.
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
    prices = load_current_prices(now)
    work = (int(request.priority), str(request.type))
    in_reservation = request.reservation is not None
    price = rate_card.gpu_hour_price(
        prices,
        request.pool,
        request.models_wanted or gpu_models_of_pool(request.pool),
        None if in_reservation else work,
    )
    unit, count = smallest_unit(prices.currency), Decimal(str(gpus))
    hours = Decimal(request.max_runtime_seconds) / 3600
    answer["numbers"] |= reason_texts.requested_hardware(answer["code"], request)
    if answer["code"] == ReasonCode.HOST_CLOSED:
        answer["numbers"]["closed"] = reason_texts.closed_hosts_for(request, request.pool.pk)
    if answer["code"] == ReasonCode.DEPENDENCY and request.after:
        answer["numbers"]["condition"] = _condition_of_dependency(request, answer["numbers"])
    return {
        **answer,
        "gpus": gpus,
        "price_per_hour": None if price is None else round_amount(price * count, unit),
        "longest_cost": None if price is None else round_amount(price * count * hours, unit),
        "price_factor": Decimal(1) if in_reservation else prices.factor(request.pool.pk, work),
        "currency": prices.currency,
        "wish": _late_warning(request, answer, now),
        "warnings": network_warnings(request.pool, request),
    }


def _condition_of_dependency(request: WorkloadRequest, numbers: dict[str, Any]) -> str:
    """Return the outcome that the request requires of the dependency in ``numbers``, a reason's values.

    Return an empty text if the request does not have this dependency.
    """
    sort, pk = (JobArray, numbers["array"]) if "array" in numbers else (Workload, numbers.get("workload"))
    return next((condition for condition, on in request.after if isinstance(on, sort) and on.pk == pk), "")


def _late_warning(request: WorkloadRequest, answer: dict[str, Any], now: datetime) -> str:
    """Return a warning if the workload would end after ``wanted_by``. Otherwise return an empty text."""
    start = answer["expected_start"]
    if request.wanted_by is None or start is None:
        return ""
    predicted = timedelta(seconds=answer["predicted_seconds"])
    return request_texts.late_warning(request.wanted_by, start + predicted)
