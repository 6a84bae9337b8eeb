"""Prepare the waterfall as a table: bars, hours, money, the change, and who can change each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import reverse

from portal import policy
from portal.reads.utilisation.query import rankings_of
from portal.reads.utilisation.who_can_change import who_can_change
from portal.web.components.quantities import amount, grouped, percent
from portal.web.money.utilisation.query import UtilisationQuery
from portal.web.money.utilisation.table_images import STEP_COLOURS, waterfall_image
from portal.wording.pages.money import money_pages, utilisation_texts
from portal.wording.utilisation import findings
from telemetry.reads.utilisation.waste import WASTE_STEPS

# A higher share of these steps is worse; of "productive" it is better. Of the others, nobody can say.
WORSE_IF_MORE = {"unhealthy", "lost", "unmeasured", *WASTE_STEPS}


def waterfall_table(query: UtilisationQuery) -> dict[str, Any]:
    """Return the context of ``manage/utilisation_waterfall.html``."""
    fall, before = query.waterfall, query.waterfall_before
    with_cost = policy.sees_owner_cost(query.viewer)
    shares_before = {step.key: step.share for step in before.steps} if before else None
    who = _who(query)
    rows, left = [], 1.0
    for step in fall.steps:
        left -= step.share
        label, definition = money_pages.WATERFALL_STEPS[step.key]
        rows.append(
            {
                "key": step.key,
                "label": label,
                "definition": definition,
                "colour": STEP_COLOURS[step.key].bar,
                "x": f"{max(0.0, left) * 100 if step.key != 'productive' else 0:.2f}",
                "width": f"{step.share * 100:.2f}",
                "hours": grouped(step.gpu_hours, 1),
                "url": query.address(step=step.key, waste=rankings_of(query.filters)[-1]) + "#league"
                if step.key in WASTE_STEPS and step.gpu_hours
                else "",
                "share": percent(step.share, 1),
                "cost": amount(step.cost, query.currency) if with_cost else "",
                "delta": delta(step.key, step.share, shares_before),
                "who": who[step.key][0],
                "who_text": who[step.key][1],
            }
        )
    return {
        "title": money_pages.GPU_HOURS_TITLE,
        "finding": findings.waterfall_finding(fall, before),
        "rows": rows,
        "hours": grouped(fall.gpu_hours, 1),
        "cost": amount(fall.cost, query.currency) if with_cost else "",
        "currency": query.currency if with_cost else "",
        "is_money": query.unit == "money",
        "compares": before is not None,
        "footer": utilisation_texts.WATERFALL_FOOTER.format(coverage=percent(fall.coverage, 1)),
        "csv": query.csv_address("waterfall"),
        "image": waterfall_image(fall),
    }


def delta(key: str, share: float, before: dict[str, float] | None) -> dict[str, str] | None:
    """Return the change of the share of a step; None if the share before is unknown."""
    if before is None:
        return None
    better = "more" if key == "productive" else "less" if key in WORSE_IF_MORE else ""
    return points_delta(share, before.get(key, 0.0), better)


def points_delta(share: float, before: float, better: str) -> dict[str, str]:
    """Return the change of a share in points. ``better`` is "more" or "less", or "" if nobody can say."""
    return change_delta((share - before) * 100, better, lambda points: f"{points:.1f} pts", 0.05)


def change_delta(change: float, better: str, text: Callable[[float], str], smallest: float) -> dict[str, str]:
    """Return a change with its direction, whether it is good, and the text of its size."""
    if abs(change) < smallest:
        return {"direction": "same", "tone": "", "text": text(0.0)}
    direction = "up" if change > 0 else "down"
    tone = "" if not better else "good" if (change > 0) == (better == "more") else "worse"
    return {"direction": direction, "tone": tone, "text": text(abs(change))}


def _who(query: UtilisationQuery) -> dict[str, tuple[list[dict[str, str]], str]]:
    """Return by step the links to the hosts or the people who can change it, and the text without names."""
    found = {}
    for key, each in who_can_change(query).items():
        hosts = [{"text": host, "url": reverse("host", args=[host])} for host in each.hosts]
        people = [
            {"text": person, "url": query.address(person=person, step=key) + "#league"}
            for person in each.people
        ]
        found[key] = (hosts + people, "" if each.names else each.text)
    return found
