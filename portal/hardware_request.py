"""Validate a hardware request against the hardware of the pool, for workloads and reservations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypedDict, cast

from django.db.models import Exists, Max, OuterRef

from portal.input_checks import InputChecks
from portal.wording import request_texts
from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE
from scheduler.core.reasons import ReasonCode
from scheduler.models import Gpu, Host, Pool, Project, Team, Unit

MIN_RESERVATION_WINDOW = timedelta(minutes=5)
MAX_UNITS_PER_HOST = 10_000
MAX_HOSTS = 1_000
MAX_MEMORY_MIB = 10_000_000
MAX_CPU_MILLI = 10_000_000
MAX_COMPUTE_CAPABILITY = 1_000
HOST_RESOURCES = ("cpu_milli", "memory_mib")


class PlacementConstraints(TypedDict, total=False):
    """Constraints and preferences for the placement: the part of a request besides size, model and
    profile.
    """

    min_memory_mib: int
    min_compute_capability: int
    nvlink: bool
    labels_required: dict[str, str] | None
    labels_preferred: dict[str, str] | None
    spread: bool
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True)
class HardwareRequest:
    """A validated hardware request with the columns of ``scheduler.models.HardwareColumns``."""

    units: int
    hosts: int = 1
    models_wanted: list[str] = field(default_factory=list)
    profile: str = WHOLE_GPU_PROFILE
    min_memory_mib: int = 0
    min_compute_capability: int = 0
    nvlink: bool = False
    labels_required: dict[str, str] = field(default_factory=dict)
    labels_preferred: dict[str, str] = field(default_factory=dict)
    spread: bool = False
    cpu_milli: int = 0  # per host; 0: no limit and not accounted
    memory_mib: int = 0  # per host; 0: no limit and not accounted

    @property
    def columns(self) -> dict[str, Any]:
        """Return keyword arguments for a Workload or a Reservation."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def placing(self) -> dict[str, Any]:
        """Return the requested ``PlacementConstraints`` as JSON."""
        return {
            name: getattr(self, name)
            for name in PlacementConstraints.__optional_keys__
            if getattr(self, name)
        }


def profile_slots(wanted: Collection[tuple[int, str]]) -> dict[tuple[int, str], int]:
    """Return the size in slots by (pool id, profile). No query if nothing is asked for."""
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


def placement_constraints_in(payload: Mapping[str, Any]) -> PlacementConstraints:
    """Return the ``PlacementConstraints`` in the payload of a submission."""
    found: Any = {name: payload[name] for name in PlacementConstraints.__optional_keys__ if name in payload}
    return cast(PlacementConstraints, found)


def gpu_models_of_pool(pool: Pool) -> list[str]:
    """Return the GPU models of a pool, sorted."""
    return sorted(set(Gpu.objects.filter(host__pool=pool, retired_at=None).values_list("model", flat=True)))


def profiles_of_pool(pool: Pool, models: list[str]) -> dict[str, int]:
    """Return slots by profile for the profiles that a pool can serve with these models (empty: any). "" is
    the whole GPU.
    """
    units = Unit.objects.filter(gpu__host__pool=pool, retired_at=None, gpu__retired_at=None)
    if models:
        units = units.filter(gpu__model__in=models)
    found: dict[str, int] = {}
    for profile, slots in units.values_list("profile", "slots").distinct():
        found[profile] = max(found.get(profile, 0), slots.upper - slots.lower)
    return found


def check_pool(checks: InputChecks, pool: Pool, team: Team) -> None:
    """Check that the team may use the pool: a static pool serves its own team only."""
    if pool.team_id is not None and pool.team_id != team.pk:
        checks.note(
            "pool",
            pool.slug,
            f"pool is {pool.name}, which belongs to another team;"
            f" allowed: a shared pool or a pool of {team.name}.",
        )


def check_project(checks: InputChecks, project: Project) -> None:
    """Check that the project is active."""
    if not project.active:
        checks.note(
            "project",
            project.slug,
            f"project is {project.name}, which is no longer active; allowed: an active project.",
        )


