"""Describe the late fact that caused a correction, as a code and the values for its sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from scheduler.models import Allocation, HostStateChange
from scheduler.state.states import RepairState
from telemetry.core.charge_model import ChargeBucket, GpuCondition
from telemetry.core.cost_shares import CostSplit, split_text
from telemetry.money.charging_inputs import gpu_condition


class CauseCode(StrEnum):
    """A kind of late fact. The sentences are in ``portal/wording/pages/money/correction_texts.py``."""

    HOST_SILENT = "host_silent"
    HOST_MAINTENANCE = "host_maintenance"
    HOST_UNHEALTHY = "host_unhealthy"
    HOST_WELL = "host_well"
    WORK_ENDED = "work_ended"
    WORK_PREEMPTED = "work_preempted"
    WORK_LOST = "work_lost"
    COST_CENTRE_NAMED = "cost_centre_named"
    COST_CENTRE_CHANGED = "cost_centre_changed"


_CODE_BY_CONDITION = {
    GpuCondition.SILENT: CauseCode.HOST_SILENT,
    GpuCondition.MAINTENANCE: CauseCode.HOST_MAINTENANCE,
    GpuCondition.UNHEALTHY: CauseCode.HOST_UNHEALTHY,
    GpuCondition.WELL: CauseCode.HOST_WELL,
}


@dataclass(frozen=True)
class CorrectionCause:
    """The code of a late fact and its values. Times are ISO 8601 texts, because JSON has no times."""

    code: str
    numbers: dict[str, Any] = field(default_factory=dict)


def host_state_cause(change: HostStateChange) -> CorrectionCause:
    """Return the cause of a correction after a change of a host's state.

    ``until`` is the time of the host's next change; None if the state still lasts.
    """
    state = (change.lease_state, change.admin_state, change.repair_state)
    following = HostStateChange.objects.filter(host=change.host_id, at__gt=change.at).order_by("at")
    until = following.values_list("at", flat=True).first()
    return CorrectionCause(
        _CODE_BY_CONDITION[gpu_condition(state, RepairState.WELL)],
        {"host": change.host.name, "since": change.at.isoformat(), "until": _iso(until)},
    )


def allocation_cause(allocation: Allocation, lost: tuple[datetime, ChargeBucket] | None) -> CorrectionCause:
    """Return the cause of a correction after the end of an allocation became known.

    ``lost`` is (start, bucket) of the lost work; None if no work was lost. ``until`` in the result is the end
    of the allocation.
    """
    code = CauseCode.WORK_ENDED
    if lost is not None:
        code = CauseCode.WORK_PREEMPTED if lost[1] == ChargeBucket.PREEMPTED else CauseCode.WORK_LOST
    return CorrectionCause(
        code,
        {
            "workload": allocation.workload.name,
            "since": _iso(lost[0] if lost else None),
            "until": _iso(allocation.period.upper),
        },
    )


def split_cause(split: CostSplit, *, was_unmapped: bool) -> CorrectionCause:
    """Return the cause of a correction of lines whose cost centres were changed.

    ``was_unmapped`` means that the lines had no cost centre before.
    """
    code = CauseCode.COST_CENTRE_NAMED if was_unmapped else CauseCode.COST_CENTRE_CHANGED
    return CorrectionCause(code, {"cost_centre": split_text(split)})


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.replace(microsecond=0).isoformat()
