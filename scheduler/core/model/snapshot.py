"""Define the planner's input: frozen rows, no Django, no clock.

Times are whole seconds since the epoch (UTC). GPU capacity is counted in slots: a whole GPU has
``SLOTS_PER_GPU`` slots, and a MIG slice or a share has a part of them. Guarantees and use therefore add up
exactly, as integers. Ids are the database's primary keys. Every ordering ends in an id, so that a plan never
depends on the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE


class PoolKind(StrEnum):
    """The way in which teams share a pool."""

    STATIC = "static"  # owned by one team
    DYNAMIC = "dynamic"  # shared by every team that has a quota in it


class Priority(IntEnum):
    """A workload's priority among its own team's workloads."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """A pool's rules. Durations are in seconds, ``spare_slots`` in slots; None means no limit."""

    notice_seconds: int = 30  # time between the notice and the stop signal, in which a checkpoint is written
    grace_seconds: int = 30  # time between the stop signal and the kill
    minimum_runtime_seconds: int = 300  # a workload is not evicted before it has run this long
    half_life_seconds: int = 7 * 86_400  # half-life of the decayed use that fair share compares
    spare_slots: int = 0  # spare capacity, kept free for critical work
    longest_runtime_seconds: int = 7 * 86_400
    max_slots_per_user: int | None = None
    max_slots_per_workload: int | None = None


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """One pool."""

    id: int
    name: str
    kind: PoolKind
    team: int | None  # owner of a static pool, None for a dynamic pool
    policy: PoolPolicy


@dataclass(frozen=True, slots=True)
class HostInfo:
    """One host.

    ``schedulable`` is False if the state of its lease, administration or repair excludes new work;
    ``closed_code`` is then the reason.
    """

    id: int
    name: str
    pool: int
    labels: frozenset[tuple[str, str]] = frozenset()
    cpu_milli: int = 0  # 0: unknown, CPU is then not checked
    memory_mib: int = 0  # 0: unknown, memory is then not checked
    schedulable: bool = True
    closed_code: str = ""  # a ReasonCode value if schedulable is False
    # id of the storage of its home folders; hosts that share a storage have the same id; None: unknown
    home_storage: int | None = None


@dataclass(frozen=True, slots=True)
class UnitInfo:
    """The smallest part of a GPU that can be allocated: a whole GPU, a MIG slice or a declared share."""

    id: int
    host: int
    gpu: int
    model: str  # "H100-80GB"
    profile: str = WHOLE_GPU_PROFILE  # "" whole GPU, "1g.10gb" MIG slice, "share-1/4" declared share
    slots: int = SLOTS_PER_GPU
    memory_mib: int = 0
    compute_capability: int = 0  # 90 for 9.0
    nvlink_group: int | None = None
    healthy: bool = True  # False if its GPU is quarantined or out of service


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for ``units`` units on each of ``hosts`` hosts. Empty ``models`` allow any model with the
    properties.
    """

    units: int
    hosts: int = 1
    models: tuple[str, ...] = ()  # in order of preference
    profile: str = WHOLE_GPU_PROFILE
    min_memory_mib: int = 0
    min_compute_capability: int = 0
    nvlink: bool = False  # all units on a host in one NVLink group
    labels: frozenset[tuple[str, str]] = frozenset()  # the host must have each label
    labels_preferred: frozenset[tuple[str, str]] = frozenset()  # hosts with more of the labels are preferred
    spread: bool = False  # prefer empty hosts, and different racks
    cpu_milli: int = 0  # on each host
    memory_mib: int = 0  # host memory on each host, in addition to GPU memory

    @property
    def total_units(self) -> int:
        """Return the units on all hosts together."""
        return self.units * self.hosts


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """One team's quota for one model in one pool, in slots. ``borrow_limit`` limits the slots above the
    guarantee.
    """

    team: int
    pool: int
    model: str
    guaranteed: int
    borrow_limit: int | None = None  # None: no limit
    # Set if the GPU-hours of the period are used up: the end of the period, and the period's GPU-hours.
    # ``guaranteed`` is then 0. ``borrow_limit`` is also 0 if nothing may start at all.
    used_up_until: int | None = None
    gpu_hours: int = 0
    # The values in force again from ``used_up_until`` on. They have no meaning if ``used_up_until`` is None.
    guaranteed_after_reset: int = 0
    borrow_limit_after_reset: int | None = None


@dataclass(frozen=True, slots=True)
class TeamInfo:
    """One team and its weight in fair share."""

    id: int
    name: str
    weight: int = 1


@dataclass(frozen=True, slots=True)
class DecayedUseInfo:
    """The decayed slot-seconds that a team used in a pool, at the snapshot's time. The weight of a used
    slot-second halves in every half-life.
    """

    team: int
    pool: int
    slot_seconds: float


@dataclass(frozen=True, slots=True)
class QueuedWorkload:
    """A waiting workload.

    ``gate`` is a ReasonCode value that prevents its start even if every unit is free (a closed budget, an
    unmet dependency), with its numbers in ``gate_numbers``.
    """

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
    reservation: int | None = None  # runs only inside this reservation
    not_before: int = 0  # end of the back-off after a failed attempt
    evicted_by: int | None = None  # the workload for which it was evicted last
    gate: str = ""
    gate_numbers: tuple[tuple[str, Any], ...] = ()
    # Units that evictions for this workload freed or will free. No other workload gets these units until this
    # workload has started.
    earmarked_units: tuple[int, ...] = ()
    # True if all work evicted for this workload is of its own team; None if no work was evicted, or if the
    # teams are unknown
    room_made_by_own_team: bool | None = None
    # hosts on which an attempt could not start; other hosts are preferred until avoids_until
    avoids: tuple[int, ...] = ()
    avoids_until: int = 0
    # the HostInfo.home_storage with its last checkpoint; hosts with this storage are preferred
    checkpoint_storage: int | None = None


@dataclass(frozen=True, slots=True)
class RunningWorkload:
    """A workload that holds units: from its placement until the agent confirms the stop."""

    id: int
    team: int
    project: int
    user: int
    pool: int
    units: tuple[int, ...]
    started: int
    until: int  # started + max_runtime_seconds
    predicted_end: int
    priority: Priority = Priority.NORMAL
    preemptible: bool = False
    borrowed_slots: int = 0  # slots above the guarantee at its placement
    checkpoint_at: int | None = None  # time of the last acknowledged checkpoint
    reservation: int | None = None
    stopping: bool = False  # evicted, but still holds its units
    stop_by: int | None = None  # deadline of a stopping workload
    evicted_for_workload: int | None = None
    evicted_for_reservation: int | None = None
    # the workload for which this workload was evicted last; this workload may not evict it in return
    evicted_by: int | None = None
    evictions: int = 0  # number of past evictions; each makes it more expensive to evict
    cpu_milli: int = 0  # on each of its hosts
    memory_mib: int = 0  # on each of its hosts
    ask: Ask | None = None  # its ask, for a requeue; None if only its units are known


@dataclass(frozen=True, slots=True)
class ReservationInfo:
    """A confirmed reservation. ``units`` is empty until units are bound, at its start or shortly before."""

    id: int
    team: int
    project: int
    pool: int
    ask: Ask
    start: int
    end: int
    units: tuple[int, ...] = ()
    may_exceed_guarantee: bool = False  # True if the approver allowed it to use guarantees of others
    user: int = 0  # its owner


@dataclass(frozen=True, slots=True)
class MaintenanceInfo:
    """A maintenance window of one host, ``[start, end)``."""

    host: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All facts that the planner may use, at one time. The order of rows does not matter."""

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
