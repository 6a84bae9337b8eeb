"""Build sentences for codes of ``scheduler.core.reasons``: why work waits, starts, is evicted or ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from portal import policy
from portal.wording import reason_parts
from portal.wording.formatting import Numbers, duration, gpus, with_count
from portal.wording.reason_numbers import ReasonNumbers, SentenceBuilder
from scheduler.models import Reservation, Workload
from scheduler.reads.closed_hosts import closed_hosts
from scheduler.state.states import WorkloadState

CONDITIONS = {"ok": "finished", "any": "ended", "not_ok": "ended without finishing"}
BUDGET_PERIODS = {"quarter": "quarterly ", "year": "yearly "}

REASONS: dict[str, SentenceBuilder] = {
    # why work starts
    "free_within_guarantee": lambda f: "It starts on free GPUs within its team's guarantee.",
    "free_borrowed": lambda f: (
        f"It starts on free GPUs{f.slots(' and borrows ', 'borrowed')} beyond its team's guarantee. "
        "It may be preempted for a team that is guaranteed them."
    ),
    "inside_reservation": lambda f: "It starts inside its reservation.",
    "reclaimed_guarantee": lambda f: (
        "It starts on GPUs that its team is guaranteed and had lent; the borrower was preempted."
    ),
    "outranked_within_team": lambda f: "It starts on the GPUs of lower-priority work of its own team.",
    "own_static_pool": lambda f: "It starts in its team's own pool.",
    # why work is evicted
    "evicted_for_guarantee": lambda f: (
        f"Its GPUs were borrowed. They are guaranteed to {f.team('another team')}, which needs them for "
        f"{f.workload('its work')}. It is queued again with its place kept, and resumes from its checkpoint."
    ),
    "evicted_for_priority": lambda f: (
        f"{f.workload('Work')} of its own team has a higher priority and needs its GPUs. "
        "It is queued again with its place kept, and resumes from its checkpoint."
    ),
    "evicted_for_reservation": lambda f: (
        f"Its GPUs are reserved{f.time(' from ', 'start')}. It is queued again with its place kept, "
        "and resumes from its checkpoint."
    ),
    # why work waits: it never starts unless the request or the pool changes
    "no_such_hardware": lambda f: (
        f"This pool has no GPU that matches its request{reason_parts.requested_properties(f)}. "
        "Ask for another model, less memory or whole GPUs."
    ),
    "too_big_for_any_host": lambda f: reason_parts.too_big_for_any_host(f),
    "not_your_pool": lambda f: "This pool belongs to another team. Choose a shared pool.",
    "no_quota": lambda f: f"Its team has no quota for {f.model()} in this pool. A team lead can ask for one.",
    "over_workload_cap": lambda f: (
        f"It asks for {f.slots('', 'need') or 'more'}; one workload may have "
        f"{f.slots('at most ', 'cap') or 'fewer'} in this pool. Ask for fewer."
    ),
    "over_runtime_cap": lambda f: (
        f"It asks to run {duration(f.get('asked'))}; this pool allows {duration(f.get('longest'))} at most. "
        "Launch it again with less."
    ),
    # why work waits until a limit, a state or a time changes
    "over_quota": lambda f: (
        reason_parts.window_over_quota(f)
        if f.get("at")
        else reason_parts.never_within_quota(f)
        if reason_parts.exceeds(f, "limit")
        else f"Its team holds {f.slots('', 'held') or 'all it may'}{f.of_model_text()}"
        f"{f.slots(' and may hold ', 'limit') or f.slots(' and is guaranteed ', 'guaranteed')}; "
        f"this needs {f.slots('', 'need') or 'more'}. "
        + (
            "It starts when work of its team ends."
            if f.get("may_borrow")
            else "It is not preemptible, so it may not borrow: it starts when work of its team ends."
        )
    ),
    "over_user_cap": lambda f: (
        f"One person may hold {f.slots('at most ', 'cap')} in this pool; this needs {f.slots('', 'need')} "
        f"in addition to {f.slots('', 'held') or 'nothing'} reserved{f.time(' at ', 'at')}. "
        "Ask for fewer; more needs an operator's approval."
        if f.get("at")
        else f"One person may hold {f.slots('at most ', 'cap')} in this pool, and this needs "
        f"{f.slots('', 'need')}. Ask for fewer."
        if reason_parts.exceeds(f, "cap")
        else f"Its owner holds {f.slots('', 'held') or 'as much as one person may'}"
        f"{f.slots(' of at most ', 'cap')}; this needs {f.slots('', 'need') or 'more'}."
    ),
    "gpu_hours_used_up": lambda f: (
        f"Its team has used up the {f.plain('', 'gpu_hours', after=' ') or ''}GPU-hours of {f.model()} of "
        f"its guarantee{f.time('; the next period begins at ', 'until')}. "
        + (
            "Until then no new work of the team starts on these GPUs."
            if f.get("may_borrow")
            else "It may not borrow, so it waits until then."
        )
    ),
    "budget_closed": lambda f: (
        f"The {BUDGET_PERIODS.get(str(f.get('period')), '')}budget"
        f"{f.plain(' of cost centre ', 'cost_centre')}"
        f"{' of GPU-hours' if f.get('measure') == 'gpu_hours' else ''} is used "
        f"up{f.plain(': ', 'spent')}{f.plain(' of ', 'limit')}{f.plain(' ', 'currency')}."
        " Finance can raise it."
    ),
    "dependency": lambda f: (
        f"It waits for {f.dependency_name()} to {reason_parts.dependency_condition(f)}"
        f"{reason_parts.other_dependencies(f)}."
    ),
    "array_limit": lambda f: (
        f"Its array allows {f.plain('', 'most_at_once') or 'only some'} of its tasks in the queue or running "
        "at once, and this limit is reached."
    ),
    "backing_off": lambda f: f"Its last attempt failed; it tries again{f.time(' at ', 'until')}.",
    "reservation_not_started": lambda f: (
        f"Its reservation has not begun yet{f.time('; it begins at ', 'start')}."
    ),
    "reservation_over": lambda f: "Its reservation is over. Launch it again without one.",
    "reservation_not_yours": lambda f: (
        "Its reservation belongs to another project. Launch it again in its own project, or without one."
    ),
    "host_closed": lambda f: f"The hosts that could run it take no new work{reason_parts.closed_hosts(f)}.",
    "isolation_too_weak": lambda f: (
        "The host isolates workloads less than its pool requires, so nothing new starts on it."
    ),
    "person_users_missing": lambda f: (
        "The work of its pool runs as the Unix user of its owner, which the host cannot do, so nothing new "
        "starts on it."
    ),
    # why work waits: it starts when units become free
    "waits_for_units": lambda f: (
        f"Its reservation has {f.plain('', 'of')} such GPUs, and this needs {f.plain('', 'need')}. "
        "Ask for fewer, or launch it without the reservation."
        if f.get("reservation") and reason_parts.exceeds(f, "of")
        else f"It waits for its reservation's GPUs: it needs {f.plain('', 'need')}, {f.plain('', 'free')} of "
        f"{f.plain('', 'of')} are free."
        if f.get("reservation")
        else f"It needs {reason_parts.requested_gpus(f)}{reason_parts.free_gpus(f)}."
        f"{reason_parts.cpu_and_memory_shortage(f)}{reason_parts.min_runtime_note(f)}"
    ),
    "waits_for_eviction": lambda f: reason_parts.preempted_for_it(f),
    "held_for_reservation": lambda f: (
        f"Its team's own reservation takes {f.slots('', 'slots') or 'a part'} of the "
        f"{f.slots('', 'guaranteed') or 'GPUs'}{f.of_model_text()} that the team is guaranteed"
        f"{f.time(' from ', 'start')}{f.time(' to ', 'end')}, and this would not end by then. "
        "Launch it for less time, inside the reservation, or as a preemptible job."
        if f.get("own")
        else f"{f.plain('', 'free') or 'Some'} GPUs are free, but promised to a "
        f"reservation{f.time(' from ', 'start')}; this work would not end by then."
    ),
    "held_for_maintenance": lambda f: (
        f"The GPUs that could serve it go into maintenance{f.time(' at ', 'start')}"
        f"{f.time(' until ', 'end')}."
    ),
    "behind_others": lambda f: (
        f"{f.plain('', 'free') or 'Some'} GPUs are free, but kept for "
        f"{with_count(int(f.get('ahead') or 0), 'workload') if f.get('ahead') else 'work'} ahead of it."
    ),
    "behind_own_team": lambda f: (
        (
            "The rest of its owner's limit is kept for the owner's work ahead of it"
            if f.get("of") == "person"
            else f"The rest of its team's limit{' on ' + f.model() if f.get('model') else ''} is "
            "kept for the team's work ahead of it"
        )
        + f"{f.time(', expected to start at ', 'start')}; this work would not end by then."
    ),
    "spare_capacity_kept": lambda f: (
        f"The free capacity{f.slots(' (', 'free')}{')' if f.get('free') else ''} is kept for critical work."
    ),
    # why work is not queued
    "too_many_waiting": lambda f: (
        f"{'Its team' if f.get('of') == 'team' else 'Its owner'} has {f.plain('', 'waiting') or 'many'} "
        f"notebooks and jobs waiting in this pool; {f.plain('', 'more') or 'any'} more would exceed the "
        f"limit {f.plain('of ', 'limit', after=' ')}for one {'team' if f.get('of') == 'team' else 'person'}. "
        "Submit it when some have started or are cancelled."
    ),
    # why a reservation does not fit
    "window_full": lambda f: (
        f"That window is full: it needs {f.plain('', 'need') or 'more'}; {f.plain('', 'free') or 'fewer'} of "
        f"{f.plain('', 'total') or 'all'} are free for the whole window."
    ),
    "reserved_units_missing": lambda f: (
        f"It has begun and has no GPUs yet: it needs {f.plain('', 'need') or 'more'}"
        f"{f.plain(' on ', 'hosts', after=' hosts') if f.is_plural('hosts') else ''}; "
        f"{f.plain('', 'free') or 'fewer'} of {f.plain('', 'total') or 'all'} such GPUs could serve it until "
        f"its end{reason_parts.closed_gpus(f, 'out of service')}. The engine keeps trying."
    ),
    "reservation_at_risk": lambda f: (
        f"Its GPUs are missing{f.time(' from ', 'start')} on: it needs {f.plain('', 'need') or 'more'}"
        f"{f.plain(' on ', 'hosts', after=' hosts') if f.is_plural('hosts') else ''}; "
        f"{f.plain('', 'free') or 'fewer'} of {f.plain('', 'total') or 'all'} such GPUs could serve it until "
        f"its end{reason_parts.closed_gpus(f, 'out of service or in maintenance')}. "
        "It is kept if other GPUs become free. Otherwise change or cancel it, or ask an operator."
    ),
    "reserved_units_in_use": lambda f: (
        f"It has begun; {f.plain('', 'units') or 'some'} of its{f.plain(' ', 'need')} GPUs are still in use "
        f"by {with_count(int(f.get('workloads') or 0), 'workload') if f.get('workloads') else 'others'}. "
        "It gets them as soon as they are free."
    ),
    "window_eats_guarantees": lambda f: (
        f"That window would use {f.model()} that other teams are guaranteed: {f.slots('', 'need') or 'more'} "
        f"requested, {f.slots('', 'left') or 'fewer'} left for this team. It needs an operator's approval."
    ),
    "extension_blocked": lambda f: (
        f"It can't keep its GPUs{f.time(' beyond ', 'end')}: {reason_parts.reservation_blockers(f)}. "
        "Make a second reservation for the time after it."
    ),
    "more_time_blocked": lambda f: (
        f"It holds its GPUs until its limit, and {reason_parts.promised_to(f)}"
        f"{f.time(' from ', 'start')} on. "
        + (
            f"It can be extended{f.time(' until ', 'latest')} at most."
            if f.get("latest") != f.get("limit")
            else "It can't be extended at all; start it again later, or as a preemptible job."
        )
    ),
    # how work ended
    "finished": lambda f: "It finished.",
    "failed": lambda f: f"It failed{f.plain(' with exit code ', 'exit_code')}.",
    "checkpointed": lambda f: "It wrote its checkpoint and stopped when asked.",
    "killed_at_grace": lambda f: "It did not stop when asked and was killed at the end of its grace period.",
    "out_of_memory": lambda f: "It used more memory than it is allowed and was stopped.",
    "disk_ran_low": lambda f: (
        "The disk of its host ran low, and its temporary files had recently taken the most space, "
        "so it was stopped. This uses none of its retries."
    ),
    "out_of_disk": lambda f: "Its temporary files exceeded the limit of its host, so it was stopped.",
    "gpu_error": lambda f: (
        f"{reason_parts.failed_gpu(f)}, and it ran on that GPU."
        if f.get("host") and f.get("event")
        else f"One of its GPUs failed{f.plain(' (', 'xid', 'event', 'words', after=')')}."
    ),
    "host_lost": lambda f: "Its host fell silent.",
    "lease_lost": lambda f: "Its host lost the connection to the portal and stopped it.",
    "cancelled": lambda f: (
        f"{f.plain('', 'by')} cancelled it"
        f"{f.plain(': ', 'why') if f.get('why') else ''}"
        f"{'' if str(f.get('why') or '').endswith(('.', '!', '?')) else '.'}"
        if f.get("by")
        else "It was cancelled."
    ),
    "time_limit": lambda f: "It reached its longest runtime.",
    "idle": lambda f: "It was idle too long: nothing used its GPUs.",
    "start_failed": lambda f: "Its host could not start it.",
    "gpu_unreadable": lambda f: (
        "The driver of its host did not report if its GPU is clean. "
        "It is tried again, and none of its retries is used."
    ),
    "prolog_failed": lambda f: (
        "The operator's prolog on its host failed. It is tried again, and none of its retries is used."
    ),
    "host_full": lambda f: (
        f"{reason_parts.full_disks(f.get('hosts'), f.get('full'))}. The hosts that could run it start no "
        "new work until there is space."
        if isinstance(f.get("hosts"), list) and isinstance(f.get("full"), int)
        else "The disk of its host is full. It is tried again, and none of its retries is used."
    ),
    "drained": lambda f: (
        f"{reason_parts.failed_gpu(f)}. By its health rule, the host takes no new work, and work "
        "that can move leaves it."
        if f.get("host") and f.get("event")
        else f"Its host{f.plain(' ', 'host')} is taken out of service{f.plain(': ', 'words')}."
    ),
    "dependency_never_met": lambda f: (
        f"It was to run once {f.dependency_name()} had "
        f"{CONDITIONS.get(str(f.get('condition')), 'ended as required')}; that can't happen any more"
        f"{reason_parts.dependency_outcome(f)}."
    ),
}


def reason_sentence(code: str, numbers: Numbers | None = None, viewer: policy.Viewer | None = None) -> str:
    """Return the sentence for a reason code and its numbers; "" for an empty code."""
    if not code:
        return ""
    sentence = REASONS.get(code)
    said = (
        sentence(ReasonNumbers(numbers or {}, viewer))
        if sentence
        else f"{code.replace('_', ' ').capitalize()}."
    )
    hosts = (numbers or {}).get("failed_on_hosts")
    return f"{said} It failed on {hosts} hosts, so it is not tried again." if isinstance(hosts, int) else said


def reservation_problem(reservation: Reservation, viewer: policy.Viewer | None = None) -> str:
    """Return the sentence about a reservation's problem; "" if there is none.

    The problem is that the reservation has no units, or that it may not get its units.
    """
    if reservation.reason_code:
        return reason_sentence(reservation.reason_code, reservation.reason_numbers, viewer)
    if reservation.at_risk_since is not None:
        return reason_sentence("reservation_at_risk", reservation.at_risk_numbers, viewer)
    return ""


def problem_of_its_reservation(workload: Workload, viewer: policy.Viewer | None = None) -> str:
    """Return the sentence about a problem of the reservation in which a workload waits.

    Return "" if there is no problem, or if the workload does not wait in a reservation.
    """
    if workload.state != WorkloadState.QUEUED or workload.reservation is None:
        return ""
    problem = reservation_problem(workload.reservation, viewer)
    return f"About the reservation {workload.reservation.name}: {problem}" if problem else ""


def waiting_sentence(workload: Workload, viewer: policy.Viewer | None = None) -> str:
    """Return a sentence that says why a workload waits; "" before the engine has planned it."""
    return reason_sentence(workload.reason_code, waiting_numbers(workload), viewer)


def waiting_numbers(
    workload: Workload, known_hosts: dict[tuple[Any, ...], list[dict[str, Any]]] | None = None
) -> dict[str, Any]:
    """Return the values in the sentence that says why a workload waits.

    They come from the engine's reason and from the request. If the workload waits for a dependency, the
    dependency's condition is added, which takes one query. If no suitable host takes new work, the hosts and
    their states are added, which takes one query; ``known_hosts`` keeps them for other rows of a list.
    """
    numbers = {**workload.reason_numbers, **requested_hardware(workload.reason_code, workload)}
    if workload.reason_code == "host_closed":
        numbers["closed"] = closed_hosts_for(workload, workload.pool_id, known_hosts)
    if workload.reason_code == "dependency":
        on = {"on_array" if "array" in numbers else "on": numbers.get("array", numbers.get("workload"))}
        numbers["condition"] = workload.dependencies.filter(**on).values_list("condition", flat=True).first()
    return numbers


def closed_hosts_for(
    ask: RequestedHardware,
    pool: int,
    known_hosts: dict[tuple[Any, ...], list[dict[str, Any]]] | None = None,
) -> list[dict[str, Any]]:
    """Return the hosts of the pool that could run a request and take no new work, with their states."""
    known = {} if known_hosts is None else known_hosts
    key = (pool, tuple(ask.models_wanted), tuple(sorted(ask.labels_required.items())))
    if key not in known:
        known[key] = closed_hosts(pool, ask.models_wanted, ask.labels_required)
    return known[key]


class RequestedHardware(Protocol):
    """The fields of a request that appear in sentences."""

    @property
    def models_wanted(self) -> Sequence[str]: ...
    @property
    def profile(self) -> str: ...
    @property
    def cpu_milli(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def labels_required(self) -> Mapping[str, str]: ...


def requested_hardware(code: str, ask: RequestedHardware) -> dict[str, Any]:
    """Return the request's models, profile, CPU and memory for the code ``waits_for_units``.

    Return {} for other codes, because their sentences do not name the request.
    """
    if code != "waits_for_units":
        return {}
    sizes = {name: getattr(ask, name) for name in ("cpu_milli", "memory_mib") if getattr(ask, name)}
    return {"wanted": list(ask.models_wanted), "profile": ask.profile, **sizes}


def never_starts_sentence(code: str, numbers: Numbers, viewer: policy.Viewer | None = None) -> str:
    """Return the sentence for a workload that could never start, even if all other work ended."""
    if code != "spare_capacity_kept":
        return reason_sentence(code, numbers, viewer)
    free, spare = numbers.get("free") or 0, numbers.get("spare") or 0
    return (
        f"{gpus(spare)} of this pool are kept for critical work, which leaves {gpus(free - spare)} for the "
        f"rest; this needs {gpus(numbers.get('need'))}. Ask for fewer."
    )


def decision_sentence(kind: str, code: str, numbers: Numbers, viewer: policy.Viewer | None = None) -> str:
    """Return the sentence of the engine's decision: its reason.

    If a gang ended or restarts, the sentence begins with the member that ended first.
    """
    if kind not in ("restarted", "ended"):
        return reason_sentence(code, numbers, viewer)
    return (
        f"Its part {numbers.get('rank')} on {numbers.get('host')} was the first to end. "
        f"{reason_sentence(code, numbers, viewer)}"
    )
