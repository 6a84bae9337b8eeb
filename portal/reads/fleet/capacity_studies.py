"""Read the studies of the number of GPUs, with the figures that page, API and command line show."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from portal.wording.capacity import study_texts
from portal.wording.chargeback.overview_texts import Finding
from portal.wording.pages import capacity_pages
from telemetry.capacity.recorded import MAX_REQUESTS
from telemetry.core.amounts import round_amount
from telemetry.core.capacity.size_figures import (
    SizeFigures,
    WaitFigures,
    keeps_wait,
    size_of_row,
    smallest_size,
    wait_error,
)
from telemetry.core.currencies import smallest_unit
from telemetry.models import CapacityStudy

LISTED = 50
TRUSTED_ERROR = 0.2  # a larger error of the replay is marked


@dataclass(frozen=True)
class StudySize:
    """One replayed size. Costs are of the GPUs of this model in a month; None without a rate."""

    change: int
    gpus: int
    requests: int
    p50_seconds: float | None
    p95_seconds: float | None
    not_started: int
    idle: float
    cost_per_month: Decimal | None
    extra_cost_per_month: Decimal | None
    keeps_limit: bool


@dataclass(frozen=True)
class ModelStudy:
    """The sizes of one model. ``recommended`` is the smallest size that keeps the limit; None if none does.

    ``wait_error`` compares the replay of the present size with the recorded waits. It is unknown if
    ``gpus_changed``: the recorded waits were those of another number of GPUs.
    """

    model: str
    sizes: list[StudySize]
    recommended: StudySize | None
    recorded_p50_seconds: float | None
    recorded_p95_seconds: float | None
    wait_error: float | None
    gpus_changed: bool = False

    @property
    def is_trusted(self) -> bool:
        """Return True if the replayed waits are close to the recorded waits."""
        return self.wait_error is not None and self.wait_error <= TRUSTED_ERROR

    @property
    def present(self) -> StudySize:
        """Return the size with the present number of GPUs."""
        return next(size for size in self.sizes if size.change == 0)

    @property
    def trust(self) -> str:
        """Return the comparison of the replayed and the recorded waits, in words."""
        if self.gpus_changed:
            return capacity_pages.GPUS_CHANGED.format(model=self.model)
        return study_texts.trust_sentence(
            self.present.gpus,
            self.present.p95_seconds,
            self.recorded_p95_seconds,
            self.wait_error,
            self.is_trusted,
        )

    def finding(self, limit: int, currency: str) -> Finding:
        """Return the smallest number of GPUs that keeps the limit, in words."""
        best = self.recommended
        return study_texts.size_finding(
            self.model,
            best.gpus if best else None,
            smallest=best is not None and best is self.sizes[0],
            extra=best.extra_cost_per_month if best else None,
            currency=currency,
            limit=limit,
        )


@dataclass(frozen=True)
class StudyDetails:
    """A study with its results so far. ``notes`` say what the replay leaves out."""

    study: CapacityStudy
    models: list[ModelStudy]
    currency: str
    notes: list[str]


def capacity_studies() -> QuerySet[CapacityStudy]:
    """Return the studies, the newest first, without their frozen demand."""
    rows = CapacityStudy.objects.select_related("pool", "requested_by").defer("inputs")
    return rows.order_by("-created_at", "-pk")


def capacity_study(public_id: UUID) -> StudyDetails | None:
    """Return a study with its figures; None if there is none."""
    study = capacity_studies().filter(public_id=public_id).first()
    return None if study is None else study_details(study)


def study_details(study: CapacityStudy) -> StudyDetails:
    """Return the figures of a study."""
    models = sorted({size["model"] for size in study.sizes})
    return StudyDetails(
        study,
        [_model_study(study, model) for model in models],
        study.facts.get("currency", ""),
        capacity_pages.study_notes(study.facts, study.start, study.end, MAX_REQUESTS),
    )


def _model_study(study: CapacityStudy, model: str) -> ModelStudy:
    figures = sorted(
        (size_of_row(size) for size in study.sizes if size["model"] == model), key=lambda size: size.gpus
    )
    recorded = _waits(study.recorded[model])
    present = next(size for size in figures if size.change == 0)
    best = smallest_size(figures, study.wait_limit_seconds)
    monthly = study.facts["cost_per_gpu_month"].get(model)
    cost, unit = None if monthly is None else Decimal(monthly), smallest_unit(study.facts["currency"])
    rows = [_size_row(size, present.gpus, cost, unit, study.wait_limit_seconds) for size in figures]
    recommended = next((row for row in rows if best is not None and row.gpus == best.gpus), None)
    # Studies of earlier versions do not know it.
    changed = model in study.facts.get("changed_models", ())
    error = None if changed else wait_error(present.waits, recorded)
    return ModelStudy(model, rows, recommended, recorded.p50, recorded.p95, error, changed)


def _size_row(
    size: SizeFigures, present: int, monthly: Decimal | None, unit: Decimal, limit: int
) -> StudySize:
    return StudySize(
        size.change,
        size.gpus,
        size.waits.requests,
        size.waits.p50,
        size.waits.p95,
        size.waits.not_started,
        size.idle,
        None if monthly is None else round_amount(monthly * size.gpus, unit),
        None if monthly is None else round_amount(monthly * (size.gpus - present), unit),
        keeps_wait(size.waits, limit),
    )


def _waits(values: dict[str, Any]) -> WaitFigures:
    return WaitFigures(**values)
