"""Build the tabs of a workload's page: log, attempts, use, cost and decisions."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money import cost_totals
from portal.reads.money.charge_scope import charge_scope
from portal.reads.work.run_reports import run_report
from portal.reads.work.workload_details import WorkloadDetails
from portal.web.components.quantities import money, money_sums, percent, short_duration
from portal.web.work import attempts, use_charts
from portal.web.work.charge_table import charge_table, charged_sums
from portal.web.work.workload_log import LOG_TAIL_BYTES, log_state, requested_run
from portal.wording.chargeback import charge_scope_texts
from portal.wording.pages import run_report_pages, workload_pages
from scheduler.models import Run, Workload
from scheduler.runs import logs
from scheduler.state.states import WorkloadState
from telemetry.core.amounts import round_amount
from telemetry.core.currencies import smallest_unit
from telemetry.reads.usage.process_use import workload_processes

TABS = (
    ("log", "Log"),
    ("attempts", "Attempts"),
    ("use", "Use"),
    ("cost", "Cost"),
    ("decisions", "Decisions"),
)

PROCESS_COLUMNS = (
    ("GPU", False),
    ("Process", True),
    ("Program", False),
    ("SM share", True),
    ("GPU memory, GiB", True),
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
        context |= _use_tab(workload, user, now)
    elif tab == "cost":
        context |= _cost_tab(workload, details, user, currency)
    else:
        context["decisions"] = attempts.decision_rows(workload, user)
    return context | _tab_refresh(workload, context)


def _tab_refresh(workload: Workload, context: dict[str, Any]) -> dict[str, Any]:
    """Return when the browser reloads the tab.

    ``follows_stage`` is True if it reloads when the workload's state changes. ``refresh_every`` is a number
    of seconds; 0 means never. A log appends new text itself. A chart reads its new figures itself, so that it
    keeps its zoom.
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
    missing = "" if end or state["goes_on"] else _missing_log_text(workload, run)
    return {
        "log": {**state, "text": text, "note": note, "missing": missing},
        "log_choices": choices if len(choices) > 1 else [],
    }


def _missing_log_text(workload: Workload, run: Run) -> str:
    """Return why the log of an ended run is empty."""
    if workload.simulated:
        return workload_pages.NO_OUTPUT_SIMULATED
    kept = timedelta(days=settings.GPUPOOL_LOG_DAYS)
    if run.ended_at is not None and timezone.now() - run.ended_at > kept:
        return workload_pages.OUTPUT_DELETED.format(days=settings.GPUPOOL_LOG_DAYS)
    return workload_pages.NO_OUTPUT


def _use_tab(workload: Workload, user: User, now: datetime) -> dict[str, Any]:
    """Return the charts of the report with the readings so far."""
    details = run_report(workload, user, now)
    if details is None:
        return {"is_chart": False}
    csv = reverse("workload-report-csv", args=[workload.public_id])
    return {
        "is_chart": (measured := use_charts.measured_points(details.report)) > 1,
        "has_table": measured > 0,
        "chart_live": workload.state != WorkloadState.ENDED,
        "chart": use_charts.use_chart(details, f"{csv}?table=points"),
        "report_url": reverse("workload-report", args=[workload.public_id]),
        "no_chart": workload_pages.CHART_LATER,
        "processes": _process_table(workload, user, now),
    }


def _process_table(workload: Workload, user: User, now: datetime) -> dict[str, Any] | None:
    """Return the table of the processes on its GPUs; None if there are none, or the user may not see the log.

    The name of a process says what the program does, as the log does.
    """
    if workload.state == WorkloadState.ENDED or not policy.may(user, "workload.logs", workload):
        return None
    found = workload_processes(workload, now)
    rows = [
        [
            " ".join(filter(None, (each.host, f"GPU {each.gpu}", each.profile))),
            str(each.pid),
            each.name,
            percent(each.sm_percent / 100) if each.sm_percent is not None else None,
            f"{each.memory_mib / 1024:,.1f}" if each.memory_mib is not None else None,
        ]
        for each in found
    ]
    columns = [{"label": label, "numeric": numeric} for label, numeric in PROCESS_COLUMNS]
    return {"caption": run_report_pages.PROCESSES_TITLE, "columns": columns, "rows": rows} if rows else None


def _cost_tab(workload: Workload, details: WorkloadDetails, user: User, currency: str) -> dict[str, Any]:
    """Return the charges, or only the prices and a sentence if the viewer may not see the charges."""
    if details.cost_hidden:
        readings = _price_readings(workload, details, currency)
        return {"cost_readings": readings, "cost_hidden": charge_scope_texts.HIDDEN_COSTS}
    lines = cost_totals.charge_lines_of(workload.pk)
    written = charged_sums(lines, currency)
    so_far = details.cost if details.cost is not None else written
    readings = [
        {
            "label": "Total cost" if workload.state == WorkloadState.ENDED else "So far",
            "value": money_sums(so_far),
        },
        {"label": "Already charged", "value": money_sums(written)},
    ]
    return {
        "scope": charge_scope(user),
        "cost_table": charge_table(lines, currency),
        "cost_readings": readings + _price_readings(workload, details, currency),
    }


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
