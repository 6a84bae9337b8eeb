"""The card of a workload: what components/workload_card.html shows, made of rows and words."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.urls import reverse
from django.utils import timezone

from portal.models import User
from portal.reads.work.workload_details import HeldUnit, WorkloadDetails, is_notebook
from portal.templatetags.gpupool import duration, gpu_model, money, percent
from portal.wording import (
    expected_start_texts,
    formatting,
    outcome_texts,
    reason_texts,
    request_texts,
    state_labels,
)
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.core.reasons import ReasonCode
from scheduler.models import Reservation, Workload
from scheduler.runs.attempts import LOST_CODES, WORKLOAD_FAILURE_CODES
from scheduler.state.states import LeaseState, WorkloadState

RUNNING_STATES = (WorkloadState.RUNNING, WorkloadState.NOTICE)
STARTING_STATES = (WorkloadState.PLACED, WorkloadState.STARTING)


def build_card(piece: WorkloadDetails, user: User, currency: str, now: datetime) -> dict[str, Any]:
    """One card; which parts it has follows from the workload's state."""
    workload = piece.workload
    made: dict[str, Any] = {
        "id": f"card-{workload.public_id}",
        "state": displayed_state(workload),
        "state_label": state_label(piece, user) if workload.state == WorkloadState.ENDED else "",
        "title": workload.name,
        "url": workload_url(workload),
        "what": summary_line(piece, currency),
        "simulated": piece.simulated,
        "actions": workload_buttons(piece, user),
    }
    if workload.state == WorkloadState.QUEUED:
        made |= _waiting_fields(piece, user, now)
    elif workload.state in STARTING_STATES:
        made["steps"] = startup_steps(piece)
    elif workload.state == WorkloadState.ENDED:
        made["readings"] = _final_readings(piece, currency)
    else:
        made |= _running_fields(piece, currency, now)
    made["state_detail"] = _idle_time(workload, now) if made["state"] == "idle" else ""
    say = _notice_line(piece, user, now)
    if say:
        made["say"] = say
    return made


def build_page_card(piece: WorkloadDetails, user: User, currency: str, now: datetime) -> dict[str, Any]:
    """The card on the workload's own page: with how good expected starts were."""
    made = build_card(piece, user, currency, now)
    if piece.workload.state == WorkloadState.QUEUED and piece.workload.expected_start is not None:
        made["record"] = expected_start_texts.forecast_accuracy_text(piece.past)
    return made


def workload_url(workload: Workload) -> str:
    """The address of a workload's page."""
    return reverse("notebook" if is_notebook(workload) else "job", args=[workload.public_id])


def displayed_state(workload: Workload) -> str:
    """The state a person sees: warned notebooks are idle, work that ran and waits again waits to resume."""
    if workload.state == WorkloadState.RUNNING and workload.idle_warned_at is not None:
        return "idle"
    if state_labels.is_waiting_to_resume(workload):
        return "waits_to_resume"
    if workload.state == WorkloadState.ENDED:
        return ended_state(workload.outcome, ran=workload.attempt > 0)
    return str(workload.state)


def run_time_text(piece: WorkloadDetails) -> str:
    """How long what has ended ran, in all its attempts; "did not run" when it did not. What was done or had failed by itself
    before it was seen running ran for a moment."""
    if piece.ran is not None:
        return duration(piece.ran)
    return (
        "for a moment"
        if piece.workload.outcome in (ReasonCode.FINISHED, *WORKLOAD_FAILURE_CODES)
        else "did not run"
    )


def final_cost_text(piece: WorkloadDetails, currency: str) -> str:
    """What it cost that has ended; a dash where nothing was charged that was placed."""
    nothing = Decimal("0.00") if not piece.workload.attempt else None
    cost = nothing if piece.cost is None else piece.cost
    return "–" if cost is None else money(cost, currency)


def ended_state(outcome: str, *, ran: bool) -> str:
    """The state of one that has ended, by how it ended: what ran was stopped, what did not was cancelled."""
    if outcome in ("cancelled", "drained", "dependency_never_met"):
        return "stopped" if ran else "cancelled"
    if outcome in ("finished", "time_limit", "idle", "checkpointed", ""):
        return "ended"
    return "failed"


