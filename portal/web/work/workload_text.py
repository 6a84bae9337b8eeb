"""Describe a workload in words: state, GPUs, location, run time, cost, outcome and stop reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from portal.models import User
from portal.reads.work.workload_details import HeldUnit, WorkloadDetails, is_notebook
from portal.web.components.quantities import gpu_model, money, money_sums, short_duration
from portal.wording import outcome_texts, reason_texts, request_texts, state_labels
from portal.wording.chargeback import charge_scope_texts
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.core.reasons import ReasonCode
from scheduler.models import Workload
from scheduler.runs.retry_policy import LOST_CODES, WORKLOAD_FAILURE_CODES
from scheduler.state.states import WorkloadState


def workload_url(workload: Workload) -> str:
    """Return the URL of a workload's page."""
    return reverse("notebook" if is_notebook(workload) else "job", args=[workload.public_id])


def displayed_state(workload: Workload) -> str:
    """Return the state that pages show.

    A notebook with an idle warning is "idle". A preempted workload in the queue is "waits_to_resume".
    """
    if workload.state == WorkloadState.RUNNING and workload.idle_warned_at is not None:
        return "idle"
    if state_labels.is_waiting_to_resume(workload):
        return "waits_to_resume"
    if workload.state == WorkloadState.ENDED:
        return ended_state(workload.outcome, ran=workload.attempt > 0)
    return str(workload.state)


def run_time_text(details: WorkloadDetails) -> str:
    """Return the run time of an ended workload over all attempts, or "did not run".

    Return "briefly" if the workload ended before the agent reported that it runs. The time is then unknown.
    """
    if details.ran is not None:
        return short_duration(details.ran)
    return (
        "briefly"
        if details.workload.outcome in (ReasonCode.FINISHED, *WORKLOAD_FAILURE_CODES)
        else "did not run"
    )


def final_cost_text(details: WorkloadDetails, currency: str) -> str:
    """Return the cost of an ended workload.

    Return a dash if the cost is unknown although the workload was placed.
    """
    if details.cost_hidden:
        return charge_scope_texts.HIDDEN_COST
    if details.cost is not None:
        return money_sums(details.cost)
    return "–" if details.workload.attempt else money(Decimal(0), currency)


def ended_state(outcome: str, *, ran: bool) -> str:
    """Return the state that pages show for an ended workload: "ended", "failed", "cancelled" or "stopped".

    A person has cancelled a "cancelled" workload. The program has ended a "stopped" one.
    """
    if outcome == "cancelled":
        return "cancelled"
    if outcome in ("drained", "dependency_never_met"):
        return "stopped" if ran else "ended"
    if outcome in ("finished", "time_limit", "idle", "checkpointed", ""):
        return "ended"
    return "failed"


def held_units_text(held: Iterable[HeldUnit]) -> str:
    """Return held units as text: ``2 × A100 80GB and 1 × H100 80GB``."""
    return units_text((unit.model, unit.profile, 1) for unit in held)


def units_text(units: Iterable[tuple[str, str, int]]) -> str:
    """Return units as text, such as ``2 × A100 80GB``. Each unit is given as (model, profile, count)."""
    counts: dict[str, int] = {}
    for model, profile, count in units:
        name = gpu_model(model) if profile == WHOLE_GPU_PROFILE else f"{profile} of {gpu_model(model)}"
        counts[name] = counts.get(name, 0) + count
    return " and ".join(f"{count} × {name}" for name, count in counts.items())


def gpu_count_text(gpus: float) -> str:
    """Return a number of GPUs with at most two decimals. Slices count as fractions: ``10.14``."""
    return f"{round(gpus, 2):g}"


def location_text(held: Iterable[HeldUnit]) -> str:
    """Return the hosts and GPUs of held units as text: ``h19, GPU 4–5; h20, GPU 0``."""
    by_host: dict[str, list[int]] = {}
    for unit in held:
        numbers = by_host.setdefault(unit.host, [])
        if unit.gpu not in numbers:
            numbers.append(unit.gpu)
    return "; ".join(f"{host}, GPU {number_ranges(sorted(numbers))}" for host, numbers in by_host.items())


