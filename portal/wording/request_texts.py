"""Describe requests and their effects.

The topics are submissions, guarantees, borrowing, placement, and changes of daylight saving time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from portal.wording.chargeback import budget_texts
from portal.wording.formatting import (
    Numbers,
    cores,
    date_and_time,
    duration,
    gibibytes,
    model_name,
    parsed_time,
    weekdays,
    window,
)
from portal.wording.quota_texts import quota_change_summary
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.models import Reservation, Workload
from scheduler.requests import HardwareRequest, RequestField, request_fields
from scheduler.services.recurrence import DstOccurrence

MAX_HOSTS_NAMED = 5
# Fields that get no row of their own in ``placement_rows``. Another row or the request's size shows them.
DESCRIBED_HARDWARE = frozenset(
    ("units", "hosts", "models_wanted", "profile", "min_memory_mib", "min_compute_capability", "nvlink")
    + ("labels_required", "labels_preferred", "spread", "cpu_milli", "memory_mib")
)


def clock_change(change: DstOccurrence, time_zone: str) -> str:
    """Return a sentence about an occurrence that differs because the clocks change on its day."""
    day = f"{change.day:%a %-d %b %Y}"
    if change.window is None:
        return (
            f"{day}: the clock of {time_zone} is put forward and skips the whole window; "
            "nothing is reserved on that day."
        )
    start, end = (at.astimezone(ZoneInfo(time_zone)) for at in change.window)
    parts = [f"{at:%H:%M} does not exist" for at in change.missing]
    parts += [f"{at:%H:%M} comes twice; the first counts" for at in change.doubled]
    if change.longer:
        parts.append(
            f"it lasts {duration(abs(change.longer))} {'longer' if change.longer > timedelta() else 'less'}"
        )
    return (
        f"{day}: the clock of {time_zone} is put {'back' if _goes_back(change) else 'forward'}: "
        f"{', '.join(parts)}. It is from {start:%H:%M} to {end:%H:%M}."
    )


def _goes_back(change: DstOccurrence) -> bool:
    return bool(change.doubled) or change.longer > timedelta()


def guarantee_effect(
    *, team: str, pool: str, model: str, asked: float, most: float, capacity: float, others: float, own: float
) -> str:
    """Return a sentence about the effect of a guarantee of ``asked`` GPUs, or about its largest size.

    The effect is the number of GPUs that stay without a guarantee. ``most`` is the largest guarantee that the
    team could have. ``capacity`` is the size of the pool, ``others`` the sum of other teams' guarantees, and
    ``own`` the team's current guarantee. All are numbers of GPUs of the model.
    """
    name = model_name(model)
    if asked <= most:
        left, before = capacity - others - asked, capacity - others - own
        return f"{left:g} of {capacity:g} {name} stay without a guarantee (now {before:g})."
    return (
        f"{asked:g} × {name} is {asked - most:g} more than available: {pool} has {capacity:g}, and other "
        f"teams are guaranteed {others:g} of them. {team} can be guaranteed up to {most:g}."
    )


def borrowing_notice(team: str, model: str, held: float, guaranteed: float) -> str:
    """Return a note for preemptible work of a team that holds more GPUs of a model than its guarantee."""
    return (
        f"{team} holds {held:g} × {model_name(model)}, {held - guaranteed:g} of them borrowed: "
        f"it is guaranteed {guaranteed:g}. The teams that are guaranteed them may "
        "reclaim them; preemptible work like this then gets a notice and is queued again."
    )


def late_warning(wanted_by: datetime | None, done: datetime | None) -> str:
    """Return a warning if work is expected to finish after its deadline, otherwise ""."""
    if wanted_by is None or done is None or done <= wanted_by:
        return ""
    return (
        f"Its deadline is {date_and_time(wanted_by)}; it is expected to end at {date_and_time(done)}, "
        f"{duration(done - wanted_by)} later."
    )


def unreachable_hosts_warning(pool: str, hosts: Sequence[str], of: int) -> str:
    """Return a warning about hosts that cannot reach each other over the network.

    ``hosts`` are the names of these hosts. ``of`` is the number of hosts that could run the job.
    """
    what = "let a job's hosts reach each other over the network (docs/gangs.md)"
    then = "members that communicate, as with torchrun or MPI, can't connect"
    if len(hosts) == of:
        return (
            f"The hosts of {pool} that could run it do not {what}: {then}. "
            "Work whose members only share files can run there."
        )
    named = ", ".join(hosts[:MAX_HOSTS_NAMED]) + (
        f" and {len(hosts) - MAX_HOSTS_NAMED} more" if len(hosts) > MAX_HOSTS_NAMED else ""
    )
    return (
        f"{len(hosts)} of the {of} hosts of {pool} that could run it do not {what}: {named}. "
        f"On these hosts, {then}. To avoid them, require a label that only the other hosts have."
    )


def placement_rows(row: Workload | Reservation) -> list[tuple[str, str]]:
    """Return (label, text) for each placement constraint of a request that is set."""
    words = _cpu_and_memory(row.cpu_milli, row.memory_mib)
    capability = (
        f"compute capability {row.min_compute_capability / 10:.1f} or higher"
        if row.min_compute_capability
        else ""
    )
    each = [
        f"at least {gibibytes(row.min_memory_mib)}" if row.min_memory_mib else "",
        capability,
        "in one NVLink group" if row.nvlink else "",
    ]
    preferred = [_labels(row.labels_preferred), "spread over hosts" if row.spread else ""]
    others = [each for each in request_fields(HardwareRequest) if each.name not in DESCRIBED_HARDWARE]
    found = [
        ("CPU and memory", f"{words} on each host" if words and row.hosts > 1 else words),
        ("Each GPU", ", ".join(filter(None, each))),
        ("Only on hosts with", _labels(row.labels_required)),
        ("Preferred", ", ".join(filter(None, preferred))),
        *((each.label, _value_text(each, getattr(row, each.name))) for each in others),
    ]
    return [(label, said) for label, said in found if said]


def _value_text(declared: RequestField, value: Any) -> str:
    """Return the value of a field with its unit; "" if the value is the field's default."""
    if value == declared.default:
        return ""
    text = "yes" if value is True else f"{value:,}" if isinstance(value, int) else str(value)
    return f"{text} {declared.unit}".strip()


