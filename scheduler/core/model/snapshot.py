"""Define the rows of a snapshot, which is the planner's input. The rows are frozen dataclasses.

Times are whole seconds since the epoch (UTC). GPU capacity is counted in slots. A whole GPU has
``SLOTS_PER_GPU`` slots (840). A MIG slice or a share of a GPU has fewer, for example 210 for a quarter. Sums
of slots are therefore exact integers. Ids are the database's primary keys. The planner sorts by id whenever
two rows are equal otherwise, so a plan never depends on the order of rows.

A team's guarantee is the number of slots that the team can always have. A team borrows if it holds slots
above its guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE


class PoolKind(StrEnum):
    """Whether a pool belongs to one team or is shared by teams."""

    STATIC = "static"  # owned by one team
    DYNAMIC = "dynamic"  # shared by every team that has a quota in it


class Priority(IntEnum):
    """The priority of a workload among the workloads of its team."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """The rules of a pool. Fields named ``..._slots`` are in slots; None means no limit."""

    notice_seconds: int = 30  # time between the notice and the stop signal, in which a checkpoint is written
    grace_seconds: int = 30  # time between the stop signal and the kill
    minimum_runtime_seconds: int = 300  # a workload is not evicted before it has run this long
    half_life_seconds: int = 7 * 86_400  # past use counts half as much in fair share after this time
    spare_slots: int = 0  # slots that are kept free for work of priority CRITICAL
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

    ``schedulable`` is False if the host takes no new work, for example because an administrator closed it,
    its agent does not report, or it needs repair. Then ``closed_code`` is the reason.
    """

    id: int
    name: str
    pool: int
    labels: frozenset[tuple[str, str]] = frozenset()
    cpu_milli: int = 0  # thousandths of a core; 0 if unknown: the planner then does not check CPU
    memory_mib: int = 0  # 0 if unknown: the planner then does not check memory
    schedulable: bool = True
    closed_code: str = ""  # a ReasonCode value if ``schedulable`` is False, otherwise ""
    # The id of the storage with the host's home folders. Hosts that share a storage have the same id. None if
    # unknown.
    home_storage: int | None = None


@dataclass(frozen=True, slots=True)
class UnitInfo:
    """The smallest part of a GPU that can be allocated: a whole GPU, a MIG slice or a declared share."""

    id: int
    host: int
    gpu: int
    model: str  # for example "H100-80GB"
    profile: str = WHOLE_GPU_PROFILE  # "" is a whole GPU, "1g.10gb" a MIG slice, "share-1/4" a declared share
    slots: int = SLOTS_PER_GPU
    memory_mib: int = 0
    compute_capability: int = 0  # ten times the version: 90 for 9.0
    nvlink_group: int | None = None
    healthy: bool = True  # False if the GPU is quarantined or out of service


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for ``units`` units on each of ``hosts`` hosts.

    If ``models`` is empty, every model with the requested memory and compute capability may serve it.
    """

    units: int
    hosts: int = 1
    models: tuple[str, ...] = ()  # in order of preference
    profile: str = WHOLE_GPU_PROFILE
    min_memory_mib: int = 0
    min_compute_capability: int = 0
    nvlink: bool = False  # True if all units on a host must be in one NVLink group
    labels: frozenset[tuple[str, str]] = frozenset()  # a host must have all of these labels
    labels_preferred: frozenset[tuple[str, str]] = frozenset()  # hosts with more of the labels are preferred
    spread: bool = False  # True to prefer empty hosts and different racks
    cpu_milli: int = 0  # thousandths of a CPU core on each host
    memory_mib: int = 0  # host memory on each host, in addition to GPU memory

    @property
    def total_units(self) -> int:
        """Return the units on all hosts together."""
        return self.units * self.hosts


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """The quota of one team for one GPU model in one pool, in slots.

    The team may hold ``guaranteed`` slots and borrow at most ``borrow_limit`` more.
    """

    team: int
    pool: int
    model: str
    guaranteed: int
    borrow_limit: int | None = None  # None means no limit
    # A guarantee may cover only a number of GPU-hours per day, week or month. When these are used up,
    # ``used_up_until`` is the end of that period, ``gpu_hours`` is their number, and ``guaranteed`` is 0.
    # ``borrow_limit`` is also 0 if the team may start nothing until then.
    used_up_until: int | None = None
    gpu_hours: int = 0
    # The quota's values from ``used_up_until`` on. They have no meaning if ``used_up_until`` is None.
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
    """The past use of one team in one pool, in slot-seconds, with older use weighted less.

    Example: with a half-life of 7 days, a slot-second of 7 days ago counts 0.5 and one of 14 days ago 0.25.
    """

    team: int
    pool: int
    slot_seconds: float


@dataclass(frozen=True, slots=True)
class QueuedWorkload:
    """A waiting workload.

    ``gate`` is a ReasonCode value if something other than hardware prevents the start, for example a closed
    budget or an unmet dependency. Otherwise it is "". ``gate_numbers`` are the numbers of that reason.
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
    reservation: int | None = None  # if set, the workload runs only inside this reservation
    not_before: int = 0  # the end of the waiting time after a failed attempt; 0 if there is none
    evicted_by: int | None = None  # the workload for which this workload was last evicted
    gate: str = ""
    gate_numbers: tuple[tuple[str, Any], ...] = ()
    # Units that were freed, or will be freed, by evictions for this workload. No other workload gets these
    # units before this workload has started.
    earmarked_units: tuple[int, ...] = ()
    # True if all work that was evicted for this workload belongs to its own team. None if no work was evicted
    # for it, or if the teams of that work are unknown.
    room_made_by_own_team: bool | None = None
    # Hosts on which an attempt of this workload failed to start. Until ``avoids_until``, other hosts are
    # preferred.
    avoids: tuple[int, ...] = ()
    avoids_until: int = 0
    # The storage (see ``HostInfo.home_storage``) with the last checkpoint. Hosts with it are preferred.
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
    borrowed_slots: int = 0  # slots above the team's guarantee, at the time of the placement
    checkpoint_at: int | None = None  # time of the last acknowledged checkpoint
    reservation: int | None = None
    stopping: bool = False  # True if the workload is evicted but still holds its units
    stop_by: int | None = None  # the time by which a stopping workload must have stopped
    evicted_for_workload: int | None = None
    evicted_for_reservation: int | None = None
    # The workload for which this workload was last evicted. This workload may not evict it in return.
    evicted_by: int | None = None
    evictions: int = 0  # the number of past evictions; each raises the cost of another eviction
    cpu_milli: int = 0  # thousandths of a CPU core that it holds on each of its hosts
    memory_mib: int = 0  # host memory that it holds on each of its hosts
    ask: Ask | None = None  # the request with which it is queued again after an eviction; None if unknown


@dataclass(frozen=True, slots=True)
class ReservationInfo:
    """A confirmed reservation.

    ``units`` is empty until the planner gives the reservation its units, at its start or shortly before.
    """

    id: int
    team: int
    project: int
    pool: int
    ask: Ask
    start: int
    end: int
    units: tuple[int, ...] = ()
    may_exceed_guarantee: bool = False  # True if the approver let it use the guarantees of other teams
    user: int = 0  # the owner of the reservation


@dataclass(frozen=True, slots=True)
class MaintenanceInfo:
    """A maintenance window of one host, from ``start`` until just before ``end``."""

    host: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All facts that the planner may use, as they are at one time. The order of rows does not matter."""

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
