"""Describe changes of a quota: each value before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portal.wording.formatting import Numbers, model_name
from scheduler.models import Quota

VALUE_LABELS = {
    "guaranteed_gpus": "guaranteed",
    "borrow_limit_gpus": "may borrow",
    "gpu_hours": "GPU-hours",
    "period": "period",
    "when_used_up": "when used up",
}
NO_LIMIT = "no limit"


@dataclass(frozen=True)
class ChangedValue:
    """One value of a quota that changes, as texts."""

    name: str
    label: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.label} {self.before} → {self.after}"


def changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[ChangedValue]:
    """Return the values that differ, in the order of the form."""
    return [
        ChangedValue(name, label, _value_text(name, before.get(name)), _value_text(name, after.get(name)))
        for name, label in VALUE_LABELS.items()
        if before.get(name) != after.get(name)
    ]


def quota_change_summary(payload: Numbers) -> str:
    """Return a short text for a request: ``a quota of H100 80GB: guaranteed 8 → 9, may borrow 4 → no limit``.

    Requests of older versions do not have the values before. Their text has all requested values.
    """
    model = model_name(str(payload.get("model")))
    before = payload.get("before")
    if not isinstance(before, Mapping):
        return _whole_quota_text(payload, model)
    return f"a quota of {model}: {', '.join(map(str, changed_values(before, payload)))}"


def _whole_quota_text(payload: Numbers, model: str) -> str:
    limit = payload.get("borrow_limit_gpus")
    lend = "any number" if limit is None else f"{limit}"
    worth = ""
    if payload.get("gpu_hours") is not None:
        then = "then only borrowing" if payload.get("when_used_up") != "refuse" else "then nothing new"
        worth = f", worth {payload['gpu_hours']} GPU-hours a {payload.get('period')}, {then}"
    return f"a guarantee of {payload.get('guaranteed_gpus')} × {model}, borrowing {lend} more{worth}"


def _value_text(name: str, value: Any) -> str:
    if value is None:
        return NO_LIMIT
    if name == "when_used_up":
        return str(Quota.WhenUsedUp(value).label)
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)
