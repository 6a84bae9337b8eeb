"""Scrape the dcgm-exporters that are due, and store their values.

The agent's samples are the rows of a unit. The values of a scrape only fill readings that the agent's sample
lacks (``telemetry/ingest/dcgm_fill.py``), so that two sources never count twice.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db import transaction

from telemetry.dcgm import http_fetch, slow_readings
from telemetry.dcgm.fields import SAMPLE_FIELDS
from telemetry.dcgm.host_gpus import load_gpus
from telemetry.dcgm.http_fetch import Answer
from telemetry.dcgm.scraped_values import ScrapedValues, read_values
from telemetry.dcgm.target_locks import claim_due_targets
from telemetry.dcgm.xid_events import record_new_xids
from telemetry.models import DcgmScrape, DcgmTarget, ReadingFault
from telemetry.readings.faults import FaultCount, count_faults

SCRAPE_INTERVAL = timedelta(seconds=30)  # dcgm-exporter reads the GPUs every 30 seconds by default
# One run takes at most TARGETS_PER_RUN / MAX_CONNECTIONS timeouts, which is below the time limit of a task.
TARGETS_PER_RUN = 250
SCRAPES_KEPT = timedelta(hours=1)  # samples that arrive later than this are not filled


@dataclass(frozen=True)
class Scraped:
    """The values of one answer, and the problem of the scrape; "" if there is none."""

    problem: str
    values: ScrapedValues


@dataclass
class ScrapeResult:
    """The numbers of targets that were scraped, and of those with a problem."""

    targets: int = 0
    problems: int = 0


def scrape_due_targets(now: datetime, *, timeout: float = http_fetch.TIMEOUT_SECONDS) -> ScrapeResult:
    """Scrape the targets that are due, at most TARGETS_PER_RUN, and store their values.

    Concurrent runs share the work: a run claims a target by setting the time of its next scrape.
    """
    targets = claim_due_targets(now, now + SCRAPE_INTERVAL, TARGETS_PER_RUN)
    gpus = load_gpus([target.host for target in targets])
    scraped: list[tuple[DcgmTarget, datetime, Scraped]] = []
    begun = time.monotonic()

    def read(place: int, answer: Answer) -> None:
        target, at = targets[place], now + timedelta(seconds=time.monotonic() - begun)
        values = read_values(answer.text, gpus[target.host_id]) if not answer.problem else ScrapedValues()
        problem = answer.problem or ("" if values.units or values.slow else DcgmTarget.Problem.NO_GPU)
        scraped.append((target, at, Scraped(problem, values)))

    if targets:
        asyncio.run(http_fetch.fetch_all([target.url for target in targets], read, timeout=timeout))
    for target, at, each in scraped:
        _store(target, at, each)
    return ScrapeResult(len(scraped), sum(1 for *_, each in scraped if each.problem))


def _store(target: DcgmTarget, at: datetime, scraped: Scraped) -> None:
    """Store the result of one scrape in one transaction.

    Nothing is stored if an operator has changed or removed the target in the meantime.
    """
    values, succeeded = scraped.values, not scraped.problem
    with transaction.atomic():
        changes: dict[str, Any] = {"problem": scraped.problem}
        if succeeded:
            changes |= {
                "succeeded_at": at,
                "fields_read": len(values.fields),
                "units_read": len(values.units),
            }
        if succeeded or scraped.problem == DcgmTarget.Problem.NO_GPU:
            changes |= {
                "unreadable_lines": values.unreadable_lines,
                "refused_gpus": len(values.refused),
            }
        if not DcgmTarget.objects.filter(pk=target.pk, url=target.url).update(**changes):
            return
        if values.units:
            _insert_scrape(target.host_id, at, values)
        record_new_xids(target.host, slow_readings.store_changes(values.slow, at), at)
        count_faults(_faults(target.host_id, at, values))


def _insert_scrape(host: int, at: datetime, values: ScrapedValues) -> None:
    units = sorted(values.units)
    matrix = np.array(
        [[values.units[unit].get(name) for name in SAMPLE_FIELDS] for unit in units], dtype="<f8"
    )
    DcgmScrape.objects.create(host_id=host, at=at, units=units, values=matrix.tobytes())


def _faults(host: int, at: datetime, values: ScrapedValues) -> list[FaultCount]:
    kinds = ReadingFault.Kind
    found = [
        FaultCount(host, name, kinds.OUT_OF_BOUNDS, 1, at, value, ReadingFault.Source.DCGM)
        for name, value in values.impossible
    ]
    if values.unreadable_lines:
        count = values.unreadable_lines
        found.append(
            FaultCount(host, "line", kinds.UNREADABLE_LINE, count, at, source=ReadingFault.Source.DCGM)
        )
    if values.refused:
        count = len(values.refused)
        found.append(FaultCount(host, "gpu", kinds.FOREIGN_GPU, count, at, source=ReadingFault.Source.DCGM))
    return found


def prune(now: datetime, *, slow_days: int) -> None:
    """Delete scrapes whose samples have arrived, and changes that are older than ``slow_days``.

    The last change of each reading is kept, because the reading still has its value.
    """
    DcgmScrape.objects.filter(at__lt=now - SCRAPES_KEPT)._raw_delete(using="default")
    slow_readings.prune(now - timedelta(days=slow_days))
