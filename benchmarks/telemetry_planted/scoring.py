"""Send the samples of planted cases, evaluate the alerts, and compare both."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.telemetry_planted.case_rows import write_cases
from benchmarks.telemetry_planted.cases import (
    KINDS,
    PERIOD_MINUTES,
    PlantedCase,
    clean_cases,
    empty_reading,
    planted_cases,
)

SEED = 20_260_315
SAMPLE_SECONDS = 20
EVALUATED_MINUTES = 12  # the alerts are evaluated in each of the last minutes
Subject = tuple[str, int]  # kind and id


def measure(each: int = 50, clean: int = 500, *, now: datetime | None = None) -> dict[str, Any]:
    """Plant ``each`` cases of each kind and ``clean`` clean cases, and score the alerts.

    Django must be set up. Return ``{"planted": {...}, "precision": {...}, "recall": {...}}``, each by kind.
    """
    now = (now or datetime.now(UTC)).replace(second=0, microsecond=0)
    rng = random.Random(SEED)
    cases = [*planted_cases(rng, each), *clean_cases(rng, clean)]
    write_cases(cases, now)
    _ingest(cases, rng, now)
    _evaluate(now)
    return _scores({case.subject: case.label for case in cases})


def _scores(labels: Mapping[Subject, str]) -> dict[str, Any]:
    found = _alerted(labels)
    planted = Counter(labels.values())
    right = {kind: sum(labels[subject] == kind for subject in found[kind]) for kind in KINDS}
    return {
        "planted": {kind: planted[kind] for kind in KINDS},
        "precision": {kind: round(right[kind] / max(1, len(found[kind])), 4) for kind in KINDS},
        "recall": {kind: round(right[kind] / max(1, planted[kind]), 4) for kind in KINDS},
    }


def _alerted(labels: Mapping[Subject, str]) -> dict[str, set[Subject]]:
    """Return the subjects of the cases that had an alert of each kind."""
    from telemetry.models import Alert

    found: dict[str, set[Subject]] = {kind: set() for kind in KINDS}
    for alert, text in Alert.objects.values_list("kind", "subject"):
        name, _, number = text.partition(":")
        subject = (name, int(number))
        for kind, alerts in KINDS.items():
            if alert in alerts and subject in labels:
                found[kind].add(subject)
    return found


def _ingest(cases: Sequence[PlantedCase], rng: random.Random, now: datetime) -> None:
    """Send the samples of the period as the agents do, store them, and roll them up."""
    from agent.protocol import SampleBatch
    from telemetry.ingest import agent_api, redis_client
    from telemetry.ingest.partitions import maintain_partitions
    from telemetry.ingest.samples import drain_stream
    from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
    from telemetry.rollups.roll_up import roll_up_due_buckets

    stream = redis_client.redis_client()
    stream.delete(SAMPLE_STREAM_KEY)
    maintain_partitions(now)
    start = now - timedelta(minutes=PERIOD_MINUTES)
    for minute in range(PERIOD_MINUTES):
        by_host: dict[int, list[Any]] = {}
        for case in cases:
            for gpu, unit in enumerate(case.units):
                by_host.setdefault(unit.gpu.host_id, []).extend(_samples(case, gpu, unit, minute, start, rng))
        for host, rows in by_host.items():
            if rows:
                agent_api.enqueue_batch(host, SampleBatch(sequence=minute + 1, rows=rows), now)
        while stream.xlen(SAMPLE_STREAM_KEY):
            drain_stream(stream, now)
    roll_up_due_buckets(now, max_buckets=None)


def _samples(
    case: PlantedCase, gpu: int, unit: Any, minute: int, start: datetime, rng: random.Random
) -> Iterator[Any]:
    from agent.protocol import SampleRow

    for second in range(0, 60, SAMPLE_SECONDS):
        at = minute + second / 60
        # A GPU that no work holds is empty.
        found = (
            empty_reading(rng, at, gpu)
            if case.behaviour is None or at < case.since
            else case.behaviour(rng, at, gpu)
        )
        if found is not None:
            yield SampleRow(
                unit=unit.uuid,
                ts=start.timestamp() + at * 60,
                utilisation=found.utilisation,
                power_w=max(0.0, found.power_w),
                pcie_rx_kib=found.pcie_kib,
                pcie_tx_kib=found.pcie_kib // 2,
                memory_used_mib=10_000,
                temperature_c=50.0,
                processes=found.processes,
            )


def _evaluate(now: datetime) -> None:
    from telemetry.alerts.evaluate import evaluate_alerts

    for minute in range(EVALUATED_MINUTES, -1, -1):
        evaluate_alerts(now - timedelta(minutes=minute))
