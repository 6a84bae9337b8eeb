"""What the planner reads and what it answers: frozen values, no Django, no clock.

Times are whole seconds since the epoch (UTC). Sizes of GPU are slots: a whole GPU has ``SLOTS_PER_GPU`` of them, a MIG
slice or a share has its part, so guarantees and use add up exactly as integers.
Ids are the database's primary keys; every ordering ends in an id, so a plan never depends on the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE


class PoolKind(StrEnum):
    STATIC = "static"  # belongs to one team
    DYNAMIC = "dynamic"  # shared by every team that has a quota in it


class Priority(IntEnum):
    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """A pool's rules. Durations in seconds, ``spare_slots`` in slots; a limit of None means no limit."""

    notice_seconds: int = 30  # warning before the stop, in which a checkpoint is written
    grace_seconds: int = 30  # between the stop signal and the kill
    minimum_runtime_seconds: int = 300  # not evicted before it has run this long
    half_life_seconds: int = 7 * 86_400  # of the decayed use that fair share compares
    spare_slots: int = 0  # kept free for critical work
    longest_runtime_seconds: int = 7 * 86_400
    most_slots_per_user: int | None = None
    most_slots_per_workload: int | None = None


@dataclass(frozen=True, slots=True)
class PoolInfo:
    id: int
    name: str
    kind: PoolKind
    team: int | None  # the owner of a static pool, None for a dynamic one
    policy: PoolPolicy


@dataclass(frozen=True, slots=True)
class HostInfo:
    """``accepts`` is False while lease, administrative or repair state keeps new work away; ``closed_code`` says why."""

    id: int
    name: str
    pool: int
    labels: frozenset[tuple[str, str]] = frozenset()
    cpu_milli: int = 0  # 0 means unknown: CPU is then not checked
    memory_mib: int = 0  # 0 means unknown: memory is then not checked
    accepts: bool = True
    closed_code: str = ""  # a reasons.Code value when accepts is False
    homes: int | None = None  # its folder of homes: hosts with the same one share it; None: not known


@dataclass(frozen=True, slots=True)
class UnitInfo:
    """What can be held: a whole GPU, a MIG slice or a declared share, as a sub-range of its GPU's slots."""

    id: int
    host: int
    gpu: int
    model: str  # "H100-80GB"
    profile: str = WHOLE_GPU_PROFILE  # "" whole, "1g.10gb" a MIG slice, "share-1/4" a declared share
    slots: int = SLOTS_PER_GPU
    memory_mib: int = 0
    compute_capability: int = 0  # 90 for 9.0
    nvlink_group: int | None = None
    well: bool = True  # False while its GPU is quarantined or out


@dataclass(frozen=True, slots=True)
class Ask:
    """``units`` on each of ``hosts`` hosts. An empty ``models`` allows any model that meets the properties."""

    units: int
    hosts: int = 1
    models: tuple[str, ...] = ()  # in order of preference
    profile: str = WHOLE_GPU_PROFILE
    min_memory_mib: int = 0
    min_compute_capability: int = 0
    nvlink: bool = False  # all units of a host in one NVLink group
    labels: frozenset[tuple[str, str]] = frozenset()  # each must be on the host
    labels_preferred: frozenset[tuple[str, str]] = frozenset()  # hosts with more of them come first
    spread: bool = False  # on hosts, and in racks, that share as little as can be
    cpu_milli: int = 0  # on each host, beside the units
    memory_mib: int = 0  # on each host, beside the units

    @property
    def total_units(self) -> int:
        return self.units * self.hosts


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """One team's claim on one model of one pool, in slots. ``borrow_limit`` is what it may hold above the guarantee."""

    team: int
    pool: int
    model: str
    guaranteed: int
    borrow_limit: int | None = None  # None: no limit
    # Its GPU-hours of the period are used up: until when, and out of how many. ``guaranteed`` is then 0 and, where nothing
    # may start at all, ``borrow_limit`` too.
    used_up_until: int | None = None
    gpu_hours: int = 0
    # What holds again from ``used_up_until`` on; of no meaning without one.
    guaranteed_again: int = 0
    borrow_limit_again: int | None = None


