"""Show the price of a request and its effect on the team's budgets and quota."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from portal.reads.work.team_summaries import QuotaUsage
from portal.web.components.quantities import gpu_model, grouped, money
from portal.web.gpu_request.forms import GpuRequestForm
from portal.web.work.workload_text import gpu_count_text
from portal.wording.pages import request_pages
from scheduler.core.reasons import ReasonCode
from telemetry.models import BudgetMeasure
from telemetry.money.billing_months import month_of
from telemetry.reads.budget_status import find_budget_status


def price_lines(
    form: GpuRequestForm,
    answer: dict[str, Any],
    total: Decimal | None,
    how: str,
    length: timedelta,
    now: datetime,
) -> dict[str, Any]:
    """Return the cost of a request, and the rest of this month's team budgets after the request.

    ``total`` is the cost, None if unknown. ``how`` explains the cost. ``length`` is the time for which the
    GPUs are held.
    """
    known = answer["price_per_hour"] is not None
    gpus = gpu_count_text(answer["gpus"])
    month, team = month_of(now), form.selected_project.team_id
    budget = find_budget_status(month, now, team=team)
    counts = budget is not None and budget.unit == answer["currency"]
    left = budget.left - total if budget is not None and counts and total is not None else None
    hours = find_budget_status(month, now, team=team, measure=BudgetMeasure.GPU_HOURS)
    hours_left = None if hours is None else float(hours.left) - answer["gpus"] * length.total_seconds() / 3600
    return {
        "total": money(total, answer["currency"]),
        "how": f"{gpus} GPU{'s' if gpus != '1' else ''}, {how}" if known else request_pages.NO_PRICE,
        "known": known,
        "left": None if left is None else money(left, answer["currency"]),
        "over": left is not None and left < 0,
        "hours_left": None if hours_left is None else grouped(hours_left, 1),
        "hours_over": hours_left is not None and hours_left < 0,
    }


# Reasons for which the bar shows the request as too large.
QUOTA_REASONS = frozenset(
    (
        ReasonCode.NO_QUOTA,
        ReasonCode.OVER_QUOTA,
        ReasonCode.OVER_USER_CAP,
        ReasonCode.OVER_WORKLOAD_CAP,
        ReasonCode.GPU_HOURS_USED_UP,
        ReasonCode.WINDOW_EATS_GUARANTEES,
    )
)


def quota_bar(
    form: GpuRequestForm, lines: list[QuotaUsage], answer: dict[str, Any], held: float | None = None
) -> dict[str, Any] | None:
    """Return a bar that compares the request with the team's guarantee for this model.

    The bar adds the request to the GPUs that the team holds now, or to the ``held`` GPUs that the team has
    promised or in use in the window of a reservation. ``answer`` is the preview. If it says that the request
    does not fit or waits, its reason is the only text about the quota. ``lines`` has the team's quotas in the
    pool. The bar uses the quota of this model, or else the team's only quota. Return None if there is
    neither, such as in the team's own pool.
    """
    _, model, _ = form.cleaned_data["target"]
    team = form.selected_project.team
    line = next((line for line in lines if line.model == model), lines[0] if len(lines) == 1 else None)
    if line is None:
        return None
    gpus, has = answer["gpus"], line.held if held is None else held
    limit = None if line.borrow_limit is None else line.guaranteed + line.borrow_limit
    exceeds = answer["code"] in QUOTA_REASONS or (limit is not None and has + gpus > limit)
    return {
        "team": team,
        "later": held is not None,
        "model": gpu_model(line.model),
        "held": f"{gpu_count_text(has)} of {gpu_count_text(line.guaranteed)}",
        "after": f"{gpu_count_text(has + gpus)} of {gpu_count_text(line.guaranteed)}",
        "scale": max(has + gpus, line.guaranteed, limit or 0, 1),
        "used": min(has, line.guaranteed),
        "borrowed": max(0.0, has - line.guaranteed),
        "forecast": 0 if exceeds else gpus,
        "over": gpus if exceeds else 0,
        "mark": line.guaranteed,
        "words": _quota_sentence(has + gpus, line.guaranteed, limit, team.name, held is not None)
        if answer.get("fits") or answer.get("starts_now")
        else "",
    }


def _quota_sentence(after: float, guaranteed: float, limit: float | None, team: str, later: bool) -> str:
    """Return what the plan means for the guarantee of a request that fits or starts now."""
    above = gpu_count_text(after - guaranteed)
    if after <= guaranteed:
        return request_pages.WITHIN_GUARANTEE
    if later and limit is not None and after > limit:
        return request_pages.NEEDS_OPERATOR.format(limit=gpu_count_text(limit), team=team)
    if later:
        return request_pages.RESERVED_ABOVE_GUARANTEE.format(gpus=above, team=team)
    return request_pages.BORROWED.format(gpus=above)
