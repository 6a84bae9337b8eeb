"""Build parts of the sentences in ``reason_texts``. Each part depends on several numbers of a reason."""

from __future__ import annotations

from typing import Any

from portal.wording.formatting import cores, gibibytes, joined_with_and, model_name, with_count
from portal.wording.reason_numbers import ReasonNumbers
from scheduler.reads.closed_hosts import DISK_FULL, GPUS_OUT, NO_PERSON_USERS, WEAK_ISOLATION

MAX_HOSTS_NAMED = 5
# Why a host takes no new work (see scheduler.reads.closed_hosts).
HOST_STATES = {
    "joining": "has not joined yet",
    "suspect": "is one renewal late",
    "silent": "is silent",
    "revoked": "has a revoked credential",
    "quarantined": "is quarantined",
    "diagnosing": "is being diagnosed",
    "out": "is out of service",
    "cordoned": "is cordoned",
    "draining": "is draining",
    "maintenance": "is in maintenance",
    WEAK_ISOLATION: "isolates workloads less than the pool requires",
    NO_PERSON_USERS: "cannot run work as its owner",
    DISK_FULL: "has a full disk",
}

# Verb for the condition of a dependency: how the other workload must end.
DEPENDENCY_CONDITIONS = {"ok": "finish", "any": "end", "not_ok": "end without finishing"}


def requested_gpus(f: ReasonNumbers) -> str:
    """Return the request as text, such as ``4 H100 80GB`` or ``8 GPUs of any model on each of 2 hosts``.

    A request for slices gives ``2 × 1g.10gb of A100 80GB``. If the numbers have no requested models
    (``wanted``), the text names the model in the engine's reason.
    """
    hosts = f.get("hosts") if f.is_plural("hosts") else None
    count, where = f.get("units" if hosts else "need"), f" on each of {hosts} hosts" if hosts else ""
    profile, wanted = f.get("profile"), f.get("wanted")
    models = f.model() if wanted is None else " or ".join(map(model_name, wanted)) or "any model"
    if not isinstance(count, int):
        return f"more {f.model()}"
    if profile:
        return f"{count} × {profile} of {models}{where}"
    return f"{with_count(count, 'GPU')} of {models}{where}" if wanted == [] else f"{count} {models}{where}"


def free_gpus(f: ReasonNumbers) -> str:
    """Return a text such as ``; 3 are free now``.

    If the request accepts several models or any model, the text is ``; 3 that it may use are free now``.
    """
    free, wanted = f.get("free"), f.get("wanted")
    if not isinstance(free, int):
        return ""
    which = "" if wanted is None or len(wanted) == 1 else " that it may use"
    return f"; {free}{which} {'is' if free == 1 else 'are'} free now"


def preempted_for_it(f: ReasonNumbers) -> str:
    """Return a sentence that says which work is being preempted to free GPUs for the workload."""
    number = int(f.get("workloads") or 0)
    work = with_count(number, "workload") if number else "borrowed work"
    verb = "are" if number > 1 else "is"
    if f.get("own") and f.get("own") == number:
        return (
            f"GPUs are being freed for it: {work} of lower priority in its own team, on {f.model()}, "
            f"{verb} being preempted."
        )
    return f"GPUs are being freed for it: {work} that borrowed {f.model()} {verb} being preempted."


def min_runtime_note(f: ReasonNumbers) -> str:
    """Return a sentence about running workloads that are too young to be preempted; "" if there are none.

    It says when they reach the pool's minimum runtime.
    """
    young = f.get("young")
    if not young:
        return ""
    have = f"{with_count(int(young), 'workload')} {'has' if young == 1 else 'have'}"
    return (
        f" GPUs can be freed for it{f.time(' from ', 'told_at')}, when {have} run for the pool's minimum "
        "runtime and may be preempted."
    )


def cpu_and_memory_shortage(f: ReasonNumbers) -> str:
    """Return a sentence about the CPU and memory that must also be free on the host; "" if none is needed."""
    cpu, memory = f.get("cpu_milli"), f.get("memory_mib")
    words = " and ".join(filter(None, [cores(cpu) if cpu else "", gibibytes(memory) if memory else ""]))
    return f" It also needs {words} free on the same host." if words else ""


