"""Render the report of a workload: what it used, what it cost, and what to ask for next time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from portal.errors import NotAllowed
from portal.input_checks import display_value
from portal.models import User
from portal.reads.money.charge_scope import charge_scope
from portal.reads.work.priced_times import PricedTime
from portal.reads.work.run_reports import ReportAttempt, RunReportDetails, run_report
from portal.reads.work.workload_details import is_notebook
from portal.web.components.quantities import data_size, grouped, money_sums, percent, short_duration
from portal.web.page.access import InvalidAddress, current_user, sign_in_required
from portal.web.page.csv_export import csv_response
from portal.web.page.organisation import current_currency
from portal.web.work import use_charts, workload_text
from portal.web.work.charge_table import charge_table, price_table
from portal.web.work.workload_actions import get_workload_or_404
from portal.wording import reason_texts, run_report_texts, state_labels
from portal.wording.chargeback import charge_scope_texts
from portal.wording.pages import run_report_pages
from portal.wording.request_texts import requested_units_text
from scheduler.state.states import WorkloadState
from telemetry.core.run_report import UnitReport, share
from telemetry.reads.usage_filters import to_gpu_hours

GPU_CSV_COLUMNS = (
    "host",
    "gpu",
    "model",
    "profile",
    "held_seconds",
    "covered_seconds",
    "busy",
    "utilisation",
    "sm_active",
    "tensor_active",
    "memory_peak_mib",
    "energy_kwh",
)
CHARGE_CSV_COLUMNS = ("day", "bucket", "model", "corrected_month", "gpu_hours", "charged", "currency")
PRICE_CSV_COLUMNS = (
    *("start", "end", "bucket", "model", "seconds", "gpus", "gpu_hours", "price", "charged", "currency"),
)
MAX_UNIT_DIGITS = 5
GPU_COLUMNS = (
    ("GPU", False),
    ("Held", True),
    ("Busy", True),
    ("Utilisation", True),
    ("SM active", True),
    ("Tensor active", True),
    ("Memory peak, GiB", True),
    ("Energy, kWh", True),
    ("Measured", True),
)
MIB_PER_GIB = 1024


@sign_in_required
def report(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Render the report of a notebook or a job. While it runs, the report has the figures until now."""
    user, now = current_user(request), timezone.now()
    workload = get_workload_or_404(request, public_id)
    details = run_report(workload, user, now)
    context = {
        "workload": workload,
        "workload_url": workload_text.workload_url(workload),
        "relaunch_url": reverse("workload-relaunch", args=[public_id]),
        "state": state_labels.workload_state_label(workload),
        "now": now,
    }
    if details is not None:
        chosen = _chosen_unit(details, request.GET.get("gpu", ""))
        page_url = request.build_absolute_uri(request.path)
        context |= _report_context(details, user, current_currency(request), chosen, page_url)
    return render(request, "work/report.html" if details else "work/report_none.html", context)


def _chosen_unit(details: RunReportDetails, given: str) -> int | None:
    """Return the position of the unit whose number the address gives, from 1 on; None without a number.

    Raises InvalidAddress for any other text.
    """
    if not given:
        return None
    count = len(use_charts.unit_choices(details.report))
    if not (
        given.isascii() and given.isdigit() and len(given) <= MAX_UNIT_DIGITS and 1 <= int(given) <= count
    ):
        allowed = (
            run_report_pages.GPUS_FROM_TO.format(count=count) if count else run_report_pages.NO_GPU_CHOICE
        )
        raise InvalidAddress(
            run_report_pages.GPU_PARAMETER.format(given=display_value(given), allowed=allowed)
        )
    return int(given) - 1


