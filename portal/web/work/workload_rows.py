"""Build the rows of lists of notebooks and jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.urls import reverse

from portal.models import User
from portal.reads.work import job_arrays
from portal.reads.work.workload_details import WorkloadDetails
from portal.web.components.quantities import money_sums, percent, short_duration
from portal.web.work import workload_card, workload_text
from portal.wording import expected_start_texts, state_labels
from portal.wording.chargeback import charge_scope_texts
from portal.wording.pages import workload_pages
from portal.wording.request_texts import requested_units_text
from scheduler.models import Workload
from scheduler.state.states import WorkloadState


def list_rows(
    all_details: list[WorkloadDetails], user: User, currency: str, now: datetime, *, in_one_line: bool = False
) -> list[dict[str, Any]]:
    """Return the rows of a list. With ``in_one_line``, the row of an array task shows the whole array."""
    wholes = (
        job_arrays.array_totals((details.workload for details in all_details), user, now)
        if in_one_line
        else {}
    )
    rows = []
    for details in all_details:
        whole = wholes.get(details.workload.array_id or 0)
        rows.append(
            _workload_row(details, user, currency, now)
            if whole is None
            else _array_row(whole, details, currency, now)
        )
    return rows


def list_notes(rows: list[dict[str, Any]]) -> list[str]:
    """Return the notes below a list: the reasons of its "borrowed" tags, and why costs are hidden."""
    notes = dict.fromkeys(row["borrowed"] for row in rows if row["borrowed"])
    hidden = [charge_scope_texts.HIDDEN_COSTS] if any(row["cost_hidden"] for row in rows) else []
    return [*notes, *hidden]


def _workload_row(details: WorkloadDetails, user: User, currency: str, now: datetime) -> dict[str, Any]:
    workload = details.workload
    state = workload_text.displayed_state(workload)
    return {
        "workload": workload,
        "url": workload_text.workload_url(workload),
        "state": state,
        "word": workload_text.state_label(details, user) if state != "idle" else "Idle",
        "what": workload_text.held_units_text(details.held or details.had) or requested_units_text(workload),
        "where": workload_text.location_text(details.held),
        "borrowed": workload_text.borrowing_notice(details),
        "simulated": details.simulated,
        "use_text": _use_text(details),
        "time": _time_text(details, now),
        "submitted": workload.submitted_at,
        "ended": workload.ended_at,
        "cost": _cost_text(details, currency),
        "cost_hidden": details.cost_hidden,
        "actions": workload_card.workload_buttons(details, user, small=True)
        if _offers_buttons(workload, user)
        else [],
    }


def _array_row(
    whole: job_arrays.JobArrayTotals, details: WorkloadDetails, currency: str, now: datetime
) -> dict[str, Any]:
    """Return the row of an array, with the GPUs, the time and the cost of all its tasks together."""
    row = whole.row
    held = workload_text.units_text(whole.held)
    return {
        "workload": details.workload,
        "array": {"name": row.name, "words": job_arrays.array_summary(row)},
        "url": reverse("array", args=[row.public_id]),
        "state": whole.state,
        "word": state_labels.array_state_label(row),
        "what": held or f"{requested_units_text(details.workload)}, each task",
        "where": "in all" if held else "",
        "borrowed": workload_text.borrowing_notice(details),
        "simulated": details.simulated or whole.simulated,
        "use_text": percent(whole.use) if held else "",
        "time": _array_time(row, now),
        "submitted": row.created_at,
        "ended": row.over if row.waiting + row.running == 0 else None,
        "cost": charge_scope_texts.HIDDEN_COST
        if whole.cost_hidden
        else money_sums(whole.cost)
        if whole.cost is not None
        else "–",
        "cost_hidden": whole.cost_hidden,
        "actions": [],
    }


def _use_text(details: WorkloadDetails) -> str:
    """Return the last utilisation, or the mean utilisation of an ended workload; "" without GPUs.

    The use of an ended workload without a report is unknown.
    """
    if details.workload.state != WorkloadState.ENDED:
        return percent(details.use.latest) if details.held else ""
    if not details.had:
        return ""
    mean = percent(details.use.mean)
    return mean if details.use.mean is None else workload_pages.MEAN_USE.format(use=mean)


def _array_time(row: Any, now: datetime) -> str:
    """Return a text about the time of an array.

    After the end, it is the time from the first start to the last end. Before the end, it is the time since
    the first start if a task has started. Otherwise it is the expected start, or the time in the queue if no
    start is expected.
    """
    if row.waiting + row.running == 0:
        return "did not run" if row.began is None else f"took {short_duration(row.over - row.began)}"
    if row.began is not None:
        return f"began {short_duration(now - row.began)} ago"
    if row.expected is not None:
        return f"starts {expected_start_texts.expected_start_text(row.expected, None, now)}"
    return "starts" if row.waits_since is None else f"waits {short_duration(now - row.waits_since)}"


def _offers_buttons(workload: Workload, user: User) -> bool:
    """Return True if the row has buttons.

    The rule is approximate, so that it needs no query. The service checks the permission.
    """
    return workload.owner_id == user.pk and not user.auditor


def _cost_text(details: WorkloadDetails, currency: str) -> str:
    if details.workload.state == WorkloadState.ENDED:
        return workload_text.final_cost_text(details, currency)
    if details.cost_hidden:
        return charge_scope_texts.HIDDEN_COST
    return money_sums(details.cost) if details.cost is not None else "–"


def _time_text(details: WorkloadDetails, now: datetime) -> str:
    workload = details.workload
    if workload.state == WorkloadState.QUEUED:
        return (
            f"starts {expected_start_texts.expected_start_text(workload.expected_start, details.likely, now)}"
            if workload.expected_start
            else f"waits {short_duration(now - workload.queued_at)}"
        )
    if workload.state == WorkloadState.ENDED:
        ran = workload_text.run_time_text(details)
        return ran if ran == "did not run" else f"ran {ran}"
    end = details.ends_at
    return f"{short_duration(end - now)} left" if end is not None and end > now else "ends now"
