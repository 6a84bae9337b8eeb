"""Write the metrics in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime

from portal import policy
from portal.models import User
from portal.reads.monitoring.definitions import METRICS, MetricValues
from portal.reads.monitoring.ingest_metrics import ingest_metrics
from portal.reads.monitoring.money_metrics import money_metrics
from portal.reads.monitoring.pool_metrics import (
    alert_metrics,
    engine_metrics,
    gpu_metrics,
    host_metrics,
    team_metrics,
    workload_metrics,
)
from portal.reads.monitoring.single_gpus import single_gpu_metrics
from portal.reads.monitoring.system_metrics import system_metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DURATION = "gpupool_metrics_duration_seconds"


def metrics_text(viewer: User, now: datetime, *, include_gpus: bool = False) -> str:
    """Return the metrics that the viewer may see. The number of queries is fixed.

    ``include_gpus`` adds the metrics of each single GPU. Raises NotAllowed.
    """
    policy.require(viewer, "metrics.see")
    began = time.perf_counter()
    values = _values(viewer, now, include_gpus=include_gpus)
    values[DURATION] = [((), time.perf_counter() - began)]
    return "".join(_lines(values))


def _values(viewer: User, now: datetime, *, include_gpus: bool) -> dict[str, MetricValues]:
    """Return the values of each metric that belongs in the answer."""
    pools = dict(policy.visible_pools(viewer).values_list("pk", "slug"))
    teams = policy.visible_teams(viewer)
    return {
        **gpu_metrics(pools, now),
        **host_metrics(pools, now),
        **team_metrics(pools, teams, now),
        **workload_metrics(pools),
        **engine_metrics(),
        **ingest_metrics(pools, now),
        **alert_metrics(pools),
        **system_metrics(viewer, now),
        **(money_metrics(now) if policy.sees_all_charges(viewer) else {}),
        **(single_gpu_metrics(now) if include_gpus else {}),
    }


def _lines(values: Mapping[str, MetricValues]) -> Iterator[str]:
    texts: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}  # the metrics of a GPU have equal labels
    for name, definition in METRICS.items():
        if name not in values:
            continue
        yield f"# HELP {name} {definition.help_text}\n# TYPE {name} {definition.kind}\n"
        for labels, value in values[name]:
            key = (definition.labels, labels)
            if key not in texts:
                texts[key] = _labels_text(*key)
            yield f"{name}{texts[key]} {value!r}\n"


def _labels_text(names: tuple[str, ...], labels: tuple[str, ...]) -> str:
    pairs = zip(names, labels, strict=True)
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return f"{{{text}}}" if text else ""


def _escaped(label_value: str) -> str:
    return label_value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