def _unit_menu(details: RunReportDetails, chosen: int | None) -> dict[str, Any] | None:
    """Return the menu that chooses the unit with a line of its own; None if each has one."""
    names = use_charts.unit_choices(details.report)
    if not names:
        return None
    page = reverse("workload-report", args=[details.workload.public_id])
    choices = [{"label": run_report_pages.ALL_GPUS, "url": f"{page}#chart-run", "current": chosen is None}]
    choices += [
        {"label": name, "url": f"{page}?gpu={number}#chart-run", "current": number - 1 == chosen}
        for number, name in enumerate(names, start=1)
    ]
    value = "" if chosen is None else names[chosen]
    return {"name": "gpu", "label": run_report_pages.GPU_MENU, "value": value, "choices": choices}


def _report_context(
    details: RunReportDetails, user: User, currency: str, chosen: int | None, page_url: str
) -> dict[str, Any]:
    csv_url = reverse("workload-report-csv", args=[details.workload.public_id])
    return {
        "details": details,
        "where": _where(details),
        "status": _status(details),
        "advice": _advice(details),
        "earlier_start": _earlier_start(details),
        "message": _message(details, user, page_url),
        "advised_url": _advised_url(details),
        "no_advice": _no_advice(details),
        "readings": _readings(details),
        "drawn": use_charts.measured_points(details.report) > 1,
        "chart": use_charts.use_chart(details, f"{csv_url}?table=points", chosen),
        "unit_menu": _unit_menu(details, chosen),
        "gpu_table": _gpu_table(details),
        "gpus_csv": f"{csv_url}?table=gpus",
        "events": _events(details, user),
        "life_finding": _life_finding(details),
        "resources": _resources(details),
        "hosts_csv": f"{csv_url}?table=hosts",
        "resources_note": run_report_pages.RESOURCES_NOTE,
        "scope": None if details.cost_hidden else charge_scope(user),
        "cost_hidden": charge_scope_texts.HIDDEN_COSTS if details.cost_hidden else "",
        "cost_table": charge_table(details.charge_lines, currency),
        "charges_csv": f"{csv_url}?table=charges",
        "price_table": price_table(details.priced_times),
        "price_note": run_report_pages.PRICES_FINDING,
        "prices_csv": f"{csv_url}?table=prices",
    }


