"""Build the chart of the demand of the next four weeks, with the demand before and the errors of the past."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from portal.reads.fleet.demand_forecast import DemandOutlook, PoolDemand
from portal.reads.utilisation.answers import FORECAST_SHOWN_BEFORE
from portal.web.components.chart_labels import end_labels, line_label
from portal.web.components.quantities import grouped, percent
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation.query import UtilisationQuery
from portal.wording.pages.money import utilisation_texts
from portal.wording.utilisation import findings
from telemetry.core.capacity.demand_forecast import HORIZON_DAYS, Backtest

HOURS_PER_DAY = 24


def forecast_chart(query: UtilisationQuery) -> UtilisationChart:
    """Return a chart of the mean GPUs that are wanted each day. A row of its table opens a pool and model."""
    outlook = query.outlook
    return UtilisationChart(
        utilisation_texts.FORECAST_TITLE,
        _hint(query),
        _figure(outlook),
        csv_columns_of("Pool and model", *utilisation_texts.FORECAST_COLUMNS),
        [_row(query, part) for part in outlook.parts],
        finding=findings.forecast_finding(
            _mean([outlook.known[day] for day in _last_days(outlook)]),
            _mean([each.expected for each in outlook.forecast.days]),
            outlook.gpus,
            sum(each.expected > outlook.gpus * HOURS_PER_DAY for each in outlook.forecast.days),
        ),
        empty=utilisation_texts.FORECAST_EMPTY,
    )


def _hint(query: UtilisationQuery) -> str:
    """Return the hint of the chart. It names the zone of the days if the page has another zone."""
    tested = query.outlook.forecast.backtest
    hint = utilisation_texts.FORECAST_HINT.format(backtest=findings.backtest_text(tested))
    if query.period.zone == query.fixed_zone:
        return hint
    return utilisation_texts.FORECAST_DAYS_IN_ZONE.format(hint=hint, zone=query.fixed_zone)


def _figure(outlook: DemandOutlook) -> dict[str, Any]:
    days = outlook.forecast.days
    since = outlook.first - FORECAST_SHOWN_BEFORE
    # An unknown day is a gap: no line is drawn across it.
    past = [since + timedelta(days=number) for number in range((outlook.first - since).days)]
    names = utilisation_texts.FORECAST_TRACES
    ahead = [each.day.isoformat() for each in days]
    past_days = [day.isoformat() for day in past]
    known = [None if day not in outlook.known else _gpus(outlook.known[day]) for day in past]
    data = [_line(names["known"], past_days, known, "accent")]
    labels = end_labels(past_days, known, names["known"])
    if days:
        area = _line(
            names["range"],
            [*ahead, *reversed(ahead)],
            [*(_gpus(each.high) for each in days), *(_gpus(each.low) for each in reversed(days))],
            "accent",
            width=0,
        )
        data.append(
            {
                **area,
                "fill": "toself",
                "hoverinfo": "skip",
                "meta": {"colour": "accent", "fill": "accent-wash"},
            }
        )
        expected = [_gpus(each.expected) for each in days]
        data.append(_line(names["expected"], ahead, expected, "accent", "dash"))
        labels += end_labels(ahead, expected, names["expected"])
        labels += end_labels(ahead, [_gpus(each.high) for each in days], names["range"])
    if outlook.gpus:
        ends = [past[0].isoformat(), (outlook.first + timedelta(days=HORIZON_DAYS - 1)).isoformat()]
        data.append(_line(names["gpus"], ends, [outlook.gpus, outlook.gpus], "ink"))
        labels.append(line_label(ends[0], outlook.gpus, names["gpus"], xanchor="left"))
    return {
        "data": data,
        "layout": {
            "hovermode": "x unified",
            "showlegend": False,
            "annotations": labels,
            "xaxis": {"type": "date"},
            "yaxis": {"title": {"text": "GPUs, mean of the day"}, "rangemode": "tozero"},
        },
    }


def _line(
    name: str, x: list[str], y: list[Any], colour: str, dash: str = "solid", width: float = 1.75
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"dash": dash, "width": width},
        "connectgaps": False,
        "hovertemplate": "%{y:,.1f} GPUs",
        "meta": {"colour": colour},
    }


def _row(query: UtilisationQuery, part: PoolDemand) -> list[Any]:
    name = f"{part.pool.name}, {part.model or utilisation_texts.ANY_MODEL}"
    days, tested = part.forecast.days, part.forecast.backtest
    expected = _mean([each.expected for each in days])
    low, high = _mean([each.low for each in days]), _mean([each.high for each in days])
    last = [part.known[day] for day in sorted(part.known)[-HORIZON_DAYS:]]
    url = query.address(pool=part.pool.slug, model=part.model) if part.model in query.models else ""
    return [
        {"text": name, "url": url} if url else name,
        _text(_mean(last)),
        _text(expected),
        f"{_text(low)} to {_text(high)}" if days else "–",
        grouped(part.gpus),
        *_backtest_cells(tested),
    ]


def _backtest_cells(tested: Backtest) -> list[str]:
    return [
        percent(tested.error_share) if tested.error_share is not None else "–",
        "–" if tested.mase is None else f"{tested.mase:.2f}",
    ]


def _last_days(outlook: DemandOutlook) -> list[date]:
    return sorted(outlook.known)[-HORIZON_DAYS:]


def _mean(gpu_hours: list[float]) -> float | None:
    """Return GPU-hours per day as mean GPUs; None without days."""
    return sum(gpu_hours) / len(gpu_hours) / HOURS_PER_DAY if gpu_hours else None


def _text(gpus: float | None) -> str:
    return "–" if gpus is None else grouped(gpus, 1)


def _gpus(gpu_hours: float) -> float:
    return round(gpu_hours / HOURS_PER_DAY, 2)
