"""Define the choices of the request form's fields, and convert durations and workloads to field values."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.models import User
from portal.reads.fleet.free_capacity import FreeCapacity
from portal.web.gpu_request.generated_fields import GENERATED_FIELDS, form_value
from scheduler.core.model.snapshot import Priority
from scheduler.models import Workload

REQUEST_KINDS = [("notebook", "Notebook"), ("job", "Job"), ("reservation", "Reservation")]
GPU_COUNT_CHOICES = [("1", "1"), ("2", "2"), ("4", "4"), ("8", "8"), ("other", "Other")]
LENGTH_UNIT_CHOICES = [("hours", "hours"), ("minutes", "minutes"), ("days", "days")]
SECONDS_PER_LENGTH_UNIT = {"minutes": 60, "hours": 3600, "days": 86_400}
MAX_LENGTH_IN_UNITS = 100_000
# Arguments of services, each with the field that shows its errors.
FIELD_FOR_ARGUMENT = {
    "models": "target",
    "pool": "target",
    "profile": "target",
    **{declared.argument: name for name, declared in GENERATED_FIELDS.items()},
    "units": "units_other",
    "end": "length",
    "max_runtime_seconds": "length",
}
ANY_MODEL = ""


def default_name(kind: str, user: User, now: datetime) -> str:
    """Return a name that consists of the user name and the local time."""
    return f"{user.get_username()}-{timezone.localtime(now):%d%b-%H%M}".lower()


def default_values(now: datetime, lines: list[FreeCapacity]) -> dict[str, Any]:
    """Return valid initial values of the form, such as a window tomorrow at 09:00 for four hours."""
    tomorrow = (timezone.localtime(now) + timedelta(days=1)).replace(
        hour=9, minute=0, second=0, microsecond=0
    )
    best = next((line for line in lines if line.free and not line.profile), lines[0] if lines else None)
    return {
        "start": tomorrow,
        "length": 4,
        "length_unit": "hours",
        "count": "1",
        "target": target_value(best) if best else "",
        "priority": "normal",
        "preemptible": True,
        "hosts": 1,
        "most_retries": 0,
    }


def values_of_workload(workload: Workload, user: User) -> dict[str, Any]:
    """Return the field values with which a notebook or job can be launched again.

    Values of environment variables may be secrets. Users other than the owner get only the names of the
    variables.
    """
    models = [*workload.models_wanted, "", "", ""]
    model = models[0] or ANY_MODEL
    hours, rest = divmod(workload.max_runtime_seconds, 3600)
    return {
        "kind": workload.kind,
        "name": workload.name,
        "project": str(workload.project_id),
        "target": f"{workload.pool.slug}|{model}|{workload.profile}",
        "second": models[1],
        "third": models[2],
        **count_values(workload.units),
        "hosts": workload.hosts,
        "length": workload.max_runtime_seconds // 60 if rest else hours,
        "length_unit": "minutes" if rest else "hours",
        "type": workload.type,
        "command": workload.command,
        "priority": Priority(workload.priority).name.lower(),
        "if_member_ends": workload.if_member_ends,
        **{
            name: form_value(declared, getattr(workload, declared.name))
            for name, declared in GENERATED_FIELDS.items()
        },
        "environment": "\n".join(
            f"{name}={value if workload.owner_id == user.pk else ''}"
            for name, value in workload.environment.items()
        ),
    }


def count_values(units: int) -> dict[str, Any]:
    """Return the values of the fields ``count`` and ``units_other``, which together hold a number of GPUs."""
    return (
        {"count": str(units), "units_other": None}
        if str(units) in dict(GPU_COUNT_CHOICES)
        else {"count": "other", "units_other": units}
    )


def length_values(length: timedelta) -> dict[str, Any]:
    """Return the values of the fields ``length`` and ``length_unit``, which together hold a duration."""
    minutes = int(length.total_seconds() // 60)
    if minutes % 60:
        return {"length": minutes, "length_unit": "minutes"}
    return {"length": minutes // 60, "length_unit": "hours"}


def end_or_latest(start: datetime, length: timedelta) -> datetime:
    """Return ``start + length``.

    If the sum overflows, return a time in the year 9999; the service then rejects the request.
    """
    try:
        return start + length
    except OverflowError:
        return start.replace(year=9999)


def target_value(line: FreeCapacity) -> str:
    """Return the value of the field ``target`` for one row of free capacity."""
    return f"{line.pool.slug}|{line.model}|{line.profile}"