@sign_in_required
def report_csv(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Return a table of the report as a CSV download. ``?table=`` chooses it."""
    user, now = current_user(request), timezone.now()
    details = run_report(get_workload_or_404(request, public_id), user, now)
    name = request.GET.get("table", "points")
    if name not in CSV_FILES:
        raise InvalidAddress(
            run_report_pages.TABLE_PARAMETER.format(given=display_value(name), allowed=", ".join(CSV_FILES))
        )
    if name in ("charges", "prices") and details is not None and details.cost_hidden:
        raise NotAllowed(charge_scope_texts.HIDDEN_COSTS)
    head, rows_of = CSV_FILES[name]
    return csv_response(f"report-{name}-{public_id}.csv", head, rows_of(details) if details else ())


def _where(details: RunReportDetails) -> str:
    """Return the GPUs that the workload held, such as ``h1, GPU 0–7: 8 × H100 80GB``."""
    units = details.report.units
    names = workload_text.units_text((unit.model, unit.profile, 1) for unit in units)
    by_host: dict[str, list[int]] = {}
    for unit in units:
        by_host.setdefault(unit.host, []).append(unit.gpu)
    places = "; ".join(
        f"{host}, GPU {workload_text.number_ranges(sorted(set(numbers)))}"
        for host, numbers in by_host.items()
    )
    return f"{places}: {names}"


def _status(details: RunReportDetails) -> str:
    """Return the sentence that says whether the figures may still change."""
    if details.workload.state != WorkloadState.ENDED:
        return run_report_pages.RUNNING
    return run_report_pages.FINAL if details.is_final else run_report_pages.NOT_FINAL


def _advice(details: RunReportDetails) -> list[dict[str, str]]:
    return [
        {
            "headline": run_report_texts.advice_headline(advice),
            "evidence": run_report_texts.advice_evidence(advice),
            "anchor": run_report_pages.ADVICE_ANCHORS[advice.code],
            "cost": run_report_texts.COST_WITH_FEWER.format(
                less=money_sums(less), cost=money_sums(details.cost)
            )
            if (less := details.cost_with(advice)) is not None and details.cost
            else "",
        }
        for advice in details.report.advice
    ]


def _earlier_start(details: RunReportDetails) -> str:
    """Return the sentences about an earlier start with fewer GPUs; "" if it is not known."""
    earlier = details.earlier_start
    if earlier is None:
        return ""
    numbers = (earlier.requests, earlier.gpus, earlier.median_seconds, earlier.waited_seconds)
    return run_report_texts.earlier_start_text(*numbers)


def _message(details: RunReportDetails, user: User, page_url: str) -> dict[str, str] | None:
    """Return the label and the address of a message to the owner; None if there is none."""
    owner, name = details.workload.owner, details.workload.name
    if owner == user or not owner.email:
        return None
    subject = quote(run_report_texts.MAIL_SUBJECT.format(name=name))
    body = quote(run_report_texts.report_mail(name, details.report.advice, page_url))
    return {
        "label": run_report_pages.MESSAGE.format(owner=owner.get_username()),
        "url": f"mailto:{quote(owner.email)}?subject={subject}&body={body}",
    }


def _advised_url(details: RunReportDetails) -> str:
    """Return the address of the form for the same job with the advice filled in; "" if nothing is filled in.

    The form fills in the number of GPUs, the slice and the time limit.
    """
    workload = details.workload
    if is_notebook(workload):
        return ""
    values: dict[str, Any] = {}
    for advice in details.report.advice:
        numbers = advice.numbers
        if advice.code == "fewer_gpus" and workload.hosts == 1:
            values["units"] = numbers["busy"]
        elif advice.code == "smaller_slice" and workload.hosts == 1:
            model = details.report.units[0].model
            values |= {"units": 1, "target": f"{workload.pool.slug}|{model}|{numbers['profile']}"}
        elif advice.code == "shorter_limit":
            values["seconds"] = numbers["suggested_seconds"]
    if not values:
        return ""
    return f"{reverse('job-submit')}?{urlencode({'from': workload.public_id, **values})}"


def _no_advice(details: RunReportDetails) -> str:
    """Return why there is no advice; "" if there is some, or while the workload has not ended."""
    if details.report.advice or details.workload.state != WorkloadState.ENDED:
        return ""
    known = details.busy_at_once is not None
    return run_report_pages.NO_ADVICE if known else run_report_pages.NO_ADVICE_UNMEASURED


def _readings(details: RunReportDetails) -> list[dict[str, str]]:
    """Return the key figures at the top."""
    peak = details.memory_peak_unit
    working = details.working
    on_working = (
        f"{_share(_mean_busy(working))} on the {len(working)} with work"
        if working and len(working) < len(details.report.units)
        else ""
    )
    return [
        {
            "label": "Charged",
            "value": _charged_text(details),
            "small": f"{grouped(details.charged_gpu_hours, 2)} GPU-hours",
        },
        {"label": "Busy", "value": _share(_mean_busy(details.report.units)), "small": on_working},
        {
            "label": "SM active",
            "value": _share(details.sm_active),
            "small": f"tensor {_share(details.tensor_active)}",
        },
        {
            "label": "Peak GPU memory",
            "value": _gib(peak.memory_peak_mib if peak else None),
            "small": f"of {_gib(peak.memory_mib)}, {use_charts.unit_label(peak)}" if peak else "",
        },
        {
            "label": "Waited",
            "value": short_duration(details.first_wait),
            "small": f"and {short_duration(details.gap_time)} between attempts" if details.gaps else "",
        },
    ]


def _charged_text(details: RunReportDetails) -> str:
    if details.cost_hidden:
        return charge_scope_texts.HIDDEN_COST
    return money_sums(details.cost) if details.cost else "unknown"


def _gpu_table(details: RunReportDetails) -> dict[str, Any]:
    rows = [
        [
            use_charts.unit_label(unit),
            short_duration(unit.sums.held_seconds),
            _share(unit.busy),
            _share(unit.utilisation),
            _share(unit.sm_active),
            _share(unit.tensor_active),
            _gib(unit.memory_peak_mib, ""),
            _number(unit.energy_kwh, 2),
            percent(unit.coverage),
        ]
        for unit in details.report.units
    ]
    return {
        "caption": run_report_pages.GPUS_TITLE,
        "columns": [{"label": label, "numeric": numeric} for label, numeric in GPU_COLUMNS],
        "rows": rows,
    }


def _gpu_csv_row(unit: UnitReport) -> list[Any]:
    values = [unit.busy, unit.utilisation, unit.sm_active, unit.tensor_active]
    return [
        unit.host,
        unit.gpu,
        unit.model,
        unit.profile,
        unit.sums.held_seconds,
        unit.sums.covered_seconds,
        *values,
        unit.memory_peak_mib,
        unit.energy_kwh,
    ]


def _charge_csv_row(line: dict[str, Any]) -> list[Any]:
    hours = to_gpu_hours(line["seconds"])
    return [
        line["day"],
        line["bucket"],
        line["model"],
        line["corrected"],
        hours,
        line["amount"],
        line["currency"],
    ]


def _price_csv_row(time: PricedTime) -> list[Any]:
    return [
        time.start.isoformat(),
        time.end.isoformat(),
        time.bucket,
        time.model,
        time.seconds,
        time.gpus,
        time.gpu_hours,
        time.price,
        time.charged,
        time.currency,
    ]


def _events(details: RunReportDetails, user: User) -> list[dict[str, Any]]:
    """Return what happened to the workload, in order of time."""
    workload = details.workload
    units = requested_units_text(workload)
    events: list[dict[str, Any]] = [
        {
            "at": workload.submitted_at,
            "icon": "state-queued",
            "text": run_report_pages.SUBMITTED.format(units=units),
            "note": workload.owner.get_username(),
        }
    ]
    before: datetime = workload.submitted_at
    for attempt in details.attempts:
        waited = run_report_pages.WAITED if attempt is details.attempts[0] else run_report_pages.GAP
        events.append(
            {
                "at": attempt.start,
                "icon": "state-running",
                "text": f"{run_report_pages.STARTED}: {', '.join(attempt.hosts)}",
                "note": waited.format(time=short_duration(attempt.start - before)),
            }
        )
        if attempt.checkpoint_at is not None:
            events.append({"at": attempt.checkpoint_at, "icon": "check", "text": run_report_pages.CHECKPOINT})
        if attempt.end is not None:
            events.append(_end_of(attempt, details, user))
            before = attempt.end
    return sorted(events, key=lambda event: event["at"])


def _end_of(attempt: ReportAttempt, details: RunReportDetails, user: User) -> dict[str, Any]:
    """Return the event of the end of an attempt. The last one is the end of the workload."""
    is_last = attempt is details.attempts[-1] and details.workload.state == WorkloadState.ENDED
    code = details.workload.outcome if is_last else attempt.end_code
    if is_last:
        text, icon = run_report_pages.ENDED, "state-ended"
    elif attempt.preempted:
        text, icon = run_report_pages.GAVE_WAY, "state-preempted"
    else:
        text, icon = run_report_pages.ATTEMPT_ENDED, "state-failed"
    why = (
        reason_texts.reason_sentence(code, {"exit_code": attempt.exit_code, "ran": True}, user)
        if code
        else ""
    )
    passed = short_duration((attempt.end or attempt.start) - details.workload.submitted_at)
    note = run_report_pages.ASKED_AFTER.format(time=passed) if is_last else ""
    return {"at": attempt.end, "icon": icon, "text": f"{text}. {why}".strip(), "note": note}


def _life_finding(details: RunReportDetails) -> str:
    """Return the sentence that divides the time since the submission: with GPUs, and waiting."""
    total = details.report.until - details.workload.submitted_at
    waited = details.first_wait + details.gap_time
    return run_report_pages.LIFE_FINDING.format(
        total=short_duration(total), held=short_duration(total - waited), waited=short_duration(waited)
    )


def _resources(details: RunReportDetails) -> dict[str, Any]:
    """Return the table of measured use beside the request."""
    workload, peak = details.workload, details.memory_peak_unit
    cores = f"{workload.cpu_milli / 1000:g} cores" if workload.cpu_milli else run_report_pages.NO_LIMIT
    memory = _gib(workload.memory_mib) if workload.memory_mib else run_report_pages.NO_LIMIT
    energy = details.energy_kwh
    return {
        "caption": run_report_pages.RESOURCES_TITLE,
        "columns": [
            {"label": "Resource"},
            {"label": "Mean", "numeric": True},
            {"label": "Peak", "numeric": True},
            {"label": "Asked", "numeric": True},
        ],
        "rows": [
            ["GPUs with work", "", _number(details.busy_at_once, 0), str(details.asked_gpus)],
            ["Utilisation", _share(details.utilisation), "", ""],
            [
                "GPU memory",
                "",
                _gib(peak.memory_peak_mib if peak else None),
                _gib(peak.memory_mib) if peak else "",
            ],
            ["CPU cores, each host", _number(details.mean_cores, 1), "", cores],
            ["Memory, each host", "", _gib(details.memory_peak_mib), memory],
            *_traffic_rows(details),
            ["Energy in all", "", _number(energy, 2) if energy is None else f"{energy:,.2f} kWh", ""],
        ],
    }


def _traffic_rows(details: RunReportDetails) -> list[list[str]]:
    """Return the rows of the bytes that all runs of the workload moved."""
    totals = details.report.host_use.totals
    return [
        [
            label,
            "",
            run_report_pages.NOT_MEASURED if (count := totals.get(name)) is None else data_size(count),
            "",
        ]
        for name, label in run_report_pages.TRAFFIC_TOTALS.items()
    ]


# The tables of the report as CSV: name -> (columns, rows).
CSV_FILES: dict[str, tuple[Sequence[str], Callable[[RunReportDetails], Iterable[list[Any]]]]] = {
    "points": (use_charts.CSV_COLUMNS, lambda details: use_charts.use_csv_rows(details.report)),
    "hosts": (use_charts.HOST_CSV_COLUMNS, lambda details: use_charts.host_csv_rows(details.report)),
    "gpus": (GPU_CSV_COLUMNS, lambda details: map(_gpu_csv_row, details.report.units)),
    "charges": (CHARGE_CSV_COLUMNS, lambda details: map(_charge_csv_row, details.charge_lines)),
    "prices": (PRICE_CSV_COLUMNS, lambda details: map(_price_csv_row, details.priced_times)),
}


def _mean_busy(units: list[UnitReport]) -> float | None:
    """Return the share of the measured time in which the GPUs were busy."""
    known = [(unit.sums.busy_seconds, unit.activity_seconds) for unit in units]
    busy = sum(part for part, whole in known if part is not None and whole)
    return share(busy, sum(whole for _, whole in known if whole))


def _share(value: float | None) -> str:
    return run_report_pages.NOT_MEASURED if value is None else percent(value)


def _number(value: float | None, decimals: int) -> str:
    return run_report_pages.NOT_MEASURED if value is None else grouped(value, decimals)


def _gib(mib: int | None, unit: str = " GiB") -> str:
    return run_report_pages.NOT_MEASURED if mib is None else f"{mib / MIB_PER_GIB:,.1f}{unit}"