def requested_units_text(workload: Workload | Reservation) -> str:
    """What it asks for: ``8 × H100 80GB on one host``, ``2 hosts × 8 A100 80GB``, ``1 × 1g.10gb of A100 80GB``."""
    models = " or ".join(gpu_model(model) for model in workload.models_wanted) or "any GPU"
    unit = models if workload.profile == WHOLE_GPU_PROFILE else f"{workload.profile} of {models}"
    if workload.hosts > 1:
        return f"{workload.hosts} hosts × {workload.units} {unit}"
    return f"{workload.units} × {unit}" + (" on one host" if workload.units > 1 else "")


def held_units_text(held: Iterable[HeldUnit]) -> str:
    """What is held: ``2 × A100 80GB``; different kinds joined by ``and``."""
    return units_text((unit.model, unit.profile, 1) for unit in held)


def units_text(units: Iterable[tuple[str, str, int]]) -> str:
    """The same of (model, profile, how many)."""
    counts: dict[str, int] = {}
    for model, profile, count in units:
        name = gpu_model(model) if profile == WHOLE_GPU_PROFILE else f"{profile} of {gpu_model(model)}"
        counts[name] = counts.get(name, 0) + count
    return " and ".join(f"{count} × {name}" for name, count in counts.items())


def gpu_count_text(gpus: float) -> str:
    """A number of GPUs that may have slices in it: ``10.14``."""
    return f"{round(gpus, 2):g}"


def location_text(held: Iterable[HeldUnit]) -> str:
    """Hosts and GPUs: ``h19, GPU 4–5; h20, GPU 0``."""
    by_host: dict[str, list[int]] = {}
    for unit in held:
        numbers = by_host.setdefault(unit.host, [])
        if unit.gpu not in numbers:
            numbers.append(unit.gpu)
    return "; ".join(f"{host}, GPU {_number_ranges(sorted(numbers))}" for host, numbers in by_host.items())


def summary_line(piece: WorkloadDetails, currency: str) -> str:
    """The line under a card's title."""
    workload = piece.workload
    kind = "Notebook" if is_notebook(workload) else "Job"
    if piece.held:
        return " · ".join((kind, held_units_text(piece.held), location_text(piece.held)))
    if piece.had:
        return " · ".join((kind, held_units_text(piece.had)))
    parts = [kind, requested_units_text(workload), f"at most {duration(workload.max_runtime_seconds)}"]
    if piece.price_per_hour is not None:
        parts.append(f"{money(piece.price_per_hour, currency)}/h")
    return " · ".join(parts)


def startup_steps(piece: WorkloadDetails) -> list[dict[str, Any]]:
    """The real steps of the present attempt, for the steps component."""
    steps = state_labels.start_steps(piece.workload, piece.run)
    line = []
    for step in steps:
        at = f"{timezone.localtime(step['at']):%H:%M:%S}" if step["at"] else ""
        detail = step["detail"]
        if step["word"] == "Placed" and piece.held:
            detail = location_text(piece.held)
        state = "todo" if step["state"] == "ahead" else step["state"]
        line.append(
            {
                "name": step["word"],
                "detail": " · ".join(part for part in (at, detail) if part),
                "state": state,
            }
        )
        if piece.workload.stop_requested and state == "now":
            line[-1]["state"] = "failed"
    return line


def lateness_warning(workload: Workload) -> str:
    """A warning when it is expected to be done later than it is wanted."""
    if workload.expected_start is None:
        return ""
    done = workload.expected_start + timedelta(seconds=workload.predicted_seconds)
    return request_texts.late_warning(workload.wanted_by, done)


def workload_buttons(piece: WorkloadDetails, user: User, *, small: bool = False) -> list[dict[str, Any]]:
    """The buttons of a workload, by its state. Who may not press one is told by the service; here others' work gets none."""
    workload = piece.workload
    if workload.state == WorkloadState.ENDED:
        return [{"label": "Launch again", "url": _action_url(workload, "relaunch"), "small": small}]
    mine = workload.owner_id == user.pk
    found: list[dict[str, Any]] = []
    ready = piece.run is not None and piece.run.ready_at is not None
    if mine and workload.state in RUNNING_STATES and (ready or is_notebook(workload)):
        open_it = {
            "label": "Open",
            "url": reverse("notebook-open", args=[workload.public_id]),
            "post": True,
            "target": "_blank",
        }
        found.append(
            {**open_it, "kind": "primary", "icon": "open", "small": small}
            if ready
            else {"label": "Open", "disabled": "JupyterLab does not answer yet", "small": small}
        )
    if workload.state in RUNNING_STATES and not workload.stop_requested and not small:
        found.append(
            {
                "label": "Extend 1 h",
                "url": _action_url(workload, "extend"),
                "post": True,
                "small": small,
                "fields": {"hours": 1},
            }
        )
    if workload.stop_requested or workload.state == WorkloadState.STOPPING:
        return found
    found.append(_stop_button(workload, small))
    return found


