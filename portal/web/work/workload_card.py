"""Build a workload's card for components/workload_card.html."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join

from portal import policy
from portal.models import User
from portal.reads.work.workload_details import WorkloadDetails, is_notebook
from portal.web.components.quantities import money, money_sums, percent, short_duration
from portal.web.work import workload_text
from portal.web.work.workload_text import (
    borrowing_notice,
    displayed_state,
    final_cost_text,
    held_units_text,
    lateness_warning,
    location_text,
    run_time_text,
    state_label,
    stop_reason,
    workload_url,
)
from portal.wording import (
    expected_start_texts,
    formatting,
    state_labels,
)
from portal.wording.chargeback import charge_scope_texts
from portal.wording.pages import workload_pages
from portal.wording.request_texts import requested_units_text
from scheduler.models import Workload
from scheduler.state.states import LeaseState, WorkloadState
from telemetry.alerts.postponements import PlannedStop

RUNNING_STATES = (WorkloadState.RUNNING, WorkloadState.NOTICE)
STARTING_STATES = (WorkloadState.PLACED, WorkloadState.STARTING)


def build_card(details: WorkloadDetails, user: User, currency: str, now: datetime) -> dict[str, Any]:
    """Return the values of a workload's card. The parts of a card depend on the workload's state."""
    workload = details.workload
    made: dict[str, Any] = {
        "id": f"card-{workload.public_id}",
        "state": displayed_state(workload),
        "state_label": state_label(details, user) if workload.state == WorkloadState.ENDED else "",
        "title": workload.name,
        "url": workload_url(workload),
        "what": summary_line(details, currency),
        "simulated": details.simulated,
        "actions": workload_buttons(details, user),
    }
    if workload.state == WorkloadState.QUEUED:
        made |= _waiting_fields(details, user, now)
    elif workload.state in STARTING_STATES:
        made["steps"] = startup_steps(details)
    elif workload.state == WorkloadState.ENDED:
        made["readings"] = _final_readings(details, currency)
    else:
        made |= _running_fields(details, currency, now)
    made["state_detail"] = _idle_time(workload, now) if made["state"] == "idle" else ""
    if details.cost_hidden and "readings" in made:
        made["cost_note"] = charge_scope_texts.HIDDEN_COSTS
    say = _notice_line(details, user, now)
    if say:
        made["say"] = say
    return made


def build_page_card(details: WorkloadDetails, user: User, currency: str, now: datetime) -> dict[str, Any]:
    """Return the card for the workload's own page.

    For a waiting workload, the card includes the accuracy of past start forecasts.
    """
    made = build_card(details, user, currency, now)
    if details.workload.state == WorkloadState.QUEUED and details.workload.expected_start is not None:
        made["record"] = expected_start_texts.forecast_accuracy_text(details.past)
    return made


def summary_line(details: WorkloadDetails, currency: str) -> str:
    """Return the line below a card's title: kind, GPUs, and the location or the limits."""
    workload = details.workload
    kind = "Notebook" if is_notebook(workload) else "Job"
    if details.held:
        return " · ".join((kind, held_units_text(details.held), location_text(details.held)))
    if details.had:
        return " · ".join((kind, held_units_text(details.had)))
    parts = [kind, requested_units_text(workload), f"at most {short_duration(workload.max_runtime_seconds)}"]
    if details.price_per_hour is not None:
        parts.append(f"{money(details.price_per_hour, currency)}/h")
    return " · ".join(parts)


def startup_steps(details: WorkloadDetails) -> list[dict[str, Any]]:
    """Return the steps of the current attempt, in the format of ``components.elements.steps``."""
    steps = state_labels.start_steps(details.workload, details.run)
    line = []
    for step in steps:
        at = f"{timezone.localtime(step['at']):%H:%M:%S}" if step["at"] else ""
        detail = step["detail"]
        if step["word"] == "Placed" and details.held:
            detail = location_text(details.held)
        state = "todo" if step["state"] == "ahead" else step["state"]
        line.append(
            {
                "name": step["word"],
                "detail": " · ".join(part for part in (at, detail) if part),
                "state": state,
            }
        )
        if details.workload.stop_requested and state == "now":
            line[-1]["state"] = "failed"
    return line


