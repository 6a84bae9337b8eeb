"""Build the chart of the GPU-hours that smaller requests would save, by repeated work."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from portal.reads.utilisation.right_sizing import SizingAdvice
from portal.web.components.quantities import grouped, money
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation.query import UtilisationQuery
from portal.wording.capacity import right_sizing_texts
from portal.wording.pages.money import utilisation_texts

MAX_BARS = 12


def sizing_chart(query: UtilisationQuery) -> UtilisationChart:
    """Return a chart with a bar for each advised work. A bar opens the report of its last run."""
    is_money = query.unit == "money"
    found = sorted(query.sizings, key=lambda each: -(each.saved or 0)) if is_money else query.sizings
    known = [each.saved_per_month for each in found]
    total = None if None in known else sum((each for each in known if each is not None), Decimal(0))
    return UtilisationChart(
        utilisation_texts.SIZING_TITLE,
        utilisation_texts.SIZING_HINT,
        _figure(found[:MAX_BARS], query.currency if is_money else ""),
        csv_columns_of("Work", *utilisation_texts.SIZING_COLUMNS),
        [_row(each) for each in found],
        finding=right_sizing_texts.sizing_finding(
            len(found),
            sum(each.sizing.saved_hours for each in found),
            "" if total is None else money(total, query.currency),
        ),
        empty=utilisation_texts.SIZING_EMPTY,
        opens=utilisation_texts.OPENS_REPORT if found else "",
    )


def _figure(shown: list[SizingAdvice], currency: str) -> dict[str, Any]:
    """Return bars of the saved GPU-hours, or of the saved money if a currency is given."""
    saved = [each.saved if currency else each.sizing.saved_hours for each in shown]
    title = (
        utilisation_texts.SAVED_MONEY.format(currency=currency) if currency else utilisation_texts.SAVED_HOURS
    )
    hover = f"%{{x:,.2f}} {currency}" if currency else "%{x:,.0f} GPU-hours"
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": [f"{each.sizing.name}, {each.person}" for each in shown],
                "x": [None if value is None else round(float(value), 2) for value in saved],
                "text": [grouped(value) for value in saved],
                "textposition": "auto",
                "customdata": [each.url for each in shown],
                "hovertext": [f"{each.headline}. {each.evidence}" for each in shown],
                "hovertemplate": f"%{{hovertext}} Saves {hover}.<extra></extra>",
                "meta": {"colour": "accent"},
            }
        ],
        "layout": {
            "showlegend": False,
            "hovermode": "closest",
            "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
            "xaxis": {"title": {"text": title}},
            "bargap": 0.3,
        },
    }


def _row(each: SizingAdvice) -> list[Any]:
    return [
        {"text": f"{each.headline}. {each.evidence}", "url": each.url},
        each.person,
        grouped(each.sizing.held_hours),
        grouped(each.sizing.saved_hours),
        money(each.saved, each.currency),
        money(each.saved_per_month, each.currency),
    ]