def _stop_button(workload: Workload, small: bool) -> dict[str, Any]:
    running = workload.state in RUNNING_STATES
    label = "Stop" if running else "Cancel"
    if not running:
        loss = "It leaves the queue and loses its place."
    elif is_notebook(workload):
        loss = "The memory of its kernels is lost. Files saved in its home stay."
    else:
        loss = "What it did since its last checkpoint is lost. Its log and files stay."
    return {
        "label": label,
        "url": _action_url(workload, "cancel"),
        "post": True,
        "kind": "quiet danger",
        "confirm": loss,
        "confirm_label": f"{label} {workload.name}",
        "small": small,
    }


def state_label(piece: WorkloadDetails, user: User) -> str:
    """The word of a workload's state; of one that a person stopped, by whom."""
    by = "" if piece.stop is None else "you" if piece.stop.user_id == user.pk else piece.stop.name
    return state_labels.workload_state_label(piece.workload, by)[1]


def stop_numbers(piece: WorkloadDetails, user: User) -> dict[str, Any]:
    """Numbers of the reason ``cancelled``."""
    return outcome_texts.cancelled_numbers(piece.workload, piece.stop, user)


def outcome_sentence(piece: WorkloadDetails, user: User) -> str:
    """In a sentence; empty while it has not ended."""
    workload = piece.workload
    if workload.state != WorkloadState.ENDED:
        return ""
    if piece.stop is None and piece.move is not None and piece.move.code == workload.outcome:
        return reason_texts.reason_sentence(
            workload.outcome, {**workload.outcome_numbers, **piece.move.numbers}, user
        )
    return outcome_texts.outcome_sentence(workload, piece.stop, user)


def _waiting_fields(piece: WorkloadDetails, user: User, now: datetime) -> dict[str, Any]:
    workload = piece.workload
    return {
        "position": workload.position,
        "of": piece.waiting if workload.position else None,
        "expected": expected_start_texts.expected_start_text(workload.expected_start, piece.likely, now),
        "why": " ".join(filter(None, (_waiting_reason(workload, user), lateness_warning(workload)))),
        "why_url": reverse("why", args=[workload.public_id]),
        # What has no place in the line is not behind anybody.
        "why_label": "Why them, not me?" if workload.position else "Why, and what would help?",
    }


def _waiting_reason(workload: Workload, user: User) -> str:
    said = reason_texts.waiting_sentence(workload, user)
    return said or "The engine has not looked at it yet."


def _running_fields(piece: WorkloadDetails, currency: str, now: datetime) -> dict[str, Any]:
    use = piece.use
    latest = "unknown" if use.latest is None else f"now {percent(use.latest)}"
    made: dict[str, Any] = {
        "spark": {
            "values": use.values or [None],
            "label": f"Utilisation over the last two hours, {latest}",
            "value": percent(use.latest),
            "small": f"SM {percent(use.sm_active)}" if use.sm_active is not None else "",
        },
        "readings": [_time_left(piece, now), _cost(piece, currency)],
    }
    return made


def _final_readings(piece: WorkloadDetails, currency: str) -> list[dict[str, str]]:
    """What became of it: nothing of it is left, and nothing is being read any more."""
    return [
        {"label": "Ran", "value": run_time_text(piece)},
        {"label": "Cost", "value": final_cost_text(piece, currency)},
    ]


def _time_left(piece: WorkloadDetails, now: datetime) -> dict[str, str]:
    end = (
        piece.workload.gone_by
        if piece.workload.state != WorkloadState.RUNNING and piece.workload.gone_by
        else piece.ends_at
    )
    if end is None:
        return {"label": "Time left", "value": "unknown"}
    local, today = timezone.localtime(end), timezone.localtime(now)
    clock = f"{local:%H:%M}" if local.date() == today.date() else f"{local:%a %H:%M}"
    left = end - now
    return {"label": "Time left", "value": duration(max(left, timedelta(0))), "small": f"to {clock}"}


def _cost(piece: WorkloadDetails, currency: str) -> dict[str, str]:
    so_far = (
        piece.cost
        if piece.cost is not None
        else (Decimal("0.00") if piece.price_per_hour is not None else None)
    )
    hourly = (
        f"{money(piece.price_per_hour, currency)}/h" if piece.price_per_hour is not None else "no price set"
    )
    return {"label": "Cost so far", "value": money(so_far, currency), "small": hourly}