def exceeds(f: ReasonNumbers, name: str) -> bool:
    """Return True if the request needs more than the limit ``name``. Waiting does not help then."""
    need, most = f.get("need"), f.get(name)
    return isinstance(need, int) and isinstance(most, int) and need > most


def never_within_quota(f: ReasonNumbers) -> str:
    alone = "" if f.get("may_borrow") else " without borrowing, because it is not preemptible"
    return (
        f"Its team may hold at most {f.slots('', 'limit')}{f.of_model_text()}{alone}; this needs "
        f"{f.slots('', 'need')}. It can't start before its team may hold more. "
        "Ask for fewer, or let a team lead request a larger quota."
    )


def window_over_quota(f: ReasonNumbers) -> str:
    """Return the sentence for a reservation that would exceed its team's quota at some time in its window."""
    return (
        f"Its team would have {f.slots('', 'held') or 'none'}{f.of_model_text()} promised or in "
        f"use{f.time(' at ', 'at')}, and may hold {f.slots('', 'limit') or 'none'}; "
        f"this needs {f.slots('', 'need')} more. It needs an operator's approval."
    )


def dependency_condition(f: ReasonNumbers) -> str:
    how = str(f.get("condition"))
    return (
        "end, at least one of them without finishing"
        if how == "not_ok" and f.get("array")
        else DEPENDENCY_CONDITIONS.get(how, "end")
    )


def failed_gpu(f: ReasonNumbers) -> str:
    """Return a text such as ``GPU 3 of h3 failed (XID 79, GPU has fallen off the bus)``."""
    kind, _, number = str(f.get("event")).partition(":")
    said = f"{kind.upper()} {number}" if kind in ("xid", "ecc") and number else str(f.get("event"))
    return (
        f"{f.plain('GPU ', 'gpu') or 'A GPU'} of {f.get('host')} failed "
        f"({said}{f.plain(', ', 'meaning') if f.get('meaning') else ''})"
    )


def reservation_blockers(f: ReasonNumbers) -> str:
    """Return the reasons why a reservation can't keep its units."""
    others, serviced = int(f.get("reservations") or 0), int(f.get("maintenance") or 0)
    words = [
        f"{with_count(others, 'other reservation')} would lose its GPUs" if others else "",
        f"maintenance begins on {serviced} of its GPUs" if serviced else "",
    ]
    return " and ".join(word for word in words if word) or "they are promised to others"


def promised_to(f: ReasonNumbers) -> str:
    """Return who needs the GPUs next, such as ``2 reservations need them and maintenance needs them``.

    The reservations are counted, not named, because they can belong to other teams.
    """
    promised, serviced = int(f.get("reservations") or 0), bool(f.get("maintenance"))
    words = [
        f"{with_count(promised, 'reservation')} {'needs' if promised == 1 else 'need'} them"
        if promised
        else "",
        "maintenance needs them" if serviced else "",
    ]
    return " and ".join(filter(None, words)) or "others need them"


def full_disks(hosts: list[str], full: int) -> str:
    """Return ``h3: its disk is full`` or ``h3, h4 and 2 others: their disks are full``."""
    others = full - len(hosts)
    named = ", ".join(hosts) + (f" and {with_count(others, 'other')}" if others > 0 else "")
    return f"{named}: {'its disk is' if full == 1 else 'their disks are'} full"


def closed_hosts(f: ReasonNumbers) -> str:
    """Return a text such as ``: h3 is cordoned, h7 is silent and 2 other hosts``.

    Decisions of the past have only the number of hosts: ``: 3 hosts``.
    """
    hosts = f.get("closed")
    if not isinstance(hosts, list) or not hosts:
        number = f.get("hosts")
        return f": {with_count(number, 'host')}" if isinstance(number, int) and number else ""
    others = len(hosts) - MAX_HOSTS_NAMED
    words = [_closed_host(row) for row in hosts[:MAX_HOSTS_NAMED]]
    return ": " + joined_with_and(words + ([with_count(others, "other host")] if others > 0 else []))


def _closed_host(row: dict[str, Any]) -> str:
    if row.get("state") == GPUS_OUT:
        return f"{row.get('host')} has {with_count(int(row.get('gpus') or 0), 'GPU')} out of service"
    return f"{row.get('host')} {HOST_STATES.get(str(row.get('state')), 'takes no new work')}"


