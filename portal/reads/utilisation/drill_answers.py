"""Return the levels below the map of the fleet as rows, for the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from portal.reads.utilisation import drill
from portal.reads.utilisation.query import UtilisationScope

Rows = list[list[Any]]


@dataclass(frozen=True)
class LevelAnswer:
    """One level: the parameters that it needs, its columns, and the function that returns its rows."""

    needs: tuple[str, ...]
    columns: tuple[str, ...]
    rows: Callable[[UtilisationScope, Mapping[str, str]], Rows]


def _gpu_hours(scope: UtilisationScope, levels: Mapping[str, str]) -> Rows:
    host = drill.chosen_host(scope, levels["host"])
    starts = [start.isoformat() for start in drill.hours_of(scope)]
    return [
        [each.gpu.index, each.gpu.model, start, share]
        for each in drill.gpu_hours(scope, host)
        for start, share in zip(starts, each.busy, strict=True)
    ]


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


LEVEL_ANSWERS: dict[str, LevelAnswer] = {
    "host-gpus": LevelAnswer(("host",), ("gpu", "model", "start", "utilisation"), _gpu_hours),
    "gpu-runs": LevelAnswer(
        ("host", "gpu"), ("workload", "name", "team", "start", "end", "share"), _gpu_runs
    ),
    "run-samples": LevelAnswer(("host", "gpu", "run"), ("reading", "at", "value"), _run_samples),
}
