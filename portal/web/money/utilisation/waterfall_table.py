"""Prepare the waterfall as a table: bars, hours, money, the change, and who can change each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from django.urls import reverse

from portal import policy
from portal.models import User
from portal.reads.fleet import utilisation as reads
from portal.reads.utilisation.query import rankings_of
from portal.web.components.quantities import amount, grouped, percent
from portal.web.money.utilisation.query import UtilisationQuery
from portal.web.money.utilisation.table_images import STEP_COLOURS, waterfall_image
from portal.wording.pages.money import money_pages, utilisation_texts
from portal.wording.utilisation import findings
from telemetry.reads.utilisation.waste import WASTE_STEPS
from telemetry.reads.waterfall import WorkPart

# A higher share of these steps is worse; of "productive" it is better. Of the others, nobody can say.
WORSE_IF_MORE = {"unhealthy", "lost", "unmeasured", *WASTE_STEPS}
MAX_NAMES = 2


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
                "who": who.get(step.key, []),
                "who_text": "" if who.get(step.key) else _who_text(step.key, fall.parts),
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


def _who(query: UtilisationQuery) -> dict[str, list[dict[str, str]]]:
    """Return links to the hosts or the people with most time in each step, as far as the viewer sees them."""
    out_of_service = any(part.key in reads.OUT_OF_SERVICE for part in query.waterfall.parts)
    hosts_of = reads.hosts_out_of_service(query.viewer, query.filters) if out_of_service else {}
    found: dict[str, list[dict[str, str]]] = {
        bucket: [{"text": host, "url": reverse("host", args=[host])} for host in hosts[:MAX_NAMES]]
        for bucket, hosts in hosts_of.items()
    }
    named = policy.teams_whose_waste_is_named(query.viewer)
    firsts = _people_with_most_waste(query)
    wanted = {user for first in firsts.values() for user in first}
    people = {work.user: name.person for work, name in query.listed_names.items() if work.user in wanted}
    # Viewers who see all names have read most of these already.
    if named is not None or not wanted <= set(people):
        people = _people(query.viewer, wanted, named)
    for key, first in firsts.items():
        found[key] = [
            {"text": people[user], "url": query.address(person=people[user], step=key) + "#league"}
            for user in first
            if user in people
        ]
    return found


def _people_with_most_waste(query: UtilisationQuery) -> dict[str, list[int]]:
    """Return by step the ids of the people with most wasted time in it, most first."""
    hours: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for part in query.waterfall.parts:
        if part.key in WASTE_STEPS and part.work.user:
            hours[part.key][part.work.user] += part.slot_seconds
    return {
        key: sorted(users, key=lambda user: (-users[user], user))[:MAX_NAMES] for key, users in hours.items()
    }


def _people(viewer: User, users: set[int], named_teams: list[int] | None) -> dict[int, str]:
    """Return the names of the people whose waste the viewer may see by name."""
    rows = policy.visible_users(viewer).filter(pk__in=users)
    if named_teams is not None:
        led = rows.filter(memberships__team__in=named_teams).values("pk")
        rows = rows.filter(pk__in=[viewer.pk, *led.values_list("pk", flat=True)])
    return dict(rows.values_list("pk", "username"))


def _who_text(key: str, parts: list[WorkPart]) -> str:
    if key in WASTE_STEPS:
        count = len({part.work.user for part in parts if part.key == key and part.slot_seconds > 0})
        return utilisation_texts.WHO_COUNT.format(count=count) if count else ""
    count = len({part.work.workload for part in parts if part.key == key})
    return utilisation_texts.WHO[key].format(count=count)
