"""Validate the hardware that a workload or a reservation requests.

The request is compared with the hardware of its pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db.models import Exists, Max, OuterRef

from portal.input_checks import InputChecks
from portal.wording import request_texts
from portal.wording.problems import request_problems
from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE
from scheduler.core.reasons import ReasonCode
from scheduler.models import Gpu, Host, Pool, Project, Team, Unit
from scheduler.requests import HardwareRequest, Labels, RequestField, request_fields

MIN_RESERVATION_WINDOW = timedelta(minutes=5)
HOST_RESOURCES = tuple(each.name for each in request_fields(HardwareRequest) if each.form_section == "host")


def checked_value(checks: InputChecks, declared: RequestField, value: Any) -> Any:
    """Return the value of a request field after its check.

    If the value is not allowed, add a problem to ``checks`` and return a harmless value.
    """
    name = declared.argument
    if declared.type is bool:
        return checks.flag(name, value)
    if declared.choices:
        return checks.choice(name, value, [allowed for allowed, _ in declared.choices])
    if declared.type is int:
        return checks.count(name, value, declared.low, declared.high, declared.unit)
    if declared.type == Labels:
        return checks.labels(name, value)
    return checks.text(name, value, most=declared.max_length)


def given_values(fields: Iterable[RequestField], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each field by field name. A missing argument, or None, becomes the default.

    ``arguments`` uses the argument names of the API. Raises TypeError for an argument that no field has.
    """
    names = {each.argument: each for each in fields}
    if unknown := arguments.keys() - names.keys():
        raise TypeError(f"this request does not have the fields: {', '.join(sorted(unknown))}")
    given = {each.name: arguments.get(argument) for argument, each in names.items()}
    return {each.name: each.default for each in names.values()} | {
        name: value for name, value in given.items() if value is not None
    }


def hardware_arguments_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hardware arguments that ``values`` contains, for example a submission's payload."""
    names = (each.argument for each in request_fields(HardwareRequest))
    return {name: values[name] for name in names if name in values}


def profile_slots(wanted: Collection[tuple[int, str]]) -> dict[tuple[int, str], int]:
    """Return the size in slots of each MIG profile, by pool id and profile name.

    840 slots are one GPU. If ``wanted`` is empty, no query is made.
    """
    if not wanted:
        return {}
    rows = Unit.objects.filter(
        gpu__host__pool__in={pool for pool, _ in wanted}, profile__in={name for _, name in wanted}
    )
    columns = ("gpu__host__pool_id", "profile", "slots")
    return {
        (pool, profile): slots.upper - slots.lower
        for pool, profile, slots in rows.values_list(*columns).distinct()
    }


def gpu_models_of_pool(pool: Pool) -> list[str]:
    """Return the names of the GPU models in a pool, sorted."""
    return sorted(set(Gpu.objects.filter(host__pool=pool, retired_at=None).values_list("model", flat=True)))


def profiles_of_pool(pool: Pool, models: Sequence[str]) -> dict[str, int]:
    """Return the size in slots of each MIG profile that the pool offers on these models, by profile name.

    840 slots are one GPU. The profile "" is the whole GPU. An empty list of models means all models.
    """
    units = Unit.objects.filter(gpu__host__pool=pool, retired_at=None, gpu__retired_at=None)
    if models:
        units = units.filter(gpu__model__in=models)
    found: dict[str, int] = {}
    for profile, slots in units.values_list("profile", "slots").distinct():
        found[profile] = max(found.get(profile, 0), slots.upper - slots.lower)
    return found


def check_pool(checks: InputChecks, pool: Pool, team: Team) -> None:
    """Add a problem to ``checks`` if the team may not use the pool.

    Only its own team may use a static pool.
    """
    if pool.team_id is not None and pool.team_id != team.pk:
        checks.note(
            "pool",
            pool.slug,
            request_problems.POOL_OF_ANOTHER_TEAM.format(pool=pool.name, team=team.name),
        )


def check_project(checks: InputChecks, project: Project) -> None:
    """Add a problem to ``checks`` if the project is not active."""
    if not project.active:
        checks.note(
            "project",
            project.slug,
            request_problems.PROJECT_INACTIVE.format(project=project.name),
        )


def check_hardware_request(
    checks: InputChecks, project: Project, pool: Pool, arguments: Mapping[str, Any]
) -> HardwareRequest:
    """Validate the hardware that a project requests in a pool, and add problems to ``checks``.

    ``arguments`` maps the API's field names to the requested values. CPU and host memory are not compared
    with the pool's hosts here, because the engine compares them.
    """
    check_project(checks, project)
    check_pool(checks, pool, project.team)
    fields = request_fields(HardwareRequest)
    given = given_values(fields, arguments)
    wanted = checks.choices("models", list(given.pop("models_wanted")), gpu_models_of_pool(pool))
    profile = given.pop("profile")
    profiles = profiles_of_pool(pool, wanted)
    if profile != WHOLE_GPU_PROFILE and profile not in profiles:
        names = ", ".join(sorted(p for p in profiles if p)) or request_problems.PROFILE_WHOLE_GPUS_ONLY
        message = request_problems.PROFILE_UNKNOWN.format(given=profile, pool=pool.name, allowed=names)
        checks.note("profile", profile, message)
        profile = WHOLE_GPU_PROFILE
    clean = {
        each.name: checked_value(checks, each, given[each.name]) for each in fields if each.name in given
    }
    request = HardwareRequest(**clean, models_wanted=tuple(wanted), profile=profile)
    _check_memory(checks, pool, request)
    _check_size(checks, pool, request)
    return request