def _cpu_and_memory(cpu_milli: int, memory_mib: int) -> str:
    return " and ".join(
        filter(None, [cores(cpu_milli) if cpu_milli else "", gibibytes(memory_mib) if memory_mib else ""])
    )


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


# A record of the audit has no reader's zone; its values contain the start.
EXPIRED_UNDECIDED = "It has expired: nobody decided it before its start."


def expired_submission_sentence(expires_at: datetime) -> str:
    """Return why an expired request for a reservation can't be approved any more."""
    return (
        f"It has expired: nobody decided it before its start, {date_and_time(expires_at)}. "
        "Request another window."
    )


def too_late_to_approve(start: datetime) -> str:
    """Return why a request that needs an approval can't start at once."""
    return (
        f"start is {date_and_time(start)}, too soon for the approval that it needs; allowed: a later start."
    )


def submission_summary(kind: str, payload: Numbers) -> str:
    """Return a short text for a submission: ``a quota of H100 80GB: guaranteed 4 → 8``.

    Lists, notices and the approvals page use it inside their sentences.
    """
    if kind == "quota_change":
        return quota_change_summary(payload)
    if kind == "budget":
        return budget_texts.request_summary(payload)
    if kind not in ("reservation", "series", "window_change"):
        return f"membership as {payload.get('role')}"
    what = _reservation_summary(payload)
    if kind == "series":
        days = weekdays(payload.get("weekdays") or [])
        return f"{what}, {days} until {payload.get('until')} ({payload.get('occurrences')} times)"
    if kind == "window_change":
        old = window(parsed_time(payload.get("start_now")), parsed_time(payload.get("end_now")))
        return f"another window for {payload.get('name')}: {what} instead of {old}"
    return what


def _reservation_summary(payload: Numbers) -> str:
    """Return the hardware and the window of a reservation."""
    models = " or ".join(map(model_name, payload.get("models") or [])) or "any GPU"
    asked = f"{payload['profile']} of {models}" if payload.get("profile") else models
    when = window(parsed_time(payload.get("start")), parsed_time(payload.get("end")))
    size = f"{payload.get('units')} × {asked}"
    if int(payload.get("hosts") or 1) > 1:
        size = f"{payload['hosts']} hosts × {payload.get('units')} {asked}"
    beside = _cpu_and_memory(payload.get("cpu_milli") or 0, payload.get("memory_mib") or 0)
    return f"{size}{f' on hosts with {beside}' if beside else ''}, {when}"


def requested_units_text(workload: Workload | Reservation) -> str:
    """Return a request as text: ``8 × H100 80GB on one host`` or ``1 × 1g.10gb of A100 80GB``."""
    models = " or ".join(model_name(model) for model in workload.models_wanted) or "any GPU"
    unit = models if workload.profile == WHOLE_GPU_PROFILE else f"{workload.profile} of {models}"
    if workload.hosts > 1:
        return f"{workload.hosts} hosts × {workload.units} {unit}"
    return f"{workload.units} × {unit}" + (" on one host" if workload.units > 1 else "")
