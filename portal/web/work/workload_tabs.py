"""Build the tabs of a workload's page: log, attempts, use, cost and decisions."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money import cost_totals
from portal.reads.work import utilisation
from portal.reads.work.workload_details import WorkloadDetails
from portal.web.components.quantities import gpu_model, money, money_sums, percent, short_duration
from portal.web.work import attempts
from portal.web.work.workload_log import LOG_TAIL_BYTES, log_state, requested_run
from portal.wording.pages import workload_pages
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR, WHOLE_GPU_PROFILE
from scheduler.models import Workload
from scheduler.runs import logs
from scheduler.state.states import WorkloadState
from telemetry.core.amounts import round_amount
from telemetry.core.currencies import smallest_unit

TABS = (
    ("log", "Log"),
    ("attempts", "Attempts"),
    ("use", "Use"),
    ("cost", "Cost"),
    ("decisions", "Decisions"),
)


def tab_links(
    request: HttpRequest, workload: Workload, details: WorkloadDetails, now: datetime
) -> list[dict[str, Any]]:
    """Return the tabs, each with its URL."""
    current = _current_tab(request)
    return [
        {
            "label": label,
            "url": f"{request.path}?tab={name}",
            "current": name == current,
            "count": workload.attempt if name == "attempts" else None,
        }
        for name, label in TABS
    ]


def workload_tab_context(
    request: HttpRequest,
    workload: Workload,
    details: WorkloadDetails,
    user: User,
    currency: str,
    now: datetime,
) -> dict[str, Any]:
    """Return the context of the chosen tab.

    A refresh of the live part or the side column needs only the name of the tab.
    """
    tab = _current_tab(request)
    context: dict[str, Any] = {"tab": tab}
    if request.GET.get("part") in ("live", "side"):
        return context
    if tab == "log":
        context |= _log_tab(request, workload, user)
    elif tab == "attempts":
        context["attempts"] = attempts.attempt_rows(details, user)
    elif tab == "use":
        context |= _use_tab(workload, now)
    elif tab == "cost":
        context |= _cost_tab(workload, details, currency)
    else:
        context["decisions"] = attempts.decision_rows(workload, user)
    return context | _tab_refresh(workload, context)


def _tab_refresh(workload: Workload, context: dict[str, Any]) -> dict[str, Any]:
    """Return when the browser reloads the tab.

    ``follows_stage`` is True if it reloads when the workload's state changes. ``refresh_every`` is a number
    of seconds; 0 means never. A log appends new text itself. A chart is never reloaded, so that people can
    read it.
    """
    is_chart, is_log = bool(context.get("is_chart")), bool(context.get("log") or context.get("log_refused"))
    never = workload.state == WorkloadState.ENDED or is_chart or is_log
    return {"follows_stage": not is_chart, "refresh_every": 0 if never else 10}


def _current_tab(request: HttpRequest) -> str:
    given = request.GET.get("tab", "log")
    return given if given in dict(TABS) else "log"


def _log_tab(request: HttpRequest, workload: Workload, user: User) -> dict[str, Any]:
    if not policy.may(user, "workload.logs", workload):
        return {"log_refused": policy.ACTIONS["workload.logs"][1]}
    run = requested_run(request, workload)
    if run is None:
        return {"log": None}
    text, end = logs.read_log(run.public_id, -LOG_TAIL_BYTES, LOG_TAIL_BYTES)
    state = log_state(workload, run, end)
    runs = workload.runs.order_by("-attempt", "rank").select_related("host")[:20]
    choices = [
        {
            "label": f"Attempt {other.attempt}, {other.host.name}",
            "url": f"{request.path}?tab=log&run={other.public_id}",
            "current": other.pk == run.pk,
        }
        for other in runs
    ]
    note = (
        workload_pages.LOG_TAIL.format(kilobytes=LOG_TAIL_BYTES // 1024)
        if end > LOG_TAIL_BYTES
        else f"Attempt {run.attempt} on {run.host.name}"
    )
    return {"log": {**state, "text": text, "note": note}, "log_choices": choices if len(choices) > 1 else []}


def _use_tab(workload: Workload, now: datetime) -> dict[str, Any]:
    readings = utilisation.utilisation_history(workload.pk, now)
    times = [timezone.localtime(at) for at, _, _ in readings]
    figure = {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [f"{at:%Y-%m-%dT%H:%M}" for at in times],
                "y": [None if share is None else round(share * 100, 1) for _, share, _ in readings],
                "name": "Utilisation",
                "meta": {"colour": "accent"},
            }
        ],
        "layout": {"yaxis": {"title": {"text": "% of the GPUs' time"}, "range": [0, 100]}},
    }
    table = {
        "caption": f"Utilisation of {workload.name}",
        "columns": [
            {"label": "Time"},
            {"label": "Utilisation", "numeric": True},
            {"label": workload_pages.MEMORY_COLUMN, "numeric": True},
        ],
        "rows": [
            [f"{at:%d %b %H:%M}", percent(share), f"{memory:,}" if memory is not None else None]
            for at, (_, share, memory) in zip(times, readings, strict=True)
        ],
    }
    measured = sum(share is not None for _, share, _ in readings)
    no_chart = (
        workload_pages.NO_SLICE_UTILISATION
        if workload.profile != WHOLE_GPU_PROFILE
        else workload_pages.CHART_LATER
    )
    return {
        "is_chart": measured > 1,
        "figure": figure,
        "use_table": table if readings else None,
        "no_chart": no_chart,
    }


def _cost_tab(workload: Workload, details: WorkloadDetails, currency: str) -> dict[str, Any]:
    lines = cost_totals.charge_lines_of(workload.pk)
    written: dict[str, Decimal] = {}
    for line in lines:
        written[line["currency"]] = written.get(line["currency"], Decimal(0)) + line["amount"]
    written = written or {currency: Decimal(0)}
    rows = [
        [
            f"{line['day']:%d %b %Y}",
            workload_pages.BUCKET_LABELS.get(line["bucket"], line["bucket"])
            + (workload_pages.CORRECTED.format(month=line["corrected"]) if line["corrected"] else ""),
            gpu_model(line["model"]),
            _gpu_hours_figure(line["seconds"]),
            money(line["amount"], line["currency"]),
        ]
        for line in lines
    ]
    so_far = details.cost if details.cost is not None else written
    table = {
        "caption": "Charges by day",
        "columns": [
            {"label": "Day"},
            {"label": "What"},
            {"label": "GPU"},
            {"label": "GPU-hours", "numeric": True},
            {"label": "Charged", "numeric": True},
        ],
        "rows": rows,
        "total": ["Total", "", "", "", money_sums(written)],
        "empty": workload_pages.NOTHING_CHARGED,
    }
    readings = [
        {
            "label": "Total cost" if workload.state == WorkloadState.ENDED else "So far",
            "value": money_sums(so_far),
        },
        {"label": "Already charged", "value": money_sums(written)},
    ]
    return {"cost_table": table, "cost_readings": readings + _price_readings(workload, details, currency)}


def _price_readings(workload: Workload, details: WorkloadDetails, currency: str) -> list[dict[str, str]]:
    """Return the price per hour and the maximum cost of an attempt.

    Return [] if the workload has ended, or if its price is unknown, for example because it waits for a slice.
    """
    if workload.state == WorkloadState.ENDED or details.price_per_hour is None:
        return []
    exact = details.price_per_hour * workload.max_runtime_seconds / 3600
    most = money(round_amount(exact, smallest_unit(currency)), currency)
    return [
        {
            "label": "Per hour now" if details.held else workload_pages.PRICE_LATER_LABEL,
            "value": money(details.price_per_hour, currency),
        },
        {"label": "At most", "value": most, "small": f"for {short_duration(workload.max_runtime_seconds)}"},
    ]


def _gpu_hours_figure(slot_seconds: int) -> str:
    """Convert slot-seconds to GPU-hours as text.

    Below one GPU-hour, the text has four decimals, so that a minute of a slice is not shown as 0.
    """
    hours = slot_seconds / SLOT_SECONDS_PER_GPU_HOUR
    return f"{hours:,.2f}" if abs(hours) >= 1 else f"{hours:.4f}"
