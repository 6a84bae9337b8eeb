"""Draw the use of a workload's units over time: one row for each unit, and tracks on one time axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

from django.utils import timezone

from portal.reads.work.run_reports import ReportAttempt, ReportGap, RunReportDetails
from portal.web.components.chart_labels import end_labels
from portal.web.components.quantities import percent, short_duration
from portal.wording import run_report_texts
from portal.wording.pages import run_report_pages
from telemetry.core.run_report import BUSY_POINT_SHARE, HOST_SERIES, SERIES, UnitReport
from telemetry.reports.build import WorkloadReport

MAX_ROWS = 64  # of more units, the strip has a row for each host
MAX_LINES = 8  # more units are drawn as their mean and the highest of them
MAX_LABELLED_LINES = 4  # more lines have a legend, because their labels would overlap
MIB_PER_GIB = 1024
BAND_COLOUR = "rgba(128, 128, 128, 0.2)"  # visible on light and dark paper
REDONE_COLOUR = "rgba(200, 120, 0, 0.18)"
TRACK_GAP = 0.07
STRIP_SHARE = 0.26
# Line tracks from top to bottom, with the number format and unit of the hover.
LINE_TRACKS = (
    ("sm_active", ":.0f", "% SM active"),
    ("memory_mib", ":.1f", "GiB"),
    ("power_w", ":.0f", "W"),
)
# Tracks that are drawn only if they were measured, and those of all hosts of the workload together.
OPTIONAL_TRACKS = (
    ("dram_active", ":.0f", "% DRAM active"),
    ("pcie_mib_s", ":,.1f", "MiB/s over PCIe"),
    ("nvlink_mib_s", ":,.1f", "MiB/s over NVLink"),
)
HOST_TRACKS = (
    ("cpu_cores", ":.1f", "cores"),
    ("host_memory_mib", ":.1f", "GiB"),
    ("io_mib_s", ":,.1f", "MiB/s"),
    ("network_mib_s", ":,.1f", "MiB/s"),
)
FEW_TRACKS = 3  # with more, the strip and the space between tracks take a smaller part of the height
MANY_TRACKS = 7
UTILISATION_TRACK = ("utilisation", ":.0f", "% utilisation")
TABLE_COLUMNS = (
    ("Time", False),
    ("GPUs with work", True),
    ("Utilisation", True),
    ("SM active", True),
    ("GPU memory at most, GiB", True),
    ("Power, W", True),
)
HOST_CSV_COLUMNS = ("start", "seconds", *HOST_SERIES)
CSV_COLUMNS = ("start", "seconds", "host", "gpu", "profile", *SERIES)


def use_chart(details: RunReportDetails, csv: str, chosen: int | None = None) -> dict[str, Any]:
    """Return the chart with its finding, its table and the address of its CSV file.

    ``chosen`` is the position of a unit that has a line of its own among many units.
    """
    gaps, report = details.gaps, details.report
    findings = (
        run_report_texts.use_finding(report.units),
        run_report_texts.gaps_finding(len(gaps), details.gap_time, sum(gap.preempted for gap in gaps)),
    )
    return {
        "title": run_report_pages.CHART_TITLE,
        "finding": " ".join(filter(None, findings)),
        "hint": point_hint(report),
        "figure": use_figure(report, gaps, details.attempts, chosen),
        "height": _height(report),
        "table": use_table(report, run_report_pages.CHART_TITLE),
        "csv": csv,
    }


def use_figure(
    report: WorkloadReport,
    gaps: Sequence[ReportGap],
    attempts: Sequence[ReportAttempt] = (),
    chosen: int | None = None,
) -> dict[str, Any]:
    """Return the Plotly figure. Time without a reading stays a gap in every line.

    The last checkpoint of each attempt is a line, and the time that the next attempt had to redo is a band.
    """
    times, labels = _middles(report), [f"{local:%d %b %H:%M}" for local in _local_times(report)]
    tracks = _line_tracks(report)
    domains = _domains(len(tracks))
    data: list[dict[str, Any]] = [_strip(report, times, labels)]
    layout: dict[str, Any] = {
        "hovermode": "closest",
        "uirevision": "run",  # new figures keep the zoom
        "margin": {"l": 56, "r": 12, "t": 24, "b": 40},
        "showlegend": MAX_LABELLED_LINES < len(report.units) <= MAX_LINES,
        "legend": {"orientation": "h", "x": 0, "y": -0.12, "yanchor": "top", "font": {"size": 11}},
        "xaxis": {
            "anchor": f"y{len(tracks) + 1}",
            "type": "date",
            "showgrid": False,
            "range": _time_range(report),
        },
        "yaxis": {
            "domain": domains[0],
            "autorange": "reversed",
            "type": "category",
            "ticklen": 0,
            "showgrid": False,
        },
        "shapes": [*map(_band, gaps), *_checkpoint_shapes(attempts)],
        "annotations": [_label(run_report_pages.TRACKS["busy"], domains[0][1])],
    }
    for number, (name, form, unit) in enumerate(tracks, start=2):
        lines = _track_lines(report, name, chosen)
        data += [
            _line(
                *_with_breaks(times, labels, values, gaps),
                label,
                colour,
                axis=f"y{number}",
                unit=f"%{{y{form}}} {unit}",
                first=number == 2,
            )
            for label, colour, values in lines
        ]
        layout[f"yaxis{number}"] = _track_axis(report, name, unit) | {"domain": domains[number - 1]}
        track = run_report_pages.TRACKS[name]
        known = any(value is not None for _, _, values in lines for value in values)
        text = track if known else run_report_pages.NOT_MEASURED_TRACK.format(track=track)
        layout["annotations"].append(_label(text, domains[number - 1][1]))
        if 1 < len(lines) <= MAX_LABELLED_LINES:
            for label, _, values in lines:
                layout["annotations"] += end_labels(times, values, label, yref=f"y{number}")
    return {"data": data, "layout": layout}


def _track_axis(report: WorkloadReport, name: str, unit: str) -> dict[str, Any]:
    axis: dict[str, Any] = {"rangemode": "tozero", "nticks": 4}
    if "%" in unit:
        axis["range"] = [0, 100]
    elif name == "memory_mib":
        axis["range"] = [0, max(each.memory_mib for each in report.units) / MIB_PER_GIB]
    return axis


def use_table(report: WorkloadReport, caption: str) -> dict[str, Any]:
    """Return the table of the chart for components/table.html: one row for each point."""
    return {
        "caption": caption,
        "columns": [{"label": label, "numeric": numeric} for label, numeric in TABLE_COLUMNS],
        "rows": [_table_row(report, at, local) for at, local in enumerate(_local_times(report))],
    }


def _table_row(report: WorkloadReport, at: int, local: datetime) -> list[str | None]:
    values = {name: _known(unit.series[name][at] for unit in report.units) for name in SERIES}
    busy, memory, power = values["busy"], values["memory_mib"], values["power_w"]
    return [
        f"{local:%d %b %H:%M}",
        str(sum(value >= BUSY_POINT_SHARE * 100 for value in busy)) if busy else None,
        percent(_mean_share(values["utilisation"])),
        percent(_mean_share(values["sm_active"])),
        f"{max(memory) / MIB_PER_GIB:,.1f}" if memory else None,
        f"{sum(power):,.0f}" if power else None,
    ]


def use_csv_rows(report: WorkloadReport) -> Iterator[list[Any]]:
    """Yield one row for each point and unit, in the order of CSV_COLUMNS. Unknown values are empty."""
    for at, start in enumerate(report.points):
        begins = f"{datetime.fromtimestamp(start, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for unit in report.units:
            values = [unit.series[name][at] for name in SERIES]
            yield [begins, report.point_seconds, unit.host, unit.gpu, unit.profile, *values]


def host_csv_rows(report: WorkloadReport) -> Iterator[list[Any]]:
    """Yield one row for each point, in the order of HOST_CSV_COLUMNS. Unknown values are empty."""
    series = [report.host_use.series.get(name) or [None] * len(report.points) for name in HOST_SERIES]
    for at, start in enumerate(report.points):
        begins = f"{datetime.fromtimestamp(start, UTC):%Y-%m-%dT%H:%M:%SZ}"
        yield [begins, report.point_seconds, *(values[at] for values in series)]


def point_hint(report: WorkloadReport) -> str:
    """Return the length of a point, for the title of the chart."""
    return run_report_pages.POINT_HINT.format(length=short_duration(report.point_seconds))


def measured_points(report: WorkloadReport) -> int:
    """Return the number of points with at least one value. A line needs two."""
    columns = zip(*(unit.series[name] for unit in report.units for name in SERIES), strict=True)
    return sum(any(value is not None for value in column) for column in columns)


def unit_label(unit: UnitReport) -> str:
    """Return the name of a unit: ``h1 GPU 3``, or ``h1 GPU 3 1g.10gb`` for a slice."""
    return " ".join(filter(None, (unit.host, f"GPU {unit.gpu}", unit.profile)))


def _line_tracks(report: WorkloadReport) -> list[tuple[str, str, str]]:
    """Return the tracks. Without SM activity, the first track has the utilisation."""
    measured = {
        name
        for unit in report.units
        for name, values in unit.series.items()
        if any(value is not None for value in values)
    } | {
        name for name, values in report.host_use.series.items() if any(value is not None for value in values)
    }
    first = LINE_TRACKS[:1] if "sm_active" in measured else (UTILISATION_TRACK,)
    optional = (track for track in (*OPTIONAL_TRACKS, *HOST_TRACKS) if track[0] in measured)
    return [*first, *LINE_TRACKS[1:], *optional]


def _height(report: WorkloadReport) -> str:
    """Return the class of the chart's height."""
    tracks = len(_line_tracks(report))
    return "" if tracks <= FEW_TRACKS else "tall" if tracks <= MANY_TRACKS else "tallest"


