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


def quota_bar(form: GpuRequestForm, lines: list[QuotaUsage], gpus: float) -> dict[str, Any] | None:
    """Return a bar that compares the request with the team's guarantee for this model.

    The bar adds the request to the GPUs that the team holds now. The bar of a reservation leaves out the held
    GPUs, because a reservation starts later. ``lines`` has the team's quotas in the pool. The bar uses the
    quota of this model, or else the team's only quota. Return None if there is neither, such as in the team's
    own pool.
    """
    _, model, _ = form.cleaned_data["target"]
    team = form.selected_project.team
    line = next((line for line in lines if line.model == model), lines[0] if len(lines) == 1 else None)
    if line is None:
        return None
    later = form.selected_kind == "reservation"
    held = 0.0 if later else line.held
    limit = None if line.borrow_limit is None else line.guaranteed + line.borrow_limit
    return {
        "team": team,
        "later": later,
        "model": gpu_model(line.model),
        "held": f"{gpu_count_text(held)} of {gpu_count_text(line.guaranteed)}",
        "after": f"{gpu_count_text(held + gpus)} of {gpu_count_text(line.guaranteed)}",
        "scale": max(held + gpus, line.guaranteed, limit or 0, 1),
        "used": min(held, line.guaranteed),
        "borrowed": max(0.0, held - line.guaranteed),
        "forecast": gpus,
        "mark": line.guaranteed,
        "words": _quota_sentence(held + gpus, line.guaranteed, limit, team.name, later)
        if later or _may_borrow(form) or held + gpus <= line.guaranteed
        else request_pages.MAY_NOT_BORROW.format(gpus=gpu_count_text(held + gpus - line.guaranteed)),
    }


def _may_borrow(form: GpuRequestForm) -> bool:
    return form.selected_kind == "job" and bool(form.cleaned_data["preemptible"])


def _quota_sentence(after: float, guaranteed: float, limit: float | None, team: str, later: bool) -> str:
    if after <= guaranteed:
        return request_pages.WITHIN_GUARANTEE
    if limit is not None and after > limit:
        text = request_pages.NEEDS_OPERATOR if later else request_pages.ABOVE_LIMIT
        return text.format(limit=gpu_count_text(limit), team=team)
    if later:
        above = gpu_count_text(after - guaranteed)
        return request_pages.RESERVED_ABOVE_GUARANTEE.format(gpus=above, team=team)
    return request_pages.BORROWED.format(gpus=gpu_count_text(after - guaranteed))
