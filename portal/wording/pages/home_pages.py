"""Define texts of the start page and of parts that all pages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from portal.wording.formatting import duration, joined_with_and, with_count

PACE = " {forecast} are forecast for the end of the month."
NOTHING_OF_YOURS = "Nothing of yours runs or waits."
OBJECT_NOT_FOUND = "There is no {what} at this address, or you may not see it."
IN_NO_TEAM = "In no team yet"
SIMULATED_READINGS = (
    "{hosts} simulated: their GPU readings follow what the processes declare; the processes are real."
)
SIMULATED_HISTORY = "Everything before {day} {time:%b %Y %H:%M} is simulated history."
LOADING_HISTORY = "Loading it: {progress}."
DURATION_HELP = "Such as 90 s, 15 min or 2 h."
DURATION_INVALID = "{label} is {given!a}; allowed: {allowed}."
HOST_CHANGES_IT = "Its host changes it"
WAITS_FOR_HOST = "Waits for the host"


def array_note(summary: str, held: str, cost: str) -> str:
    """Return the note on the card of a job array.

    ``summary`` counts its tasks by state. ``held`` and ``cost`` are texts; "" if there is none.
    """
    holding = f" They hold {held}{f' and cost {cost} so far' if cost else ''}." if held else ""
    return f"Array of {summary}.{holding} Below: its first task that has not ended."


def decisions_finding(count: int, oldest: timedelta | None) -> str:
    """Return how many requests wait for a decision, and how old the oldest is; "" if none waits."""
    if oldest is None:
        return ""
    verb = "waits" if count == 1 else "wait"
    age = f", the oldest for {duration(oldest)}" if count > 1 else f" for {duration(oldest)}"
    return f"{with_count(count, 'request')} {verb}{age}."


def hosts_finding(troubled: int, hosts: int, totals: Mapping[str, int]) -> str:
    """Return how many hosts need attention, and how many GPUs take no work; "" if no host does."""
    if not troubled:
        return ""
    out = totals["out"]
    gpus = (
        f" {out} of {with_count(totals['gpus'], 'GPU')} {'takes' if out == 1 else 'take'} no work."
        if out
        else ""
    )
    return f"{with_count(troubled, 'host')} of {max(hosts, troubled)}.{gpus}"


def fleet_summary(totals: Mapping[str, int]) -> str:
    """Return the numbers of GPUs by condition. They add up to all GPUs of the fleet."""
    words = {"held": "held", "reserved": "reserved", "free": "free", "out": "out of service"}
    shown = [f"{totals[key]} {word}" for key, word in words.items() if totals[key] or key == "free"]
    return ", ".join(shown)


def pressure_text(*, free: int, on_one_host: int, requested: int, waiting: int) -> str:
    """Return the free GPUs of a model, and the GPUs that waiting workloads request."""
    where = f", at most {on_one_host} on one host" if 0 < on_one_host < free else ""
    asks = (
        f"; {with_count(waiting, 'workload')} {'waits' if waiting == 1 else 'wait'} for {requested}"
        if waiting
        else ""
    )
    return f"{free} free{where}{asks}"


def health_finding(wrong: int, checks: int) -> str:
    """Return how many checks of the installation need attention."""
    if not wrong:
        return f"No check of {checks} needs attention."
    return f"{wrong} of {with_count(checks, 'check')} {'needs' if wrong == 1 else 'need'} attention."


def budgets_finding(over: Sequence[str], near: int, budgets: int) -> str:
    """Return which budgets in money are exceeded, or will be by their forecast."""
    if not budgets:
        return "There is no budget for this month."
    if over:
        more = [f"{len(over) - 2} more"] if len(over) > 3 else []
        names = joined_with_and([*over[: 2 if more else 3], *more])
        count = f"{len(over)} of {with_count(budgets, 'budget')} {'is' if len(over) == 1 else 'are'}"
        return f"{count} exceeded, now or by the forecast: {names}."
    if near:
        return f"No budget of {budgets} is expected to be exceeded; {near} will be used to 90 % or more."
    return f"None of {with_count(budgets, 'budget')} is expected to reach 90 %."
