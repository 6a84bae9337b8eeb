"""Run studies of the number of GPUs in the background, one size after the other.

A study is claimed by one task. The task stores its progress and each finished size. If it dies, another task
continues the study after ``LOST_AFTER``. It uses the frozen demand and keeps the finished sizes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet

from scheduler.models import Pool
from telemetry.capacity.claim_locks import lock_study_claims
from telemetry.capacity.recorded import MAX_REQUESTS, recorded_demand
from telemetry.core.amounts import HOURS_PER_MONTH
from telemetry.core.capacity.quarter_replay import RecordedDemand, demand_text, read_demand, replay
from telemetry.core.capacity.size_figures import next_size, recorded_waits, size_figures, size_of_row
from telemetry.core.capacity.sized_pool import gpus_of_model, model_sizes, with_gpus
from telemetry.models import CapacityStudy
from telemetry.money.billing_months import month_of
from telemetry.money.pricing.billing_currencies import currency_of_month
from telemetry.money.rate_card import load_rate_card

QUARTER = timedelta(weeks=13)
LOST_AFTER = timedelta(minutes=5)
GIVE_UP_AFTER = timedelta(hours=12)  # since its request: a study that kills each worker must not block others
TIME_LIMIT = timedelta(minutes=25)
# Replays of each model that search for the smallest number of GPUs, after those of the fixed sizes.
MAX_BISECTIONS = 6
State = CapacityStudy.StudyState


class _OutOfTimeError(Exception):
    """The time limit of the study has passed."""


class _TakenOverError(Exception):
    """Another task has taken the study over, because this one was silent for too long."""


def create_study(
    pool: Pool, model: str, wait_limit_seconds: int, requested_by: Any, now: datetime
) -> CapacityStudy:
    """Create a study of the last quarter up to ``now``, which a background task will run."""
    return CapacityStudy.objects.create(
        pool=pool,
        model=model,
        wait_limit_seconds=wait_limit_seconds,
        start=now - QUARTER,
        end=now,
        requested_by=requested_by,
        created_at=now,
    )


def open_study(pool: Pool, model: str) -> CapacityStudy | None:
    """Return the study of the same pool and model that has not ended yet."""
    rows = CapacityStudy.objects.filter(pool=pool, model=model, state__in=(State.WAITING, State.RUNNING))
    return rows.order_by("created_at").first()


def run_next_study(clock: Callable[[], datetime]) -> CapacityStudy | None:
    """Run the oldest study that waits or was lost. Return it; None if there is none."""
    study = _claim(clock())
    if study is None:
        return None
    try:
        state = _StudyRun(study, clock).run()
    except _OutOfTimeError:
        state = State.CUT_SHORT
    except _TakenOverError:
        return CapacityStudy.objects.get(pk=study.pk)
    except Exception:
        _finish(study, State.FAILED, clock())
        raise
    _finish(study, state, clock())
    return CapacityStudy.objects.get(pk=study.pk)


def _claim(now: datetime) -> CapacityStudy | None:
    """Take the next study, so that no other task takes it.

    One study runs at a time, so that studies leave a process of the worker for other tasks. Without the lock,
    two tasks that both find no running study would claim one each.
    """
    with transaction.atomic():
        lock_study_claims()
        running = CapacityStudy.objects.filter(state=State.RUNNING)
        for lost in running.filter(active_at__lt=now - LOST_AFTER).order_by("created_at", "pk"):
            if lost.created_at < now - GIVE_UP_AFTER:
                _finish(lost, State.FAILED, now)
            elif running.filter(pk=lost.pk, active_at=lost.active_at).update(active_at=now):
                return CapacityStudy.objects.get(pk=lost.pk)
        study = _next_waiting_study()
        if study is None:
            return None
        CapacityStudy.objects.filter(pk=study.pk, state=State.WAITING).update(
            state=State.RUNNING, active_at=now
        )
        return CapacityStudy.objects.get(pk=study.pk)


def _next_waiting_study() -> CapacityStudy | None:
    """Return the study that waits longest; None while a study runs."""
    if CapacityStudy.objects.filter(state=State.RUNNING).exists():
        return None
    return CapacityStudy.objects.filter(state=State.WAITING).order_by("created_at", "pk").first()


def _finish(study: CapacityStudy, state: str, now: datetime) -> None:
    progress = F("progress") if state in (State.CUT_SHORT, State.FAILED) else 1.0
    CapacityStudy.objects.filter(pk=study.pk, state=State.RUNNING, active_at=study.active_at).update(
        state=state, ended_at=now, progress=progress
    )


def _claimed_row(study: CapacityStudy) -> QuerySet[CapacityStudy]:
    """Return the row of a study, or no row if another task has taken the study over meanwhile."""
    return CapacityStudy.objects.filter(pk=study.pk, state=State.RUNNING, active_at=study.active_at)


class _StudyRun:
    def __init__(self, study: CapacityStudy, clock: Callable[[], datetime]) -> None:
        self.study, self.clock = study, clock
        self.until = clock() + TIME_LIMIT
        self.progress_at = clock()

    def run(self) -> str:
        """Run the sizes that are missing. Return the state of the study."""
        demand = self._frozen_demand()
        models = self._models(demand)
        if not models or not any(request.counts for request in demand.requests):
            return State.EMPTY
        present = {model: len(gpus_of_model(demand.snapshot, model)) for model in models}
        # The present size and the sizes near it come first, because a study can be cut short.
        steps = sorted(
            (
                (abs(change), model, change, gpus)
                for model in models
                for change, gpus in model_sizes(present[model]).items()
            ),
        )
        done = {(size["model"], size["change"]) for size in self.study.sizes}
        base = None
        total = len(steps) + MAX_BISECTIONS * len(models)
        for number, (_, model, change, gpus) in enumerate(steps):
            if (model, change) in done:
                continue
            hardware = demand.snapshot if change == 0 else with_gpus(demand.snapshot, model, gpus)
            report = self._reporter(number, total)
            if change == 0:
                base = base or replay(demand, None, report)
                result = base
            else:
                result = replay(demand, hardware, report)
            self._store(asdict(size_figures(demand, result, model, change, gpus)))
        self._search(demand, present, len(steps), total)
        return State.DONE

    def _search(self, demand: RecordedDemand, present: dict[str, int], first: int, total: int) -> None:
        """Search the smallest number of GPUs of each model. ``first`` is the number of the next replay."""
        for place, (model, gpus) in enumerate(present.items()):
            self._bisect(demand, model, gpus, first + place * MAX_BISECTIONS, total)

    def _bisect(self, demand: RecordedDemand, model: str, present: int, number: int, total: int) -> None:
        """Replay sizes of a model between the largest that fails the limit and the smallest that keeps it."""
        for step in range(MAX_BISECTIONS):
            sizes = [size_of_row(row) for row in self.study.sizes if row["model"] == model]
            gpus = next_size(sizes, self.study.wait_limit_seconds)
            if gpus is None:
                return
            hardware = with_gpus(demand.snapshot, model, gpus)
            result = replay(demand, hardware, self._reporter(number + step, total))
            # Only the present number has the change 0.
            change = round((gpus / present - 1) * 100) or (1 if gpus > present else -1)
            self._store(asdict(size_figures(demand, result, model, change, gpus)))

    def _frozen_demand(self) -> RecordedDemand:
        study = self.study
        if study.inputs is not None:
            return read_demand(zlib.decompress(bytes(study.inputs)).decode())
        demand, facts = recorded_demand(study.pool_id, study.start, study.end, self.clock(), MAX_REQUESTS)
        models = self._models(demand)
        study.inputs = zlib.compress(demand_text(demand).encode(), 6)
        study.facts = {**asdict(facts), **self._costs(models)}
        study.recorded = {model: asdict(recorded_waits(demand, model)) for model in models}
        study.start = datetime.fromtimestamp(demand.start, UTC)
        self._write(
            self.clock(),
            **{name: getattr(study, name) for name in ("inputs", "facts", "recorded", "start")},
        )
        return demand

    def _models(self, demand: RecordedDemand) -> list[str]:
        present = sorted({unit.model for unit in demand.snapshot.units})
        return [model for model in present if self.study.model in ("", model)]

    def _costs(self, models: list[str]) -> dict[str, Any]:
        """Return the cost of one GPU in a month by model, from the rate card; None without a rate."""
        now = self.clock()
        card = load_rate_card(models)
        rates = {model: card.at(self.study.pool_id, model, now) for model in models}
        return {
            "currency": currency_of_month(month_of(now)),
            "cost_per_gpu_month": {
                model: None if rate is None else str(rate.cost * HOURS_PER_MONTH)
                for model, rate in rates.items()
            },
        }

    def _reporter(self, number: int, steps: int) -> Callable[[float], None]:
        def report(share: float) -> None:
            now = self.clock()
            if now > self.until:
                raise _OutOfTimeError
            if now - self.progress_at >= timedelta(seconds=1):
                self.progress_at = now
                self._write(now, progress=(number + share) / steps)

        return report

    def _store(self, size: dict[str, Any]) -> None:
        self.study.sizes = [*self.study.sizes, size]
        self._write(self.clock(), sizes=self.study.sizes)

    def _write(self, now: datetime, **values: Any) -> None:
        if not _claimed_row(self.study).update(active_at=now, **values):
            raise _TakenOverError
        self.study.active_at = now