def closed_gpus(f: ReasonNumbers, state: str) -> str:
    """Return a text about GPUs that accept no work: ``, 2 are out of service``. Return "" without any."""
    return f.plain(", ", "closed", after=f" are {state}") if f.get("closed") else ""


def other_dependencies(f: ReasonNumbers) -> str:
    """Return the number of dependencies that the sentence does not name: ``, and for 2 others``.

    Return "" if there are no others.
    """
    if not f.is_plural("workloads"):
        return ""
    return f", and for {with_count(int(f.get('workloads')) - 1, 'other')}"


def dependency_outcome(f: ReasonNumbers) -> str:
    """Return how the dependency ended, such as ``, it ended as failed``; "" if the outcome is unknown.

    For an array, the text is about one of its tasks.
    """
    if not f.get("outcome"):
        return ""
    return f", {'one' if f.get('array') else 'it'} ended as {str(f.get('outcome')).replace('_', ' ')}"


# Not split: the function is a decision table, in which the first match decides.
def too_big_for_any_host(f: ReasonNumbers) -> str:
    """Return the sentence for a request that no host of the pool can ever fit.

    No host has the requested labels, enough GPUs, or the GPUs with the requested CPU, memory or NVLink.
    """
    units, largest = f.get("units"), f.get("largest")
    if f.get("hosts_with_labels") == 0:
        return "No host of this pool has the labels it asks for. Ask without them, or in another pool."
    if (
        isinstance(units, int)
        and isinstance(largest, int)
        and largest >= units
        and (problem := insufficient_cpu_or_memory(f, units))
    ):
        return problem
    if isinstance(units, int) and isinstance(largest, int) and largest >= units and not f.is_plural("hosts"):
        return (
            f"No host has {with_count(units, 'GPU')} with the CPU, the memory or the NVLink that it asks "
            "for. Ask for less."
        )
    if isinstance(units, int) and isinstance(largest, int) and largest >= units:
        return (
            f"Fewer than {f.plain('', 'hosts')} hosts of this pool have {with_count(units, 'GPU')} "
            "as requested. Ask for fewer hosts, or for other GPUs."
        )
    subject = f"There are not {f.plain('', 'hosts')} hosts" if f.is_plural("hosts") else "No host is"
    asked = with_count(units, "GPU") if isinstance(units, int) else "more GPUs"
    return (
        f"{subject} big enough: it asks for {asked} on one host, the largest has "
        f"{f.plain('', 'largest') or 'fewer'}. Ask for fewer on each host."
    )


def insufficient_cpu_or_memory(f: ReasonNumbers, units: int) -> str:
    """Return the sentence for a request with more CPU or memory than the hosts have; "" if both suffice.

    The sentence names the largest CPU or memory that hosts with these GPUs have.
    """
    words = {"cpu_milli": cores, "memory_mib": gibibytes}
    asked = [
        (name, f.get(name), f.get(f"most_{name}")) for name in words if isinstance(f.get(f"most_{name}"), int)
    ]
    if not asked:
        return ""
    short = [(name, want, most) for name, want, most in asked if want > most]
    wanted = " and ".join(words[name](want) for name, want, _ in short or asked)
    with_gpus = f"in addition to {with_count(units, 'GPU')}"
    subject = (
        f"There are not {f.plain('', 'hosts')} hosts that have" if f.is_plural("hosts") else "No host has"
    )
    if not short and len(asked) < 2:
        return ""
    if not short:
        return f"{subject} both {wanted} {with_gpus}. Ask for less of one of them."
    most = " and ".join(words[name](most) for name, _, most in short)
    hosts = (
        f"the most that {f.plain('', 'hosts')} hosts have is"
        if f.is_plural("hosts")
        else "the most that one has is"
    )
    return f"{subject} {wanted} {with_gpus}: {hosts} {most}. Ask for less."


def requested_properties(f: ReasonNumbers) -> str:
    """Return the requested properties in brackets: `` (at least 40,960 MiB)``. Return "" without any."""
    words = [
        f.model() if f.get("models") else "",
        f.plain("", "profile"),
        f.plain("at least ", "min_memory_mib", after=" MiB") if f.get("min_memory_mib") else "",
        f"compute capability {f.get('min_compute_capability') / 10:.1f}"
        if f.get("min_compute_capability")
        else "",
    ]
    said = ", ".join(word for word in words if word)
    return f" ({said})" if said else ""
