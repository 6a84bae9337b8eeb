"""Prepare the list of the works, projects or people that waste most, with the reason and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from django.utils.safestring import SafeString

from portal import policy
from portal.reads.fleet.utilisation import NamedWork
from portal.reads.utilisation.query import rankings_of
from portal.web.components.drawings import spark
from portal.web.components.quantities import amount, grouped, percent
from portal.web.money.utilisation.query import UtilisationQuery
from portal.web.money.utilisation.table_images import STEP_COLOURS, league_image
from portal.wording.pages.money import utilisation_texts as texts
from portal.wording.utilisation import findings
from telemetry.reads.utilisation.waste import WASTE_STEPS, WasteRow, rank_of_person, wasted_cost

UNKNOWN = "–"


def waste_league(query: UtilisationQuery) -> dict[str, Any]:
    """Return the context of ``manage/utilisation_league.html``."""
    rows = query.waste
    names = query.listed_names
    with_cost = policy.sees_owner_cost(query.viewer)
    named = [row for row in rows if row.work in query.named_works]
    shown = query.listed_waste
    top = max((_size(query, row) for row in shown), default=0.0)
    more, others = named[len(shown) :], [row for row in rows if row.work not in query.named_works]
    wasted, kinds = [row.wasted_hours for row in rows], texts.RANKING_PLURALS[query.ranking]
    return {
        "title": texts.WASTE_TITLE,
        "kind": texts.RANKING_LABELS[query.ranking],
        "finding": findings.waste_finding(wasted, kinds),
        "own_rank": _own_rank(query),
        "rows": [_row(query, row, names[row.work], top) for row in shown],
        "rest": [
            _rest(query, texts.MORE, more, query.address(shown="all") + "#league"),
            _rest(query, texts.OTHERS, others, ""),
        ],
        "hours": grouped(sum(row.wasted_hours for row in rows), 1),
        "cost": amount(wasted_cost(rows), query.currency) if with_cost else "",
        "currency": query.currency if with_cost else "",
        "is_money": query.unit == "money",
        "rankings": [
            {
                "label": texts.RANKING_LABELS[name],
                "url": query.address(waste=name, shown=None) + "#league",
                "current": name == query.ranking,
            }
            for name in rankings_of(query.filters)
        ],
        "steps": [
            {"label": texts.WASTE_LABELS[step], "colour": STEP_COLOURS[step].bar} for step in WASTE_STEPS
        ],
        "footer": texts.WASTE_FOOTER,
        "csv": query.csv_address("waste"),
        "image": league_image(query, shown, [names[row.work].name for row in shown]),
    }


def _row(query: UtilisationQuery, row: WasteRow, name: NamedWork, top: float) -> dict[str, Any]:
    window = query.period.text(query.now)
    subject = quote(texts.MAIL_SUBJECT.format(name=name.name))
    body = quote(findings.waste_mail(name.name, row, name.units, window))
    return {
        "name": name.name,
        "url": name.url or _filter_address(query, name),
        "team": name.team,
        "of": ", ".join(part for part in (name.project, name.person) if part and part != name.name),
        "reason": findings.waste_reason(row, name.units),
        "bar": _bar(query, row, top),
        "bar_text": ", ".join(f"{texts.WASTE_LABELS[step]} {row.hours[step]:,.1f} h" for step in WASTE_STEPS),
        "busy": UNKNOWN if row.busy is None else percent(row.busy),
        "sm": UNKNOWN if row.sm_active is None else percent(row.sm_active),
        "trend": _trend(query.trends.get(row.work, [])),
        "hours": grouped(row.wasted_hours, 1),
        "cost": amount(row.cost, query.currency) if policy.sees_owner_cost(query.viewer) else "",
        "mail": f"mailto:{quote(name.email)}?subject={subject}&body={body}" if name.email else "",
        "advise": name.report_url,
        "open": name.url,
    }


def _filter_address(query: UtilisationQuery, name: NamedWork) -> str:
    """Return the address of the page for the project or the person of a row."""
    if query.ranking == "person":
        return query.address(person=name.person, waste=rankings_of(query.filters)[-1]) + "#league"
    slug = name.team.slug if name.team else ""
    return query.address(team=slug, waste=rankings_of(query.filters)[-1]) + "#league"


def _size(query: UtilisationQuery, row: WasteRow) -> float:
    return float(row.cost) if query.unit == "money" else row.wasted_hours


def _bar(query: UtilisationQuery, row: WasteRow, top: float) -> list[dict[str, str]]:
    """Return the parts of a bar whose length is the hours or the money of the row."""
    parts, left = [], 0.0
    scale = _size(query, row) / row.wasted_hours / top * 100 if top else 0.0
    for step in WASTE_STEPS:
        width = row.hours[step] * scale
        if width >= 0.05:
            parts.append({"colour": STEP_COLOURS[step].bar, "x": f"{left:.2f}", "width": f"{width:.2f}"})
        left += width
    return parts


def _trend(wasted: list[float | None]) -> SafeString | str:
    top = max((value or 0.0 for value in wasted), default=0.0)
    return spark(wasted, texts.TREND_LABEL, top=top or 1.0) if wasted else ""


def _rest(query: UtilisationQuery, text: str, rows: Sequence[WasteRow], url: str) -> dict[str, str] | None:
    if not rows:
        return None
    return {
        "text": text.format(count=len(rows)),
        "url": url,
        "hours": grouped(sum(row.wasted_hours for row in rows), 1),
        "cost": amount(wasted_cost(rows), query.currency) if policy.sees_owner_cost(query.viewer) else "",
    }


def _own_rank(query: UtilisationQuery) -> str:
    """Return the viewer's place among all people; "" if nobody wasted time."""
    rank, count = rank_of_person(
        query.waterfall.parts, query.viewer.pk, query.waste_steps, by_cost=query.unit == "money"
    )
    if rank is not None:
        return texts.OWN_RANK.format(rank=rank, count=count)
    return texts.NO_OWN_RANK if count else ""