def lateness_warning(workload: Workload) -> str:
    """Return a warning if the workload is expected to end after its deadline; otherwise ""."""
    if workload.expected_start is None:
        return ""
    done = workload.expected_start + timedelta(seconds=workload.predicted_seconds)
    return request_texts.late_warning(workload.wanted_by, done)


def waiting_reason(
    workload: Workload,
    user: User,
    known_hosts: dict[tuple[Any, ...], list[dict[str, Any]]] | None = None,
) -> str:
    """Return the sentence that says why a workload waits, with a link for each host that it names.

    Return "" before the engine has planned the workload. ``known_hosts``: see ``waiting_numbers``.
    """
    numbers = reason_texts.waiting_numbers(workload, known_hosts)
    sentence = reason_texts.reason_sentence(workload.reason_code, numbers, user)
    hosts = [row["host"] for row in numbers.get("closed", ())]
    return linked_hosts(sentence, hosts) if hosts else sentence


def linked_hosts(sentence: str, hosts: Sequence[str]) -> SafeString:
    """Return a sentence in which the names of these hosts are links to their pages."""
    names = "|".join(sorted(map(re.escape, hosts), key=len, reverse=True))
    parts = re.split(rf"(?<![\w.-])({names})(?![\w-])", sentence)
    return format_html_join(
        "",
        "{}",
        (
            (format_html('<a href="{}">{}</a>', reverse("host", args=[part]), part) if place % 2 else part,)
            for place, part in enumerate(parts)
        ),
    )


def state_label(details: WorkloadDetails, user: User) -> str:
    """Return the label of a workload's state. It names the person who stopped the workload, if any."""
    by = "" if details.stop is None else "you" if details.stop.user_id == user.pk else details.stop.name
    return state_labels.workload_state_label(details.workload, by)[1]


def stop_numbers(details: WorkloadDetails, user: User) -> dict[str, Any]:
    """Return the values in the sentence of the reason ``cancelled``, such as who stopped it and why."""
    return outcome_texts.cancelled_numbers(details.workload, details.stop, user)


def outcome_sentence(details: WorkloadDetails, user: User) -> str:
    """Return a sentence that says how the workload ended; "" if it has not ended."""
    workload = details.workload
    if workload.state != WorkloadState.ENDED:
        return ""
    if details.stop is None and details.move is not None and details.move.code == workload.outcome:
        return reason_texts.reason_sentence(
            workload.outcome, {**workload.outcome_numbers, **details.move.numbers}, user
        )
    return outcome_texts.outcome_sentence(workload, details.stop, user)


def borrowing_notice(details: WorkloadDetails) -> str:
    """Return the notice that the workload may be preempted because its team borrows; otherwise ""."""
    line = details.borrows
    if line is None:
        return ""
    return request_texts.borrowing_notice(
        details.workload.project.team.name, line.model, round(line.held, 2), round(line.guaranteed, 2)
    )


def stop_reason(details: WorkloadDetails, user: User) -> str:
    """Return a sentence that says why a workload is being stopped or was preempted.

    The sentence names the workload that needs the GPUs if the user may see it.
    """
    if details.move is not None and details.workload.stop_requested in ("", details.move.code):
        return reason_texts.reason_sentence(details.move.code, details.move.numbers, user)
    if details.eviction is not None:
        numbers = {**details.eviction.numbers, "for_workload": details.eviction.for_workload_id}
        return reason_texts.reason_sentence(details.eviction.code, numbers, user)
    if (
        state_labels.is_waiting_to_resume(details.workload)
        and details.run is not None
        and details.run.outcome in LOST_CODES
    ):
        return reason_texts.reason_sentence(details.run.outcome, {}, user)
    return reason_texts.reason_sentence(details.workload.stop_requested, stop_numbers(details, user), user)


def number_ranges(numbers: list[int]) -> str:
    """Format sorted numbers as ranges: ``0, 2–5`` for 0, 2, 3, 4, 5."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in spans)
