"""Draw the charges of a month day by day, as a chart, a table and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from portal.reads.money.overview.curve import CurveDay
from portal.reads.money.overview.page import ChargebackOverview
from portal.web.components.quantities import amount, grouped
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.overview.addresses import lines_url
from portal.wording.chargeback import overview_texts as texts
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.billing_calendar import previous_month
from telemetry.reads.chargeback import ANY_MONTH

DAYS_PER_LABEL = 5
CSV_COLUMNS = (
    "day",
    "gpu_hours",
    "charged",
    "charged_so_far",
    "month_before_so_far",
    "even_pace",
    "forecast_low",
    "forecast",
    "forecast_high",
    "currency",
    "scope",
)


def spend_chart(overview: ChargebackOverview) -> UtilisationChart:
    """Return the chart. A click on a day opens the lines of the day; the table has the same links."""
    urls = _urls(overview)
    return UtilisationChart(
        texts.CURVE_TITLE,
        f"{overview.month:%B %Y} in {overview.currency}",
        {"data": list(_traces(overview, urls)), "layout": _layout(overview)},
        csv_columns_of(*texts.CURVE_COLUMNS),
        list(_table_rows(overview, urls)),
    )


@dataclass(frozen=True)
class ChartUrls:
    """The addresses of the charge lines behind each point.

    ``own`` is for the month, ``former`` for the month before. The first address of a list shows the
    corrections of earlier months; it is empty if there are none. The others show one day each.
    """

    own: list[str]
    former: list[str]


def _urls(overview: ChargebackOverview) -> ChartUrls:
    month, former, curve = overview.month, previous_month(overview.month), overview.curve
    days = range(len(curve.days))

    def of(shown: date, corrections: Decimal | None) -> list[str]:
        first = lines_url(shown, corrected_month=ANY_MONTH) if corrections else ""
        return [first, *(lines_url(shown, day=(shown + timedelta(days=n)).isoformat()) for n in days)]

    return ChartUrls(of(month, curve.corrections), of(former, curve.former_corrections))


def spend_csv_rows(overview: ChargebackOverview, scope: str) -> Iterator[list[Any]]:
    """Yield the rows of the CSV file: the corrections, then each day. The last day has the forecast."""
    curve, forecast, tail = overview.curve, overview.forecast, [overview.currency, scope]
    none = [None, None, None]
    yield [
        "corrections",
        None,
        curve.corrections,
        curve.corrections,
        curve.former_corrections,
        None,
        *none,
        *tail,
    ]
    for number, day in enumerate(curve.days, start=1):
        is_last = number == len(curve.days) and forecast is not None
        figures = [forecast.low, forecast.expected, forecast.high] if forecast and is_last else none
        hours = (
            None if day.charged is None else Decimal(f"{day.slot_seconds / SLOT_SECONDS_PER_GPU_HOUR:.4f}")
        )
        amounts = [day.charged, day.total, day.former_total, day.even_pace]
        yield [day.day.isoformat(), hours, *amounts, *figures, *tail]


def _table_rows(overview: ChargebackOverview, urls: ChartUrls) -> Iterator[list[Any]]:
    curve, currency = overview.curve, overview.currency

    def shown(value: Decimal | None) -> str:
        return "" if value is None else amount(value, currency)

    if curve.corrections or curve.former_corrections:
        first = [
            _cell(texts.CORRECTIONS_ROW, urls.own[0]),
            "",
            shown(curve.corrections),
            shown(curve.corrections),
        ]
        yield [*first, _cell(shown(curve.former_corrections), urls.former[0]), ""]
    for day, url, former_url in zip(curve.days, urls.own[1:], urls.former[1:], strict=True):
        known = day.charged is not None
        yield [
            _cell(f"{day.day:%-d %b}", url if known else ""),
            grouped(day.slot_seconds / SLOT_SECONDS_PER_GPU_HOUR, 1) if known else "",
            shown(day.charged),
            shown(day.total),
            _cell(shown(day.former_total), former_url if day.former_total is not None else ""),
            shown(day.even_pace),
        ]


def _cell(text: str, url: str) -> Any:
    """Return a cell of the table, with a link if there is one."""
    return {"text": text, "url": url} if url else text


def _points(start: Decimal | None, days: tuple[CurveDay, ...], name: str) -> tuple[list[int], list[float]]:
    """Return the ends of the days and the amounts of one column; None ends the curve."""
    known = [getattr(day, name) for day in days]
    values = [start, *known]
    places = [number for number, value in enumerate(values) if value is not None]
    return places, [float(values[number]) for number in places]


def _traces(overview: ChargebackOverview, urls: ChartUrls) -> Iterator[dict[str, Any]]:
    """Yield the traces. A point stands at the end of its day; the first one is the start of the month."""
    curve, month, currency = overview.curve, overview.month, overview.currency
    names = {
        key: label.format(month=month, former=previous_month(month), amount="{amount}")
        for key, label in texts.CURVE_TRACES.items()
    }
    hover = f"%{{y:,.2f}} {currency}"
    places, values = _points(curve.corrections, curve.days, "total")
    main = _line(names["now"], places, values, "accent", hover, width=2.5)
    yield {
        **main,
        "mode": "lines+markers",
        "fill": "tozeroy",
        "meta": {"colour": "accent", "fill": "accent-wash"},
        "customdata": [urls.own[place] for place in places],
    }
    places, values = _points(curve.former_corrections, curve.days, "former_total")
    if curve.former_corrections is not None:
        yield {
            **_line(names["former"], places, values, "edge", hover, dash="dot"),
            "customdata": [urls.former[place] for place in places],
        }
    if overview.forecast:
        yield from _cone(overview, names, hover)
    if overview.budget and overview.budget.covers_all:
        limit = float(overview.budget.amount)
        text = names["budget"].format(amount=amount(overview.budget.amount, currency))
        yield _line(text, [0, len(curve.days)], [limit, limit], "ink", hover, width=2)
        places, values = _points(Decimal(0), curve.days, "even_pace")
        yield _line(names["pace"], places, values, "ok", hover, dash="dash")


def _cone(overview: ChargebackOverview, names: dict[str, str], hover: str) -> Iterator[dict[str, Any]]:
    """Yield the range of the forecast from the last known day to the end of the month, and its line."""
    forecast, curve = overview.forecast, overview.curve
    assert forecast is not None
    now, end = sum(day.total is not None for day in curve.days), len(curve.days)
    charged, low, high = (float(each) for each in (overview.charged, forecast.low, forecast.high))
    area = _line(
        names["range"], [now, end, end, now], [charged, high, low, charged], "accent", hover, width=0
    )
    yield {**area, "fill": "toself", "hoverinfo": "skip"}
    label = names["forecast"].format(amount=amount(forecast.expected, overview.currency))
    yield _line(label, [now, end], [charged, float(forecast.expected)], "accent", hover, dash="dash")


def _line(
    name: str,
    x: list[int],
    y: list[float],
    colour: str,
    hover: str,
    *,
    dash: str = "solid",
    width: float = 1.5,
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"dash": dash, "width": width},
        "hovertemplate": hover,
        "meta": {"colour": colour},
    }


def _layout(overview: ChargebackOverview) -> dict[str, Any]:
    """Return the layout. A label stands at the end of its day, where the amount of the day is complete."""
    days = overview.curve.days
    shown = range(0, len(days) + 1, DAYS_PER_LABEL)
    labels = [
        texts.CURVE_START if number == 0 else _day_label(days[number - 1].day, number == DAYS_PER_LABEL)
        for number in shown
    ]
    return {
        "xaxis": {
            "tickvals": list(shown),
            "ticktext": labels,
            "range": [0, len(days) + 0.5],
            "unifiedhovertitle": {"text": texts.CURVE_HOVER},
        },
        "yaxis": {"rangemode": "tozero", "tickformat": ",.0f"},
        "legend": {"orientation": "h", "y": -0.15, "yanchor": "top", "x": 0},
    }


def _day_label(day: date, with_month: bool) -> str:
    return f"{day:%-d %b}" if with_month else f"{day.day}"
