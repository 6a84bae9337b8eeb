"""Describe actions on hosts and GPUs, their effect on workloads, and the work left on a closed host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from portal.wording.formatting import Numbers, date_and_time, gpu_list, parsed_time, window
from portal.wording.reason_numbers import ReasonNumbers


@dataclass(frozen=True)
class HostVerb:
    """The texts of an action on a host.

    ``text`` states the effect and is shown before the action. ``done`` confirms the action; its ``{}`` is the
    host's name.
    """

    text: str
    done: str


HOST_VERBS = {
    "cordon": HostVerb(
        "Nothing new starts on it. Running work continues to its end.",
        "{} is cordoned: nothing new starts on it.",
    ),
    "drain": HostVerb(
        "Nothing new starts on it. Preemptible work gets a notice, writes its checkpoint and resumes "
        "elsewhere; other work runs to its end.",
        "{} is draining: nothing new starts on it.",
    ),
    "return": HostVerb(
        "New work may start on it at once. If it was quarantined, "
        "you confirm that no earlier work still runs on it.",
        "{} is back in service.",
    ),
    "off": HostVerb(
        "Its work counts as lost and restarts elsewhere at once, before its lease expires. Its GPUs may be "
        "put into another machine. Confirm this only if you saw the machine off or had it power-cycled: a "
        "machine without network may still compute, and then two runs would write the same files.",
        "{} counts as powered off. Its work starts elsewhere.",
    ),
    "revoke": HostVerb(
        "Its agent is disconnected at once and gets no more orders. Its work stops when its lease expires "
        "and then starts elsewhere. The host can join again with a new join token.",
        "The credential of {} is revoked. The host can join again with a new join token.",
    ),
    "maintenance": HostVerb(
        "No work is planned into the window. Work that can't end before the window does not start there. "
        "Work that still runs shortly before the window is stopped with notice and grace, even if it can't "
        "be preempted.",
        "The maintenance of {} is announced: no work is scheduled into the window.",
    ),
}
# Effects that an action on a host has on its workloads, each with its text.
WORKLOAD_EFFECTS = {
    "runs_on": "runs on",
    "leaves": "leaves",
    "moves": "checkpoints, then starts elsewhere at once",
    "moves_and_waits": "checkpoints, then waits for free GPUs",
    "runs_to_end": "runs to its end: it can't be preempted",
    "lease": "stops when its lease ends",
    "lost": "counts as lost, starts elsewhere",
    "before": "ends before the window",
    "moved_before": "is stopped before the window, unless it has ended",
}


def workload_effect_text(happens: str, begins_anew: bool = False) -> str:
    """Return the text of ``happens``, a key of WORKLOAD_EFFECTS.

    ``begins_anew`` adds that the workload starts from the beginning, because its checkpoint is unreachable.
    """
    anew = (
        " – in another home folder: it does not find the checkpoint and starts from the beginning"
        if begins_anew
        else ""
    )
    return f"{WORKLOAD_EFFECTS[happens]}{anew}"


# Verbs of audit records, each with its text, for actions that change no state of the host.
HOST_ACTIONS: dict[str, Callable[[ReasonNumbers], str]] = {
    "add_host": lambda f: "Added",
    "remove_host": lambda f: "Removed",
    "move_host": lambda f: "Moved to another pool",
    "new_join_token": lambda f: "A join token was created; unused earlier tokens no longer work",
    "revoke_host": lambda f: "Its agent's credential was revoked",
    "attest_host_off": lambda f: "It counts as powered off",
    "set_maintenance": lambda f: (
        f"Maintenance announced: {window(parsed_time(f.get('start')), parsed_time(f.get('end')))}"
    ),
    "cancel_maintenance": lambda f: (
        f"Maintenance cancelled: {window(parsed_time(f.get('start')), parsed_time(f.get('end')))}"
    ),
    "diagnose_gpu": lambda f: f"GPU {f.plain('', 'gpu')} is to be diagnosed",
    "diagnose_host": lambda f: f"To be diagnosed: {gpu_list(f.get('gpus') or [])}",
    "forget_gpu": lambda f: f"GPU {f.plain('', 'gpu')} ({f.plain('', 'uuid')}) is gone for good",
    "change_geometry": lambda f: f"GPU {f.plain('', 'gpu')} is to become {f.plain('', 'geometry')}",
    "withdraw_geometry": lambda f: (
        f"GPU {f.plain('', 'gpu')} stays as it is: the change to {f.plain('', 'geometry')} was withdrawn"
    ),
}


def host_action_text(verb: str, numbers: Numbers) -> str:
    """Return the text of a person's action on a host, without the person's name and reason."""
    words = HOST_ACTIONS.get(verb)
    return words(ReasonNumbers(numbers, None)) if words else verb.replace("_", " ").capitalize()


def maintenance_windows_text(host: str, windows: Sequence[tuple[str, datetime, datetime]]) -> str:
    """Return the end of the message about an unknown maintenance window.

    It lists the host's announced windows with their numbers.
    """
    listed = ", ".join(f"{number} ({window(start, end)})" for number, start, end in windows)
    return f"announced for {host}: {listed}." if listed else f"{host} has no maintenance window announced."


def remaining_work_sentence(
    leaving: Sequence[tuple[str, datetime]], staying: Sequence[tuple[str, datetime]]
) -> str:
    """Return sentences about the work that remains on a closed host.

    ``leaving`` are workloads that were asked to stop. ``staying`` are workloads that run to their end. Both
    lists contain (name, latest end), sorted by latest end.
    """
    if not leaving and not staying:
        return "Nothing runs on it any more."
    said = []
    if leaving:
        said.append(f"Still leaving: {_named(leaving)}, by {date_and_time(leaving[-1][1])} at the latest.")
    if staying:
        verb = "runs to its end" if len(staying) == 1 else "run to their ends"
        said.append(f"{_named(staying)} {verb}, by {date_and_time(staying[-1][1])} at the latest.")
    return " ".join(said)


def _named(rows: Sequence[tuple[str, datetime]], most: int = 4) -> str:
    """Return at most ``most`` names as a list in words, and the number of the others: ``a, b and 3 more``."""
    names = [name for name, _ in rows[:most]]
    if len(rows) > most:
        return f"{', '.join(names)} and {len(rows) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