def _notice_line(piece: WorkloadDetails, user: User, now: datetime) -> dict[str, Any] | None:
    """The line at the card's foot: what is about to happen, and the button that changes it."""
    workload = piece.workload
    if workload.state == WorkloadState.ENDED:
        return None
    if workload.state == WorkloadState.NOTICE:
        by = f" It is gone by {formatting.date_and_time(workload.gone_by)}." if workload.gone_by else ""
        what_for = "and leaves its host" if piece.move else "to make room"
        return {"warn": True, "text": f"It writes a checkpoint {what_for}. {stop_reason(piece, user)}{by}"}
    if workload.state == WorkloadState.STOPPING or workload.stop_requested:
        if piece.stop is not None:
            by = "you" if piece.stop.user_id == user.pk else piece.stop.name
            return {
                "text": f"It is being stopped by {by}{': ' if piece.stop.why else ''}{piece.stop.why.rstrip('.')}."
            }
        return {"text": f"It is being stopped. {stop_reason(piece, user)}".strip()}
    if workload.state == WorkloadState.RUNNING and (quiet := _silent_host_notice(piece, now)):
        return {"warn": True, "text": quiet}
    if workload.state == WorkloadState.RUNNING and workload.idle_warned_at is not None:
        return {
            "warn": True,
            "text": "No busy kernel, no open page and a quiet GPU. It stops soon unless you use it; your files stay.",
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
    if state_labels.is_waiting_to_resume(workload):
        since = workload.checkpoint_at
        resumes = (
            f"Its last checkpoint is of {formatting.date_and_time(since)}."
            if since
            else "It wrote no checkpoint and begins anew."
        )
        return {"text": f"{stop_reason(piece, user)} {resumes}".strip()}
    end = piece.ends_at
    if (
        workload.state == WorkloadState.RUNNING
        and end is not None
        and timedelta(0) < end - now < timedelta(minutes=15)
    ):
        return {
            "warn": True,
            "text": f"It reaches its longest runtime in {duration(end - now)}; save your work or extend it.",
        }
    if workload.state == WorkloadState.RUNNING and piece.borrows is not None:
        return {"text": borrowing_notice(piece)}
    return None


def borrowing_notice(piece: WorkloadDetails) -> str:
    """That its team holds more than it is guaranteed, so that this may have to make room; empty where that is not so."""
    line = piece.borrows
    if line is None:
        return ""
    return request_texts.borrowing_notice(
        piece.workload.project.team.name, line.model, round(line.held, 2), round(line.guaranteed, 2)
    )


def _silent_host_notice(piece: WorkloadDetails, now: datetime) -> str:
    """That nothing was heard of its host for too long; of a gang, of its first. Empty while it reports."""
    host = piece.run.host if piece.run is not None else None
    if host is None or host.lease_state == LeaseState.ALIVE or host.last_sync_at is None:
        return ""
    return (
        f"Its host {host.name} was last heard {duration(now - host.last_sync_at)} ago. What runs there stops by itself when its "
        "lease is over, and begins again elsewhere where it may be tried again."
    )


def stop_reason(piece: WorkloadDetails, user: User) -> str:
    """For whom it makes room, as far as the viewer may know, or why else it is stopped."""
    if piece.move is not None and piece.workload.stop_requested in ("", piece.move.code):
        return reason_texts.reason_sentence(piece.move.code, piece.move.numbers, user)
    if piece.eviction is not None:
        numbers = {**piece.eviction.numbers, "for_workload": piece.eviction.for_workload_id}
        return reason_texts.reason_sentence(piece.eviction.code, numbers, user)
    if (
        state_labels.is_waiting_to_resume(piece.workload)
        and piece.run is not None
        and piece.run.outcome in LOST_CODES
    ):
        return reason_texts.reason_sentence(piece.run.outcome, {}, user)
    return reason_texts.reason_sentence(piece.workload.stop_requested, stop_numbers(piece, user), user)


def _idle_time(workload: Workload, now: datetime) -> str:
    return duration(now - workload.idle_warned_at) if workload.idle_warned_at else ""


def _action_url(workload: Workload, verb: str) -> str:
    return reverse(f"workload-{verb}", args=[workload.public_id])


def _number_ranges(numbers: list[int]) -> str:
    """``0, 2–5`` for 0, 2, 3, 4, 5."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in spans)
