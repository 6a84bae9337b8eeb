"""Define texts about unusual spend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

HIGH_DAY = "{subject} cost {amount} {currency} {days}, usually {usual}"
NOT_TAKEN = "{subject} did not take {percent:.0f} % of its reserved time"
NEW_PRICE = "{subject} from {old} to {new} since {day:%-d %b}: {amount} {currency} of the charges"
NEW_PROJECT = "{subject}, new since {day:%-d %b}: {amount} {currency}"
HELD = "{hours:,.0f} GPU-hours in the project {project}."
RESERVED = "{hours:,.0f} GPU-hours, {amount} {currency}: {windows}, {first:%-d %b} to {last:%-d %b}. {empty}"
NOTHING_RAN = {"all": "Nothing ran in any of them.", "some": "Nothing ran in {empty} of them."}
RULES = (
    "A day above {factor} times the median of its weekday is listed, and reserved time of which more than"
    " {percent:.0f} % was not taken."
)
CURVE = "Charge of each day up to {day:%-d %B}"
EXPLAINED = "The reason is stored."
QUESTION = (
    "Is this charge of {month:%B %Y} right? {evidence} Please give the reason before the month is closed."
)
ASKED = "A notice with your question goes to {names} within a minute."
NONE_FOUND = "Nothing unusual is found."


def title(kind: str, subject: str, amounts: Mapping[str, Any], days: tuple[date, date]) -> str:
    """Return the headline of unusual spend. ``amounts`` has its columns and figures by name."""
    amount = f"{amounts['amount']:,}"
    if kind == "high_day":
        usual = f"{amounts['usual']:,}"
        return HIGH_DAY.format(
            subject=subject, amount=amount, currency=amounts["currency"], days=span(*days), usual=usual
        )
    if kind == "not_taken":
        return NOT_TAKEN.format(subject=subject, percent=amounts["share"] * 100)
    if kind == "new_price":
        signed = f"{amounts['amount']:+,}"
        old, new = (_price(Decimal(amounts[name])) for name in ("old", "new"))
        return NEW_PRICE.format(
            subject=subject, old=old, new=new, day=days[0], amount=signed, currency=amounts["currency"]
        )
    return NEW_PROJECT.format(subject=subject, day=days[0], amount=amount, currency=amounts["currency"])


def _price(price: Decimal) -> str:
    """Return a price with at least two decimals, such as ``2.40`` or ``2.0301``."""
    short = f"{price:.2f}"
    return short if Decimal(short) == price else f"{price.normalize():f}"


def detail(kind: str, amounts: Mapping[str, Any]) -> str:
    """Return the evidence of unusual spend as a sentence; "" for kinds that need no reason."""
    if kind == "high_day":
        return HELD.format(hours=amounts["gpu_hours"], project=amounts["project"])
    if kind != "not_taken":
        return ""
    windows, empty = amounts["windows"], amounts["empty_windows"]
    text = NOTHING_RAN["all"] if empty == windows else NOTHING_RAN["some"].format(empty=empty)
    return RESERVED.format(
        hours=amounts["gpu_hours"],
        amount=f"{amounts['amount']:,}",
        currency=amounts["currency"],
        windows=f"{windows:,} window{'' if windows == 1 else 's'}",
        first=date.fromisoformat(amounts["from"]),
        last=date.fromisoformat(amounts["to"]),
        empty=text if empty else "",
    ).strip()


def span(first: date, last: date) -> str:
    """Return ``on 12 Nov`` or ``from 12 to 14 Nov``."""
    if first == last:
        return f"on {first:%-d %b}"
    return (
        f"from {first:%-d %b} to {last:%-d %b}"
        if first.month != last.month
        else (f"from {first:%-d} to {last:%-d %b}")
    )


def finding(unexplained: int, explained: int, self_explained: int, *, closed: bool) -> tuple[str, str]:
    """Return the finding in two parts: the spend that people must explain, and the rest."""
    if not unexplained + explained + self_explained:
        return NONE_FOUND, ""
    things = "thing" if unexplained == 1 else "things"
    todo = "without a reason" if closed else "to explain before closing"
    verb = "needs no reason" if self_explained == 1 else "need no reason"
    rest = [f"{explained} explained by people"] if explained else []
    rest += [f"{self_explained} {verb}"] if self_explained else []
    first = f"{unexplained} {things} {todo}" if unexplained else "Nothing to explain"
    return (f"{first};", f"{', '.join(rest)}.") if rest else (f"{first}.", "")


def question(title: str, detail: str, month: date) -> str:
    """Return a prepared question about unusual spend, which finance can change before it is sent."""
    evidence = f"{title}. {detail}".strip()
    return QUESTION.format(month=month, evidence=evidence)


def asked(names: Sequence[str]) -> str:
    """Return the sentence after a question is sent to these people."""
    return ASKED.format(names=", ".join(names))