def check_hardware_request(
    checks: InputChecks,
    *,
    pool: Pool,
    units: Any,
    hosts: Any = 1,
    models: Any = (),
    profile: Any = WHOLE_GPU_PROFILE,
    min_memory_mib: Any = 0,
    min_compute_capability: Any = 0,
    nvlink: Any = False,
    labels_required: Any = None,
    labels_preferred: Any = None,
    spread: Any = False,
    cpu_milli: Any = 0,
    memory_mib: Any = 0,
) -> HardwareRequest:
    """Validate every part of a request; problems go to ``checks``. The engine checks the CPU and memory of
    hosts.
    """
    known = gpu_models_of_pool(pool)
    wanted = checks.choices("models", list(models or ()), known)
    profiles = profiles_of_pool(pool, wanted)
    if profile != WHOLE_GPU_PROFILE and profile not in profiles:
        names = ", ".join(sorted(p for p in profiles if p)) or "whole GPUs only (leave it empty)"
        checks.note("profile", profile, f"profile is {profile!a:.60}; allowed in {pool.name}: {names}.")
        profile = WHOLE_GPU_PROFILE
    clean = HardwareRequest(
        units=checks.count("units", units, 1, MAX_UNITS_PER_HOST),
        hosts=checks.count("hosts", hosts, 1, MAX_HOSTS),
        models_wanted=wanted,
        profile=profile,
        min_memory_mib=checks.count("min_memory_mib", min_memory_mib, 0, MAX_MEMORY_MIB, "MiB"),
        min_compute_capability=checks.count(
            "min_compute_capability", min_compute_capability, 0, MAX_COMPUTE_CAPABILITY
        ),
        nvlink=checks.flag("nvlink", nvlink),
        labels_required=checks.labels("labels_required", labels_required or {}),
        labels_preferred=checks.labels("labels_preferred", labels_preferred or {}),
        spread=checks.flag("spread", spread),
        cpu_milli=checks.count("cpu_milli", cpu_milli, 0, MAX_CPU_MILLI, "thousandths of a core"),
        memory_mib=checks.count("memory_mib", memory_mib, 0, MAX_MEMORY_MIB, "MiB"),
    )
    _check_memory(checks, pool, clean)
    _check_size(checks, pool, clean)
    return clean


def field_to_change(code: str, numbers: Mapping[str, Any], otherwise: str = "units") -> str:
    """Return the field of a request that must change for the engine's reason; ``otherwise`` if no hardware is
    missing.
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
    if asked:  # a host has either of them, but not both
        return asked[-1]
    return "hosts" if numbers.get("hosts", 1) > 1 else "nvlink"


def whole_gpus_of(pool: Pool, ask: HardwareRequest) -> float:
    """Return the size of a request in whole GPUs: 2 slices of a seventh are 0.29."""
    slots = (
        SLOTS_PER_GPU
        if ask.profile == WHOLE_GPU_PROFILE
        else profiles_of_pool(pool, ask.models_wanted).get(ask.profile, SLOTS_PER_GPU)
    )
    return ask.units * ask.hosts * slots / SLOTS_PER_GPU


class MultiHostRequest(Protocol):
    """The part of a request that decides which hosts can serve it."""

    @property
    def hosts(self) -> int: ...
    @property
    def models_wanted(self) -> list[str]: ...
    @property
    def profile(self) -> str: ...
    @property
    def min_memory_mib(self) -> int: ...
    @property
    def min_compute_capability(self) -> int: ...
    @property
    def labels_required(self) -> dict[str, str]: ...


def network_warnings(pool: Pool, ask: MultiHostRequest) -> list[str]:
    """Return a warning if hosts of the pool that could serve a multi-host request cannot reach each other. At
    most one query.

    An agent without a reachable address reports none. Hosts that never joined are ignored.
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
            f"min_memory_mib is {ask.min_memory_mib:,}; allowed in {pool.name}: up to {largest:,} MiB.",
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
            f"units asks for {asked:g} GPUs{of} in all; allowed in {pool.name}: up to {have}, all it has.",
        )
    elif pool.most_gpus_per_workload is not None and asked > pool.most_gpus_per_workload:
        checks.note(
            "units",
            ask.units,
            f"units asks for {asked:g} GPUs in all;"
            f" allowed in {pool.name}: up to {pool.most_gpus_per_workload} for one workload.",
        )
