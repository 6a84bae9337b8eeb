"""Make the sentences above the panels of operators and of finance on the home page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from portal.wording.formatting import duration, joined_with_and, with_count


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