def workload_buttons(details: WorkloadDetails, user: User, *, small: bool = False) -> list[dict[str, Any]]:
    """Return the buttons that fit the workload's state; [] if the user may not act on it."""
    workload = details.workload
    if workload.state == WorkloadState.ENDED:
        return _buttons_after_end(workload, small)
    mine = workload.owner_id == user.pk
    buttons: list[dict[str, Any]] = []
    ready = details.run is not None and details.run.ready_at is not None
    if mine and workload.state in RUNNING_STATES and (ready or is_notebook(workload)):
        open_it = {
            "label": "Open",
            "url": reverse("notebook-open", args=[workload.public_id]),
            "post": True,
            "target": "_blank",
        }
        buttons.append(
            {**open_it, "kind": "primary", "icon": "open", "small": small}
            if ready
            else {"label": "Open", "disabled": "JupyterLab does not respond yet", "small": small}
        )
    if workload.state in RUNNING_STATES and not workload.stop_requested and not small:
        buttons.append(
            {
                "label": "Extend 1 h",
                "url": _action_url(workload, "extend"),
                "post": True,
                "small": small,
                "fields": {"hours": 1},
            }
        )
    if workload.stop_requested or workload.state == WorkloadState.STOPPING:
        return buttons
    buttons.append(_stop_button(workload, small))
    return buttons


def _buttons_after_end(workload: Workload, small: bool) -> list[dict[str, Any]]:
    again = {"label": "Launch again", "url": _action_url(workload, "relaunch"), "small": small}
    report = {"label": "Report", "url": _action_url(workload, "report"), "small": small}
    return [report, again] if workload.attempt and not small else [again]


def _stop_button(workload: Workload, small: bool) -> dict[str, Any]:
    running = workload.state in RUNNING_STATES
    label = "Stop" if running else "Cancel"
    if not running:
        loss = workload_pages.QUEUE_LEAVE_EFFECT
    elif is_notebook(workload):
        loss = workload_pages.NOTEBOOK_STOP_EFFECT
    else:
        loss = workload_pages.JOB_STOP_EFFECT
    return {
        "label": label,
        "url": _action_url(workload, "cancel"),
        "post": True,
        "kind": "quiet danger",
        "confirm": loss,
        "confirm_label": f"{label} {workload.name}",
        "small": small,
    }


def _waiting_fields(details: WorkloadDetails, user: User, now: datetime) -> dict[str, Any]:
    workload = details.workload
    reasons = (_waiting_reason(workload, user), lateness_warning(workload))
    return {
        "position": workload.position,
        "of": details.waiting if workload.position else None,
        "expected": expected_start_texts.expected_start_text(workload.expected_start, details.likely, now),
        "why": format_html_join(" ", "{}", ((part,) for part in reasons if part)),
        "why_url": reverse("why", args=[workload.public_id]),
        # A workload without a queue position is not behind other workloads.
        "why_label": workload_pages.WHY_THEM_LABEL if workload.position else workload_pages.WHY_LABEL,
    }


def _waiting_reason(workload: Workload, user: User) -> str:
    sentence = workload_text.waiting_reason(workload, user)
    return sentence or workload_pages.NOT_PLANNED


def _running_fields(details: WorkloadDetails, currency: str, now: datetime) -> dict[str, Any]:
    use = details.use
    latest = "unknown" if use.latest is None else f"now {percent(use.latest)}"
    made: dict[str, Any] = {
        "spark": {
            "values": use.values or [None],
            "label": workload_pages.SPARK_LABEL.format(latest=latest),
            "value": percent(use.latest),
            "small": f"SM {percent(use.sm_active)}" if use.sm_active is not None else "",
        },
        "readings": [_time_left(details, now), _cost(details, currency)],
    }
    return made


def _final_readings(details: WorkloadDetails, currency: str) -> list[dict[str, str]]:
    """Return the run time and the cost of an ended workload."""
    return [
        {"label": "Ran", "value": run_time_text(details)},
        {"label": "Cost", "value": final_cost_text(details, currency)},
    ]


def _time_left(details: WorkloadDetails, now: datetime) -> dict[str, str]:
    end = (
        details.workload.gone_by
        if details.workload.state != WorkloadState.RUNNING and details.workload.gone_by
        else details.ends_at
    )
    if end is None:
        return {"label": "Time left", "value": "unknown"}
    local, today = timezone.localtime(end), timezone.localtime(now)
    clock = f"{local:%H:%M}" if local.date() == today.date() else f"{local:%a %H:%M}"
    left = end - now
    return {"label": "Time left", "value": short_duration(max(left, timedelta(0))), "small": f"to {clock}"}


def _cost(details: WorkloadDetails, currency: str) -> dict[str, str]:
    nothing = Decimal(0) if details.price_per_hour is not None else None
    so_far = money(nothing, currency) if details.cost is None else money_sums(details.cost)
    if details.cost_hidden:
        so_far = charge_scope_texts.HIDDEN_COST
    hourly = (
        f"{money(details.price_per_hour, currency)}/h"
        if details.price_per_hour is not None
        else "no price set"
    )
    return {"label": "Cost so far", "value": so_far, "small": hourly}


