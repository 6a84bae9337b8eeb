"""Render the levels below the map of the fleet: hosts, one host, one GPU, and the samples of one run."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render

from portal.reads.utilisation import drill
from portal.reads.utilisation.drill_answers import LEVEL_FILES, checked_levels
from portal.reads.utilisation.drill_parameters import check_levels, level_parameters
from portal.streamed_file import StreamedFile
from portal.web.money.chart import UtilisationChart
from portal.web.money.utilisation.drill_charts import gpu_chart, host_chart, sample_charts
from portal.web.money.utilisation.fleet_chart import fleet_address, fleet_map_chart, level_file_address
from portal.web.money.utilisation.query import UtilisationQuery
from portal.web.money.utilisation.views import utilisation_query
from portal.web.page.access import InvalidAddress, address_checks, sign_in_required
from portal.web.page.csv_export import csv_response
from portal.wording.pages.money import drill_texts, money_pages
from scheduler.models import Workload
from telemetry.exports.sample_files import SampleScope, sample_file
from telemetry.exports.table_files import TABLE_FILES

# The file of every stored sample of a run on one GPU, and the answers whose rows a level draws.
SAMPLE_FILE = "samples"
FILES = ("fleet", "host-gpus", "gpu-hours", "gpu-runs", "run-samples", SAMPLE_FILE)


@sign_in_required
def fleet(request: HttpRequest) -> HttpResponseBase:
    """Render the level that the parameters ``first`` and ``last``, ``host``, ``gpu`` and ``run`` choose."""
    with address_checks():
        levels, others = level_parameters(request.GET.dict())  # type: ignore[arg-type]
        check_levels(levels)
    query = utilisation_query(request, others)
    with address_checks():
        charts, level = _charts(query, levels)
    answer, files = _files(query, levels)
    context = {
        "charts": [{"name": name, "chart": chart, "csv": answer} for name, chart in charts.items()],
        "files": files,
        "crumbs": _crumbs(query, levels),
        "level": level,
        "period": query.period.text(query.now),
        "is_long": query.filters.is_long,
        "long_text": drill_texts.EMPTY_PERIOD,
        "earlier": fleet_address(query, **query.period.moved(-1), **levels),
        "later": fleet_address(query, **query.period.moved(1), **levels)
        if query.period.end < query.now
        else "",
    }
    return render(request, "manage/utilisation_fleet.html", context)


@sign_in_required
def level_csv(request: HttpRequest, answer: str) -> HttpResponseBase:
    """Return the data of a level as a CSV download."""
    if answer not in FILES:
        raise InvalidAddress(money_pages.CHART_UNKNOWN.format(given=answer[:30], allowed=", ".join(FILES)))
    with address_checks():
        given, others = level_parameters(request.GET.dict())  # type: ignore[arg-type]
        levels = checked_levels(_level_of(answer), given)
        check_levels(levels)
    query = utilisation_query(request, others)
    with address_checks():
        if answer == SAMPLE_FILE:
            return _sample_file(query, levels)
        rows = LEVEL_FILES[answer].rows(query, levels)
    return csv_response(f"{answer}.csv", LEVEL_FILES[answer].columns, rows)


def _sample_file(query: UtilisationQuery, levels: dict[str, str]) -> StreamedFile:
    """Return every stored sample of a run on one GPU, with all readings."""
    host = drill.chosen_host(query, levels["host"])
    run = drill.held_run(query, drill.chosen_gpu(query, host, levels["gpu"]), levels["run"])
    work = Workload.objects.filter(pk=run.workload.pk)
    scope = SampleScope([host.pk], run.start, run.end, query.now, workloads=work, units=run.units)
    return StreamedFile(f"{SAMPLE_FILE}.csv", TABLE_FILES["csv"][0], sample_file("csv", scope))


def _files(query: UtilisationQuery, levels: dict[str, str]) -> tuple[str, list[dict[str, str]]]:
    """Return the address of the CSV file of the charts of a level, and links to its other files."""
    answer, others = "fleet", []
    if "run" in levels:
        answer, others = "run-samples", [SAMPLE_FILE]
    elif "gpu" in levels:
        answer, others = "gpu-runs", ["gpu-hours"]
    elif "host" in levels:
        answer = "host-gpus"
    files = [
        {"text": drill_texts.FILE_LABELS[name], "url": _file_address(query, name, levels)} for name in others
    ]
    return _file_address(query, answer, levels), files


def _file_address(query: UtilisationQuery, answer: str, levels: dict[str, str]) -> str:
    level = LEVEL_FILES[_level_of(answer)]
    taken = {name: levels[name] for name in (*level.needs, *level.optional) if name in levels}
    return level_file_address(query, answer, taken)


def _level_of(answer: str) -> str:
    return "run-samples" if answer == SAMPLE_FILE else answer


def _charts(query: UtilisationQuery, levels: dict[str, str]) -> tuple[dict[str, UtilisationChart], str]:
    """Return the charts of a level by name, and the title of the level."""
    if "host" not in levels:
        first, last = levels.get("first", ""), levels.get("last", "")
        title = drill_texts.ROW_OF_HOSTS.format(first=first, last=last) if first else drill_texts.FLEET
        return {"fleet": fleet_map_chart(query, first, last)}, title
    host = drill.chosen_host(query, levels["host"])
    if "gpu" not in levels:
        return {"host": host_chart(query, host)}, host.name
    gpu = drill.chosen_gpu(query, host, levels["gpu"])
    if "run" not in levels:
        return {"gpu": gpu_chart(query, host, gpu)}, f"GPU {gpu.index}"
    run = drill.run_samples(query, gpu, levels["run"])
    charts = sample_charts(query, host, gpu, run)
    named = {f"samples-{number}": chart for number, chart in enumerate(charts, start=1)}
    return named, run.workload.name


def _crumbs(query: UtilisationQuery, levels: dict[str, str]) -> list[dict[str, str]]:
    """Return the levels above the shown one, each with its address."""
    crumbs = [
        {"text": drill_texts.UTILISATION, "url": query.address()},
        {"text": drill_texts.FLEET, "url": fleet_address(query)},
    ]
    at: dict[str, str] = {}
    for name in ("host", "gpu", "run"):
        if name in levels:
            at[name] = levels[name]
            text = f"GPU {levels[name]}" if name == "gpu" else levels[name]
            crumbs.append({"text": text, "url": fleet_address(query, **at)})
    # The last level is the page itself.
    return crumbs if "first" in levels else crumbs[:-1]
