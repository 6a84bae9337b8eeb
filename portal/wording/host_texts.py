"""Describe actions on hosts and GPUs, the work that remains on a closed host, and why an action is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from portal.wording.formatting import Numbers, date_and_time, gpu_list, parsed_time, window
from portal.wording.reason_numbers import ReasonNumbers


@dataclass(frozen=True)
class HostVerb:
    """An action on a host: its effect, shown before it is taken, and the confirmation with the
    host's name.
    """

    text: str
    done: str


HOST_VERBS = {
    "cordon": HostVerb(
        "Nothing new starts on it. What runs goes on to its end.",
        "{} is cordoned: nothing new starts on it.",
    ),
    "drain": HostVerb(
        "Nothing new starts on it. Preemptible work gets its notice, writes its checkpoint and goes on "
        "elsewhere; the rest runs to its end.",
        "{} is draining: nothing new starts on it.",
    ),
    "return": HostVerb(
        "New work may start on it at once. If it was quarantined, "
        "you attest that nothing of before runs on it.",
        "{} is back in service.",
    ),
    "off": HostVerb(
        "What ran on it counts as lost and starts elsewhere at once, before its lease is over, and its GPUs "
        "may be put into another machine. Say so only of a machine that you have seen off or had "
        "power-cycled: one that is only cut off may still compute, and two would write the same files.",
        "{} counts as powered off. Its work starts elsewhere.",
    ),
    "revoke": HostVerb(
        "Its agent is cut off at once and gets no more orders. What runs there stops when its lease ends, "
        "and starts elsewhere after that. It joins again with a new join token.",
        "{} is cut off: its credential is revoked. It joins again with a new token.",
    ),
    "maintenance": HostVerb(
        "Nothing is planned into the window. Work that can't end before it does not start there. "
        "What still runs there shortly before it begins is stopped, with notice and grace, also work that "
        "can't be preempted.",
        "{} is in maintenance in the window: no work is scheduled in it.",
    ),
}
# Effect of a verb on work on a host -> text.
WORKLOAD_EFFECTS = {
    "runs_on": "runs on",
    "leaves": "leaves",
    "moves": "checkpoints, then starts elsewhere at once",
    "moves_and_waits": "checkpoints, then waits for room",
    "runs_to_end": "runs to its end: it can't be preempted",
    "lease": "stops when its lease ends",
    "lost": "counts as lost, starts elsewhere",
    "before": "ends before the window",
    "moved_before": "is stopped in time for the window, unless it has ended",
}


def workload_effect_text(happens: str, begins_anew: bool = False) -> str:
    """Return the text of one key of WORKLOAD_EFFECTS."""
    anew = (
        " – in another home folder: it does not find the checkpoint and starts from the beginning"
        if begins_anew
        else ""
    )
    return f"{WORKLOAD_EFFECTS[happens]}{anew}"


# Audit verb -> text, for actions that change no state of the host.
HOST_ACTIONS: dict[str, Callable[[ReasonNumbers], str]] = {
    "add_host": lambda f: "Made known",
    "remove_host": lambda f: "Removed",
    "move_host": lambda f: "Moved to another pool",
    "new_join_token": lambda f: "A join token was made; those not used before stopped working",
    "revoke_host": lambda f: "Its agent's credential was revoked",
    "attest_host_off": lambda f: "It counts as powered off",
    "set_maintenance": lambda f: (
        f"Maintenance announced: {window(parsed_time(f.get('start')), parsed_time(f.get('end')))}"
    ),
    "cancel_maintenance": lambda f: (
        f"Maintenance taken back: {window(parsed_time(f.get('start')), parsed_time(f.get('end')))}"
    ),
    "diagnose_gpu": lambda f: f"GPU {f.plain('', 'gpu')} is to be diagnosed",
    "diagnose_host": lambda f: f"To be diagnosed: {gpu_list(f.get('gpus') or [])}",
    "forget_gpu": lambda f: f"GPU {f.plain('', 'gpu')} ({f.plain('', 'uuid')}) is gone for good",
    "change_geometry": lambda f: f"GPU {f.plain('', 'gpu')} is to become {f.plain('', 'geometry')}",
    "withdraw_geometry": lambda f: (
        f"GPU {f.plain('', 'gpu')} stays as it is: {f.plain('', 'geometry')} was taken back"
    ),
}


def host_action_text(verb: str, numbers: Numbers) -> str:
    """Return what a person did to a host, without name and reason."""
    words = HOST_ACTIONS.get(verb)
    return words(ReasonNumbers(numbers, None)) if words else verb.replace("_", " ").capitalize()


def maintenance_windows_text(host: str, windows: Sequence[tuple[str, datetime, datetime]]) -> str:
    """Return the maintenance windows of a host: number, start and end of each."""
    listed = ", ".join(f"{number} ({window(start, end)})" for number, start, end in windows)
    return f"announced for {host}: {listed}." if listed else f"{host} has no maintenance window announced."


def remaining_work_sentence(
    leaving: Sequence[tuple[str, datetime]], staying: Sequence[tuple[str, datetime]]
) -> str:
    """Return the work that remains on a closed host.

    ``leaving`` is work that was asked to stop, ``staying`` work that runs to its end: (name, latest end),
    soonest first.
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
    """Return names joined by commas; beyond ``most`` names, the number of the rest."""
    names = [name for name, _ in rows[:most]]
    if len(rows) > most:
        return f"{', '.join(names)} and {len(rows) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
