"""Return the levels below the charts as rows: the CSV files of their pages and the JSON of the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from portal.errors import Invalid
from portal.input_checks import display_value
from portal.reads.utilisation import drill
from portal.reads.utilisation.answers import ANSWERS, fleet_rows
from portal.reads.utilisation.drill_parameters import LEVELS
from portal.reads.utilisation.query import UtilisationScope
from portal.reads.utilisation.wait_requests import named_requests, wait_requests
from portal.wording.pages.money import drill_texts

Rows = list[list[Any]]
LEVEL_NAMES = (*LEVELS, "size")


@dataclass(frozen=True)
class LevelAnswer:
    """One level: the parameters that it needs, its columns, and the function that returns its rows.

    ``optional`` are parameters that it takes but does not need.
    """

    needs: tuple[str, ...]
    columns: tuple[str, ...]
    rows: Callable[[UtilisationScope, Mapping[str, str]], Rows]
    optional: tuple[str, ...] = ()


def checked_levels(answer: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a level. Raises Invalid for a missing or an ignored one."""
    level = LEVEL_FILES.get(answer)
    needs, optional = (level.needs, level.optional) if level else ((), ())
    for name in LEVEL_NAMES:
        if (name in given) == (name in needs) or (name in optional and name in given):
            continue
        text = drill_texts.LEVEL_NEEDED if name in needs else drill_texts.LEVEL_IGNORED
        value = display_value(given.get(name, ""))
        raise Invalid(
            {name: text.format(field=name, given=value, answer=answer)}, {name: given.get(name, "")}
        )
    return {name: given[name] for name in (*needs, *optional) if name in given}


def _fleet(scope: UtilisationScope, levels: Mapping[str, str]) -> Rows:
    return fleet_rows(scope, levels.get("first", ""), levels.get("last", ""))


def _host_gpus(scope: UtilisationScope, levels: Mapping[str, str]) -> Rows:
    host = drill.chosen_host(scope, levels["host"])
    starts = [start.isoformat() for start in drill.hours_of(scope)]
    return [
        [each.gpu.index, each.gpu.model, start, share]
        for each in drill.gpu_hours(scope, host)
        for start, share in zip(starts, each.busy, strict=True)
    ]


def _gpu_hours(scope: UtilisationScope, levels: Mapping[str, str]) -> Rows:
    host = drill.chosen_host(scope, levels["host"])
    gpu = drill.chosen_gpu(scope, host, levels["gpu"])
    starts = [start.isoformat() for start in drill.hours_of(scope)]
    hours = next((each for each in drill.gpu_hours(scope, host) if each.gpu.pk == gpu.pk), None)
    return [[start, share] for start, share in zip(starts, hours.busy, strict=True)] if hours else []


def _gpu_runs(scope: UtilisationScope, levels: Mapping[str, str]) -> Rows:
    gpu = drill.chosen_gpu(scope, drill.chosen_host(scope, levels["host"]), levels["gpu"])
    return [
        [
            str(run.workload.public_id) if run.workload else None,
            run.workload.name if run.workload else None,
            run.workload.project.team.slug if run.workload else None,
            run.start.isoformat(),
            run.end.isoformat() if run.end else None,
            run.share,
        ]
        for run in drill.gpu_runs(scope, gpu)
    ]


def _run_samples(scope: UtilisationScope, levels: Mapping[str, str]) -> Rows:
    gpu = drill.chosen_gpu(scope, drill.chosen_host(scope, levels["host"]), levels["gpu"])
    run = drill.run_samples(scope, gpu, levels["run"])
    return [
        [name, datetime.fromtimestamp(seconds, UTC).isoformat(), value]
        for name, points in run.series.items()
        for seconds, value in points
    ]


def _wait_requests(scope: UtilisationScope, levels: Mapping[str, str]) -> Rows:
    found = wait_requests(scope, levels["size"])
    return [
        [
            *(str(work.public_id), work.name, work.project.team.slug, work.owner.get_username()),
            *(work.pool.slug, work.units, work.hosts, work.submitted_at.isoformat()),
            *(wait.waited, wait.still_waiting, wait.preemptions, work.state),
        ]
        for work, wait in named_requests(found.rows)
    ]


# Answers of the API that need a level. The pages of the levels have the same rows as CSV.
LEVEL_ANSWERS: dict[str, LevelAnswer] = {
    "host-gpus": LevelAnswer(("host",), ("gpu", "model", "start", "utilisation"), _host_gpus),
    "gpu-hours": LevelAnswer(("host", "gpu"), ("start", "utilisation"), _gpu_hours),
    "gpu-runs": LevelAnswer(
        ("host", "gpu"), ("workload", "name", "team", "start", "end", "share"), _gpu_runs
    ),
    "run-samples": LevelAnswer(("host", "gpu", "run"), ("reading", "at", "value"), _run_samples),
    "wait-requests": LevelAnswer(
        ("size",),
        (
            *("workload", "name", "team", "person", "pool", "units", "hosts", "submitted_at"),
            *("waited_seconds", "still_waiting", "preemptions", "state"),
        ),
        _wait_requests,
    ),
}
LEVEL_FILES = {"fleet": LevelAnswer((), ANSWERS["fleet"].columns, _fleet, ("first", "last")), **LEVEL_ANSWERS}
