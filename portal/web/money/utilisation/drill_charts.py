"""Build the charts below the map of the fleet: the GPUs of a host, one GPU, and the samples of a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from portal.reads.utilisation.drill import GpuHours, GpuRun, RunSamples, gpu_hours, gpu_runs, hours_of
from portal.web.components.quantities import grouped, percent, short_duration
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation.fleet_chart import busy_map, fleet_address
from portal.web.money.utilisation.query import UtilisationQuery
from portal.web.money.utilisation.time_chart import brushed, local_text
from portal.wording.formatting import date_and_time
from portal.wording.pages.money import drill_texts
from portal.wording.utilisation import findings
from scheduler.models import Gpu, Host
from telemetry.reads.utilisation.raw_series import Points

HOUR = timedelta(hours=1)


def host_chart(query: UtilisationQuery, host: Host) -> UtilisationChart:
    """Return the map of the GPUs of a host, by hour. A click opens the GPU."""
    gpus, starts = gpu_hours(query, host), hours_of(query)
    addresses = [fleet_address(query, host=host.name, gpu=str(each.gpu.index)) for each in gpus]
    names = [f"GPU {each.gpu.index}" for each in gpus]
    busy = [[_per_cent(value) for value in each.busy] for each in gpus]
    period = fleet_address(query, start="FROM", end="UNTIL", host=host.name)
    figure = busy_map(query, busy, names, addresses, starts, period)
    rows: list[list[Any]] = [
        [{"text": name, "url": address}, each.gpu.model, *_mean_and_top(each)]
        for name, each, address in zip(names, gpus, addresses, strict=True)
    ]
    columns = [{"label": "GPU"}, {"label": "Model"}, *csv_columns_of("", "Mean utilisation", "Highest")[1:]]
    return UtilisationChart(
        drill_texts.HOST_TITLE.format(host=host.name),
        drill_texts.HOST_HINT,
        figure,
        columns,
        rows,
        finding=findings.fleet_finding(list(zip(names, busy, strict=True)), host.name),
        opens=drill_texts.OPENS_GPU,
        width="w12",
    )


# Not split: the function builds the figure and the tables of one chart from the same rows.
def gpu_chart(query: UtilisationQuery, host: Host, gpu: Gpu) -> UtilisationChart:
    """Return the utilisation of a GPU over time and who held it. A click on a run opens its samples."""
    starts = hours_of(query)
    hours = next((each for each in gpu_hours(query, host) if each.gpu.pk == gpu.pk), None)
    runs = gpu_runs(query, gpu)
    at = {"host": host.name, "gpu": str(gpu.index)}
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "utilisation",
            "connectgaps": False,
            "line": {"shape": "hv", "width": 1.5},
            "x": [local_text(start, query) for start in starts],
            "y": [_per_cent(value) for value in (hours.busy if hours else [])],
            "hovertemplate": "utilisation %{y} %<extra></extra>",
            "meta": {"colour": "use-5"},
        }
    ]
    for run in runs:
        data.append(_run_bar(query, run, at))
    address = fleet_address(query, start="FROM", end="UNTIL", **at)
    figure = {
        "data": data,
        "layout": {
            "hovermode": "closest",
            "showlegend": False,
            "barmode": "overlay",
            "uniformtext": {"minsize": 11, "mode": "hide"},
            "xaxis": {"type": "date", "anchor": "y2"},
            "yaxis": {"title": {"text": "utilisation, %"}, "range": [0, 104], "domain": [0.24, 1]},
            "yaxis2": {"type": "category", "domain": [0, 0.16], "showticklabels": False, "ticklen": 0},
            "meta": brushed(query, starts, address),
        },
    }
    return UtilisationChart(
        drill_texts.GPU_TITLE.format(index=gpu.index, host=host.name),
        drill_texts.GPU_HINT,
        figure,
        [*[{"label": label} for label in drill_texts.RUN_COLUMNS], {"label": "Share", "numeric": True}],
        [_run_row(query, run, at) for run in runs],
        height=360,
        finding=findings.gpu_finding(
            [_per_cent(value) for value in (hours.busy if hours else [])], len(runs), gpu.model
        ),
        opens=drill_texts.OPENS_RUN,
        width="w12",
    )


def _run_bar(query: UtilisationQuery, run: GpuRun, at: dict[str, str]) -> dict[str, Any]:
    start, end = _clipped(query, run)
    name = run.workload.name if run.workload else drill_texts.OTHER_WORK
    team = run.workload.project.team if run.workload else None
    address = fleet_address(query, **at, run=str(run.workload.public_id)) if run.workload else ""
    length = short_duration((end - start).total_seconds())
    return {
        "type": "bar",
        "orientation": "h",
        "yaxis": "y2",
        "y": [drill_texts.RUNS_TITLE],
        "base": [local_text(start, query)],
        "x": [round((_local(end, query) - _local(start, query)) / timedelta(milliseconds=1))],
        "name": name,
        "text": [name],
        "textposition": "inside",
        "insidetextanchor": "start",
        "customdata": [address],
        "hovertext": [drill_texts.RUN_HOVER.format(name=name, length=length, share=percent(run.share))],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "meta": {"colour": f"team-{team.colour}" if team else "rest"},
    }


def _run_row(query: UtilisationQuery, run: GpuRun, at: dict[str, str]) -> list[Any]:
    times = [date_and_time(run.start), date_and_time(run.end) if run.end else drill_texts.RUNNING]
    if run.workload is None:
        return [drill_texts.OTHER_WORK, "", *times, percent(run.share)]
    address = fleet_address(query, **at, run=str(run.workload.public_id))
    name = {"text": run.workload.name, "url": address}
    return [name, run.workload.project.team.name, *times, percent(run.share)]


def sample_charts(query: UtilisationQuery, host: Host, gpu: Gpu, run: RunSamples) -> list[UtilisationChart]:
    """Return a chart for each reading of a run. Where samples are missing, no line is drawn."""
    at = {"host": host.name, "gpu": str(gpu.index), "run": str(run.workload.public_id)}
    address = fleet_address(query, start="FROM", end="UNTIL", **at)
    meta = brushed_between(query, run.start, run.end, address)
    found = []
    for name, points in run.series.items():
        if not points and name != "utilisation":
            continue
        label, unit = drill_texts.READING_LABELS[name]
        known = [value for _, value in points if value is not None]
        figure = {
            "data": [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "connectgaps": False,
                    "name": label,
                    "line": {"width": 1.25},
                    "x": [_second_text(seconds, query) for seconds, _ in points],
                    "y": [None if value is None else round(value, 1) for _, value in points],
                    "hovertemplate": f"%{{y:,.1f}} {unit}<extra>{label}</extra>",
                    "meta": {"colour": "use-5"},
                }
            ],
            "layout": {
                "showlegend": False,
                "xaxis": {"type": "date"},
                "yaxis": {"title": {"text": f"{label}, {unit}"}, "rangemode": "tozero"},
                "meta": meta,
            },
        }
        found.append(
            UtilisationChart(
                label,
                drill_texts.RUN_HINT.format(label=label.lower()),
                figure,
                csv_columns_of("Time", f"{label}, {unit}"),
                _point_rows(query, points),
                height=220,
                empty=drill_texts.NO_SAMPLES,
                finding=findings.samples_finding(label, unit, known),
                width="w6",
            )
        )
    return found


def brushed_between(query: UtilisationQuery, start: datetime, end: datetime, address: str) -> dict[str, Any]:
    """Return the times of the hours and the address of a period; a drag may choose any minutes."""
    first = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    edges = [first + number * HOUR for number in range(-int((first - end) // HOUR) + 1)]
    return {
        "times": [edge.isoformat() for edge in edges],
        "shown": [local_text(edge, query) for edge in edges],
        "between": True,
        "period": address,
    }


def _point_rows(query: UtilisationQuery, points: Points) -> list[list[Any]]:
    """Return the drawn points of a reading as rows; a gap has the value "no samples"."""
    return [
        [
            _second_text(seconds, query).replace("T", " "),
            drill_texts.GAP if value is None else grouped(value, 1),
        ]
        for seconds, value in points
    ]


def _second_text(seconds: float, query: UtilisationQuery) -> str:
    return f"{datetime.fromtimestamp(seconds, query.period.zone):%Y-%m-%dT%H:%M:%S}"


def _clipped(query: UtilisationQuery, run: GpuRun) -> tuple[datetime, datetime]:
    last = min(query.filters.end, query.now)
    return max(run.start, query.filters.start), min(run.end or last, last)


def _local(at: datetime, query: UtilisationQuery) -> datetime:
    return at.astimezone(query.period.zone).replace(tzinfo=None)


def _per_cent(share: float | None) -> float | None:
    return None if share is None else round(share * 100)


def _mean_and_top(hours: GpuHours) -> list[str]:
    known = [value for value in hours.busy if value is not None]
    return [percent(_mean(known)), percent(max(known))] if known else ["unknown", "unknown"]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