# Not split: the function is a decision table, in which the first match decides.
def _notice_line(details: WorkloadDetails, user: User, now: datetime) -> dict[str, Any] | None:
    """Return the notice at the foot of the card; None if there is none.

    A warning that a notebook is idle has a button that keeps it running.
    """
    workload = details.workload
    if workload.state == WorkloadState.ENDED:
        return None
    if workload.state == WorkloadState.NOTICE:
        by = (
            workload_pages.GONE_BY.format(time=formatting.date_and_time(workload.gone_by))
            if workload.gone_by
            else ""
        )
        what_for = "and leaves its host" if details.move else "to make room"
        return {
            "warn": True,
            "text": workload_pages.WRITES_CHECKPOINT.format(
                purpose=what_for, reason=stop_reason(details, user), gone_by=by
            ),
        }
    if workload.state == WorkloadState.STOPPING or workload.stop_requested:
        if details.stop is not None:
            by = "you" if details.stop.user_id == user.pk else details.stop.name
            return {
                "text": workload_pages.CANCELLED_BY.format(
                    person=by, colon=": " if details.stop.why else "", why=details.stop.why.rstrip(".")
                )
            }
        return {"text": workload_pages.STOPPED_BECAUSE.format(reason=stop_reason(details, user)).strip()}
    if workload.state == WorkloadState.RUNNING and (quiet := _silent_host_notice(details, now)):
        return {"warn": True, "text": quiet}
    if workload.state == WorkloadState.RUNNING and workload.idle_warned_at is not None:
        return {
            "warn": True,
            "text": workload_pages.IDLE_WARNING,
            "actions": [
                {
                    "label": "Keep it 2 h",
                    "url": _action_url(workload, "keep"),
                    "post": True,
                    "small": True,
                    "fields": {"hours": 2},
                }
            ],
        }
    if workload.state == WorkloadState.RUNNING and details.planned_stop is not None:
        return _planned_stop_notice(workload, details.planned_stop, user)
    if state_labels.is_waiting_to_resume(workload):
        since = workload.checkpoint_at
        resumes = (
            workload_pages.LAST_CHECKPOINT.format(time=formatting.date_and_time(since))
            if since
            else workload_pages.NO_CHECKPOINT
        )
        return {"text": f"{stop_reason(details, user)} {resumes}".strip()}
    end = details.ends_at
    if (
        workload.state == WorkloadState.RUNNING
        and end is not None
        and timedelta(0) < end - now < timedelta(minutes=15)
    ):
        return {
            "warn": True,
            "text": workload_pages.RUNTIME_ENDS.format(left=short_duration(end - now)),
        }
    if workload.state == WorkloadState.RUNNING and details.borrows is not None:
        return {"text": borrowing_notice(details)}
    return None


def _planned_stop_notice(workload: Workload, stop: PlannedStop, user: User) -> dict[str, Any]:
    """Return the warning that an unused job is stopped, with a button that postpones the stop."""
    text = workload_pages.UNUSED_WARNING.format(time=formatting.date_and_time(stop.stop_at))
    if not stop.left or not policy.may(user, "workload.change", workload):
        return {"warn": True, "text": text}
    length = short_duration(stop.minutes * 60)
    more = workload_pages.POSTPONE_LEFT.format(
        times=formatting.with_count(stop.left, "more time"), length=length
    )
    return {
        "warn": True,
        "text": f"{text} {more}",
        "actions": [
            {
                "label": workload_pages.POSTPONE.format(length=length),
                "url": _action_url(workload, "keep"),
                "post": True,
                "small": True,
                "fields": {"minutes": stop.minutes},
            }
        ],
    }


def _silent_host_notice(details: WorkloadDetails, now: datetime) -> str:
    """Return the notice that the workload's first host is late with its report; "" if it is not late."""
    host = details.run.host if details.run is not None else None
    if host is None or host.lease_state == LeaseState.ALIVE or host.last_sync_at is None:
        return ""
    return workload_pages.HOST_SILENT.format(host=host.name, silence=short_duration(now - host.last_sync_at))


def _idle_time(workload: Workload, now: datetime) -> str:
    return short_duration(now - workload.idle_warned_at) if workload.idle_warned_at else ""


def _action_url(workload: Workload, verb: str) -> str:
    return reverse(f"workload-{verb}", args=[workload.public_id])
