"""Compare the values of a requested quota with those of the present one.

The payload of a request has all values of the quota, and under ``before`` the values that the quota had
when the request was made. The approval leaves values as they are that equal their values before.
Requests of older versions have no ``before``; their approval sets all values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portal.models import Submission
from portal.services.approvals.payloads import pool_of_submission
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Pool, Quota, Team

QUOTA_VALUES = ("guaranteed_gpus", "borrow_limit_gpus", "gpu_hours", "period", "when_used_up")
VALUES_WITHOUT_QUOTA: dict[str, Any] = {
    "guaranteed_gpus": 0,
    "borrow_limit_gpus": None,
    "gpu_hours": None,
    "period": Quota.Period.MONTH.value,
    "when_used_up": Quota.WhenUsedUp.BORROW.value,
}


def present_values(team: Team, pool: Pool, model: str) -> dict[str, Any]:
    """Return the values of a team's present quota, in GPUs."""
    return values_of(Quota.objects.filter(team=team, pool=pool, model=model).first())


def values_of(quota: Quota | None) -> dict[str, Any]:
    if quota is None:
        return dict(VALUES_WITHOUT_QUOTA)
    return {
        "guaranteed_gpus": _gpus(quota.guaranteed_slots),
        "borrow_limit_gpus": _gpus(quota.borrow_limit_slots),
        "gpu_hours": quota.gpu_hours,
        "period": quota.hours_period,
        "when_used_up": quota.when_used_up,
    }


def requested_values(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a request changes, by name."""
    given = {name: payload.get(name, VALUES_WITHOUT_QUOTA[name]) for name in QUOTA_VALUES}
    before = payload.get("before")
    if not isinstance(before, Mapping):
        return given
    return {name: value for name, value in given.items() if value != before.get(name)}


def values_after(payload: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Return all values of the quota after the approval of a request."""
    return {**present, **requested_values(payload)}


def agreed_payload(submission: Submission, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of a submission with the approver's changes.

    The approver changes the values that the quota has at present, not those at the time of the request.
    """
    payload = {**submission.payload, **changes}
    if submission.kind == Submission.Kind.QUOTA_CHANGE and changes and "before" in payload:
        present = present_values(submission.team, pool_of_submission(submission), payload["model"])
        payload["before"] = {**payload["before"], **{name: present.get(name) for name in changes}}
    return payload


def slots_of(gpus: float | None) -> int | None:
    return None if gpus is None else round(gpus * SLOTS_PER_GPU)


def _gpus(slots: int | None) -> float | None:
    """Return slots as GPUs: a whole number if possible, as forms and requests give it."""
    if slots is None:
        return None
    return slots // SLOTS_PER_GPU if slots % SLOTS_PER_GPU == 0 else slots / SLOTS_PER_GPU