def _track_lines(
    report: WorkloadReport, name: str, chosen: int | None
) -> list[tuple[str, str, list[float | None]]]:
    if name not in HOST_SERIES:
        lines = _lines(report.units, name)
        if chosen is not None and len(report.units) > MAX_LINES:
            values = _scaled(report.units[chosen].series[name], name)
            lines.append((_short_labels(report.units)[chosen], "team-1", values))
        return lines
    hosts = len({unit.host for unit in report.units})
    label = report.units[0].host if hosts == 1 else run_report_pages.ALL_HOSTS_LINE.format(count=hosts)
    return [(label, "accent", _scaled(report.host_use.series[name], name))]


def unit_choices(report: WorkloadReport) -> list[str]:
    """Return the names of the units, of which one can be chosen; nothing if each has its line."""
    return _short_labels(report.units) if len(report.units) > MAX_LINES else []


def _domains(tracks: int) -> list[list[float]]:
    """Return the vertical extent of the strip and of each track, from top to bottom."""
    part = min(1.0, FEW_TRACKS / tracks)
    strip, gap = STRIP_SHARE * part, TRACK_GAP * part
    height = (1 - strip - gap * tracks) / tracks
    domains, top = [[round(1 - strip, 4), 1.0]], 1 - strip
    for _ in range(tracks):
        top -= gap
        domains.append([max(0.0, round(top - height, 4)), round(top, 4)])
        top -= height
    return domains