@dataclass(frozen=True, slots=True)
class TeamInfo:
    id: int
    name: str
    weight: int = 1


@dataclass(frozen=True, slots=True)
class DecayedUseInfo:
    """Slot-seconds a team used in a pool, each second halved in worth every half-life, as of the snapshot's ``now``."""

    team: int
    pool: int
    slot_seconds: float


@dataclass(frozen=True, slots=True)
class QueuedWorkload:
    """A workload that waits. ``gate`` is a reasons.Code value that keeps it from starting whatever is free
    (a closed budget, an unmet dependency), with its numbers in ``gate_numbers``."""

    id: int
    team: int
    project: int
    user: int
    pool: int
    ask: Ask
    submitted: int
    max_runtime_seconds: int
    predicted_seconds: int  # never above max_runtime_seconds
    priority: Priority = Priority.NORMAL
    preemptible: bool = False
    may_borrow: bool = True  # False for work that is not preemptible
    reservation: int | None = None  # runs inside this reservation only
    not_before: int = 0  # back-off after a failed attempt
    evicted_by: int | None = None  # the workload it last had to make room for
    gate: str = ""
    gate_numbers: tuple[tuple[str, Any], ...] = ()
    # Units it was promised by evictions on its behalf, gone or not, until it starts: nobody else gets them meanwhile.
    earmarked_units: tuple[int, ...] = ()
    avoids: tuple[int, ...] = ()  # hosts on which it could not start, for which others come first
    avoids_until: int = 0
    homes: int | None = None  # the Host.homes that its last checkpoint lies in: hosts with these come first


@dataclass(frozen=True, slots=True)
class RunningWorkload:
    """A workload that holds units, from placement until the agent confirms the stop."""

    id: int
    team: int
    project: int
    user: int
    pool: int
    units: tuple[int, ...]
    started: int
    until: int  # started + max_runtime_seconds
    predicted_until: int
    priority: Priority = Priority.NORMAL
    preemptible: bool = False
    borrowed_slots: int = 0  # held above the guarantee when it was placed
    checkpoint_at: int | None = None  # last acknowledged checkpoint
    reservation: int | None = None
    stopping: bool = False  # told to go, still holds its units
    stop_by: int | None = None  # when a stopping one is gone at the latest
    evicted_for_workload: int | None = None
    evicted_for_reservation: int | None = None
    evicted_by: int | None = None  # whom it made room for last time: it may not evict that one back
    evictions: int = 0  # how often it was told to go before: each makes it dearer to evict
    cpu_milli: int = 0  # on each of its hosts
    memory_mib: int = 0  # on each of its hosts
    ask: Ask | None = None  # what it asked for, should it wait again; None where only its units are known


@dataclass(frozen=True, slots=True)
class ReservationInfo:
    """A confirmed promise. ``units`` is empty until it is bound, at its start or shortly before."""

    id: int
    team: int
    project: int
    pool: int
    ask: Ask
    start: int
    end: int
    units: tuple[int, ...] = ()
    may_exceed_guarantee: bool = False  # the approver let it eat into what others are guaranteed
    user: int = 0  # its owner


@dataclass(frozen=True, slots=True)
class MaintenanceInfo:
    host: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of everything the planner may know. Build it with rows in any order."""

    epoch: int
    pools: tuple[PoolInfo, ...] = ()
    hosts: tuple[HostInfo, ...] = ()
    units: tuple[UnitInfo, ...] = ()
    teams: tuple[TeamInfo, ...] = ()
    quotas: tuple[QuotaInfo, ...] = ()
    decayed_use: tuple[DecayedUseInfo, ...] = ()
    queued: tuple[QueuedWorkload, ...] = ()
    running: tuple[RunningWorkload, ...] = ()
    reservations: tuple[ReservationInfo, ...] = ()
    maintenance: tuple[MaintenanceInfo, ...] = ()
