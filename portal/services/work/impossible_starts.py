"""Refuse a request that could never start, and warn about one that starts only after a larger quota."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from portal.answer_cache import cached_answer
from portal.errors import Invalid
from portal.hardware_request import HardwareRequest, field_to_change, network_warnings
from portal.input_checks import display_value
from portal.models import User
from portal.services.work.request_checks import WorkloadRequest, workload_columns
from portal.wording import reason_texts
from scheduler import services as engine
from scheduler.models import Workload


def refuse_if_never_starts(actor: User, request: WorkloadRequest, now: datetime) -> None:
    """Raise Invalid if the request could never start under its team's present and possible quotas.

    A request that could start after a quota change is accepted: ``submission_warning`` says so.
    """
    never = _cached_never_starts(now, owner=actor, **workload_columns(request))
    if never is not None and not never.may_be_granted:
        field = field_to_change(never.code, never.numbers)
        value = request.hardware.columns["models_wanted" if field == "models" else field]
        raise Invalid(
            {field: reason_texts.never_starts_sentence(never.code, never.numbers, actor)},
            {field: display_value(value)},
        )


def submission_warning(workload: Workload, viewer: User, now: datetime) -> str:
    """Return warnings for a workload that was just submitted, or an empty text.

    It warns if the workload cannot start before its team gets a larger quota, or if its hosts would not reach
    each other.
    """
    names = ("project", "pool", "owner", "preemptible", "priority", "max_runtime_seconds", "reservation")
    never = _cached_never_starts(
        now, **{name: getattr(workload, name) for name in (*names, *HardwareRequest.__dataclass_fields__)}
    )
    warnings = (
        [] if never is None else [reason_texts.never_starts_sentence(never.code, never.numbers, viewer)]
    )
    return " ".join([*warnings, *network_warnings(workload.pool, workload)])


def _cached_never_starts(now: datetime, **columns: Any) -> engine.ImpossibleStart | None:
    """Return why the request could never start, or None.

    Caches the answer: many equal submissions are planned once.
    """
    asked = {
        name: str(value) for name, value in columns.items() if name in HardwareRequest.__dataclass_fields__
    }
    rows = [getattr(columns[name], "pk", None) for name in ("pool", "project", "owner", "reservation")]
    facts = [
        columns["preemptible"],
        columns["priority"],
        columns["max_runtime_seconds"],
        *sorted(asked.items()),
    ]
    question = hashlib.sha256(repr((rows, facts)).encode()).hexdigest()
    return cached_answer(("never", question), now, lambda: engine.impossible_start(now=now, **columns))