def _strip(report: WorkloadReport, times: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """Return the heat strip, coloured by the busy part of each point.

    It has a row for each unit, or for each host if there are more than MAX_ROWS units.
    """
    if len(report.units) <= MAX_ROWS:
        names = _short_labels(report.units)
        busy = [unit.series["busy"] for unit in report.units]
        texts = [_strip_texts(unit) for unit in report.units]
    else:
        hosts: dict[str, list[list[float | None]]] = {}
        for unit in report.units:
            hosts.setdefault(unit.host, []).append(unit.series["busy"])
        names = [f"{host}, {len(rows)} GPUs" for host, rows in hosts.items()]
        busy = [_means(rows) for rows in hosts.values()]
        texts = [["" if value is None else f"{value:.0f} % busy" for value in row] for row in busy]
    return {
        "type": "heatmap",
        "x": times,
        "y": names,
        "z": busy,
        "text": [[f"{at}: {text}" for at, text in zip(labels, row, strict=True)] for row in texts],
        "zmin": 0,
        "zmax": 100,
        "xgap": 0,
        "ygap": 2,
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": "%{y}, %{text}<extra></extra>",
    }


def _strip_texts(unit: UnitReport) -> list[str]:
    texts = []
    for busy, empty in zip(unit.series["busy"], unit.series["empty"], strict=True):
        note = f", {run_report_pages.NO_PROCESS} {empty:.0f} % of the time" if empty else ""
        texts.append("" if busy is None else f"{busy:.0f} % busy{note}")
    return texts


def _lines(units: Sequence[UnitReport], name: str) -> list[tuple[str, str, list[float | None]]]:
    """Return the lines of a track as (label, colour, values)."""
    series = [_scaled(unit.series[name], name) for unit in units]
    if len(units) == 1:
        return [(unit_label(units[0]), "accent", series[0])]
    if len(units) <= MAX_LINES:
        return [
            (label, f"team-{at + 1}", values)
            for at, (label, values) in enumerate(zip(_short_labels(units), series, strict=True))
        ]
    highest = [max(known) if (known := _known(column)) else None for column in zip(*series, strict=True)]
    return [
        (run_report_pages.MEAN_LINE.format(count=len(units)), "accent", _means(series)),
        (run_report_pages.HIGHEST_LINE.format(count=len(units)), "edge", highest),
    ]


def _with_breaks(
    times: Sequence[str], labels: Sequence[str], values: Sequence[float | None], gaps: Sequence[ReportGap]
) -> tuple[list[str], list[str], list[float | None]]:
    """Add a point without a value in each gap, so that no line crosses a gap shorter than a point."""
    rows = list(zip(times, labels, values, strict=True))
    for gap in gaps:
        middle = timezone.localtime(gap.start + (gap.end - gap.start) / 2)
        rows.append((f"{middle:%Y-%m-%dT%H:%M:%S}", "", None))
    rows.sort(key=lambda row: row[0])
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def _means(series: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean of the known values of each point; None if none is known."""
    columns = [_known(column) for column in zip(*series, strict=True)]
    return [round(sum(column) / len(column), 1) if column else None for column in columns]


def _line(
    times: Sequence[str],
    labels: Sequence[str],
    values: Sequence[float | None],
    name: str,
    colour: str,
    *,
    axis: str,
    unit: str,
    first: bool,
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": times,
        "y": values,
        "yaxis": axis,
        "text": labels,
        "name": name,
        "legendgroup": name,
        "showlegend": first,
        "connectgaps": False,
        "hovertemplate": f"{name}, %{{text}}: {unit}<extra></extra>",
        "meta": {"colour": colour},
    }


def _band(gap: ReportGap) -> dict[str, Any]:
    """Return the band of a time without units, with its label."""
    name = run_report_pages.PREEMPTED_BAND if gap.preempted else run_report_pages.GAP_BAND
    start, end = timezone.localtime(gap.start), timezone.localtime(gap.end)
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": f"{start:%Y-%m-%dT%H:%M:%S}",
        "x1": f"{end:%Y-%m-%dT%H:%M:%S}",
        "y0": 0,
        "y1": 1,
        "fillcolor": BAND_COLOUR,
        "line": {"width": 0},
        "layer": "below",
        "label": {"text": f"{name} {start:%H:%M} to {end:%H:%M}", "textposition": "middle center"},
    }


def _checkpoint_shapes(attempts: Sequence[ReportAttempt]) -> Iterator[dict[str, Any]]:
    for attempt, following in zip_longest(attempts, attempts[1:]):
        if attempt.checkpoint_at is None:
            continue
        at = f"{timezone.localtime(attempt.checkpoint_at):%Y-%m-%dT%H:%M:%S}"
        place = {"xref": "x", "yref": "paper", "x0": at, "y0": 0, "y1": 1}
        text = {"text": run_report_pages.CHECKPOINT_LINE, "textposition": "end", "textangle": 0}
        line = {"width": 1, "dash": "dot"}
        yield {"type": "line", "name": "ink", **place, "x1": at, "line": line, "label": text}
        if following is not None and attempt.end is not None and attempt.end > attempt.checkpoint_at:
            redone = {"text": run_report_pages.REDONE_BAND, "textposition": "bottom center"}
            until = f"{timezone.localtime(attempt.end):%Y-%m-%dT%H:%M:%S}"
            band = {"fillcolor": REDONE_COLOUR, "line": {"width": 0}, "layer": "below", "label": redone}
            yield {"type": "rect", **place, "x1": until, **band}


def _label(text: str, top: float) -> dict[str, Any]:
    return {
        "text": text,
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11},
    }


def _short_labels(units: Sequence[UnitReport]) -> list[str]:
    """Return the names of the units, without the host if all units have the same.

    Several slices of one GPU are numbered.
    """
    several = len({unit.host for unit in units}) > 1
    labels: list[str] = []
    counts: Counter[str] = Counter()
    for unit in units:
        name = unit_label(unit) if several else " ".join(filter(None, (f"GPU {unit.gpu}", unit.profile)))
        counts[name] += 1
        labels.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return labels


def _scaled(values: Sequence[float | None], name: str) -> list[float | None]:
    if name not in ("memory_mib", "host_memory_mib"):
        return list(values)
    return [None if value is None else round(value / MIB_PER_GIB, 2) for value in values]


def _local_times(report: WorkloadReport) -> list[datetime]:
    return [timezone.localtime(datetime.fromtimestamp(start, UTC)) for start in report.points]


def _middles(report: WorkloadReport) -> list[str]:
    """Return the middle of each point in the viewer's zone, for the axis of the chart."""
    half = timedelta(seconds=report.point_seconds / 2)
    return [f"{local + half:%Y-%m-%dT%H:%M:%S}" for local in _local_times(report)]


def _time_range(report: WorkloadReport) -> list[str]:
    """Return the start of the first point and the end of the last one in the viewer's zone."""
    times = _local_times(report)
    end = times[-1] + timedelta(seconds=report.point_seconds)
    return [f"{at:%Y-%m-%dT%H:%M:%S}" for at in (times[0], end)]


def _mean_share(percentages: Sequence[float]) -> float | None:
    return sum(percentages) / len(percentages) / 100 if percentages else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