def field_to_change(code: str, numbers: Mapping[str, Any], otherwise: str = "units") -> str:
    """Return the field of a request that the user must change to remove the engine's reason.

    ``code`` and ``numbers`` are the engine's reason. Return ``otherwise`` if the reason is not about missing
    hardware.
    """
    if numbers.get("hosts_with_labels") == 0:
        return "labels_required"
    if code == ReasonCode.NO_SUCH_HARDWARE:
        return "min_compute_capability" if numbers.get("min_compute_capability") else "models"
    if code != ReasonCode.TOO_BIG_FOR_ANY_HOST:
        return otherwise
    if numbers.get("largest", 0) < numbers.get("units", 0):
        return "units"
    asked = [name for name in HOST_RESOURCES if name in numbers]
    for name in asked:
        if numbers[f"most_{name}"] < numbers[name]:
            return name
    # For each resource there is a host with enough of it, but no host has enough of all resources.
    if asked:
        return asked[-1]
    return "hosts" if numbers.get("hosts", 1) > 1 else "nvlink"


def whole_gpus_of(pool: Pool, ask: HardwareRequest) -> float:
    """Return the size of a request in whole GPUs.

    Example: the size is 0.29 for 2 slices, each of them a seventh of a GPU.
    """
    slots = (
        SLOTS_PER_GPU
        if ask.profile == WHOLE_GPU_PROFILE
        else profiles_of_pool(pool, ask.models_wanted).get(ask.profile, SLOTS_PER_GPU)
    )
    return ask.units * ask.hosts * slots / SLOTS_PER_GPU


def exceeds_approval_threshold(pool: Pool, ask: HardwareRequest) -> bool:
    """Return True if a reservation of this size needs an approval in the pool."""
    return whole_gpus_of(pool, ask) > pool.approval_above_gpus


def network_warnings(pool: Pool, ask: HardwareRequest) -> list[str]:
    """Return a warning if a request for several hosts could get a host that the other hosts cannot reach.

    Other hosts cannot reach a host whose agent reports no network address. Hosts that have never joined are
    ignored. At most one query is made.
    """
    if ask.hosts < 2:
        return []
    units = Unit.objects.filter(
        retired_at=None,
        gpu__retired_at=None,
        profile=ask.profile,
        memory_mib__gte=ask.min_memory_mib,
        gpu__compute_capability__gte=ask.min_compute_capability,
    )
    if ask.models_wanted:
        units = units.filter(gpu__model__in=ask.models_wanted)
    joined = Host.objects.filter(
        Exists(units.filter(gpu__host=OuterRef("pk"))), pool=pool, hardware__has_key="reported"
    )
    hosts = joined.filter(labels__contains=ask.labels_required).order_by("name")
    found = list(hosts.values_list("name", "hardware__reported__address"))
    alone = [name for name, address in found if not address]
    return [request_texts.unreachable_hosts_warning(pool.name, alone, len(found))] if alone else []


def _check_memory(checks: InputChecks, pool: Pool, ask: HardwareRequest) -> None:
    if not ask.min_memory_mib:
        return
    units = Unit.objects.filter(gpu__host__pool=pool, retired_at=None, profile=ask.profile)
    if ask.models_wanted:
        units = units.filter(gpu__model__in=ask.models_wanted)
    largest = units.aggregate(most=Max("memory_mib"))["most"] or 0
    if ask.min_memory_mib > largest:
        checks.note(
            "min_memory_mib",
            ask.min_memory_mib,
            request_problems.MEMORY_TOO_LARGE.format(
                given=ask.min_memory_mib, pool=pool.name, largest=largest
            ),
        )


def _check_size(checks: InputChecks, pool: Pool, ask: HardwareRequest) -> None:
    whole = Gpu.objects.filter(host__pool=pool, retired_at=None)
    if ask.models_wanted:
        whole = whole.filter(model__in=ask.models_wanted)
    have = whole.count()
    asked = whole_gpus_of(pool, ask)
    of = f" {' or '.join(ask.models_wanted)}" if ask.models_wanted else ""
    if asked > have:
        checks.note(
            "units",
            ask.units,
            request_problems.MORE_THAN_THE_POOL_HAS.format(asked=asked, models=of, pool=pool.name, most=have),
        )
    elif pool.most_gpus_per_workload is not None and asked > pool.most_gpus_per_workload:
        checks.note(
            "units",
            ask.units,
            request_problems.MORE_THAN_ONE_WORKLOAD_MAY.format(
                asked=asked, pool=pool.name, most=pool.most_gpus_per_workload
            ),
        )
