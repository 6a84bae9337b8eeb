"""Defines the protocol between an agent and the edge, version 1: JSON text frames over one WebSocket.

The edge is the server process that agents connect to. The agent connects to ``/agent/v1/sync`` with
``Authorization: Bearer <credential>``. The server identifies the host by the credential, never by a message.

``Observed`` and ``Desired`` carry states, not changes. Each ``Desired`` carries the whole desired state of
the host. Each ``Observed`` carries the whole observed state, except that ``homes`` and ``strays`` are None
while they are unchanged. If an ``Observed`` or ``Desired`` is lost or repeated, the next one corrects the
state. The agent sends the strays again on each new connection. A lost measurement of the homes is replaced by
the next measurement. Samples and hardware events are sent again until the server has confirmed them.

Frames up:   Observed, SampleBatch, LogChunk, Health, Proof        Frames down: Desired, Refused

The traffic of workspaces (notebooks) uses separate connections. The agent dials them to
``/agent/v1/stream`` when ``Desired.streams`` is above 0. The header ``X-Gpupool-Stream-Key`` carries
``Desired.stream_key``. The key proves that the stream comes from the same agent process as the sync
connection. The edge sends one ``StreamOpen`` text frame that names the run. Then both sides relay binary
frames to and from the run's unix socket until either side closes.

The server imports this module too. It imports no third-party package, because the agent is installed without
the server's packages. ``decode`` and ``parse`` raise ProtocolError, which names the field, the value and the
allowed values.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from agent.wire_format import LONGEST_LIST as LONGEST_LIST
from agent.wire_format import LONGEST_TEXT as LONGEST_TEXT
from agent.wire_format import VERSION as VERSION
from agent.wire_format import ProtocolError as ProtocolError
from agent.wire_format import UnsupportedVersionError as UnsupportedVersionError
from agent.wire_format import parse as parse
from agent.wire_format import shortened

SLOTS_PER_GPU = 840  # divisible by 2 to 8, so that a GPU can be cut into 2 to 8 equal parts
SYNC_PATH = "/agent/v1/sync"
STREAM_PATH = "/agent/v1/stream"
STREAM_KEY_HEADER = "X-Gpupool-Stream-Key"
JOIN_PATH = "/agent/v1/join"
RENEW_PATH = "/agent/v1/renew"
MOST_HOMES = 5_000  # largest number of homes in one frame
LONGEST_HOME_NAME = 150
LARGEST_SIZE = 2**60  # bytes
MOST_PACKAGES = 50
MOST_EXPOSED = 50
LONGEST_PATH = 400


@dataclass(frozen=True, slots=True)
class UnitSeen:
    """One unit of a GPU that can be allocated: the whole GPU or a MIG instance.

    ``first_slot`` and ``slots`` say which part of the GPU the unit covers, in parts of SLOTS_PER_GPU.
    Example: a whole GPU has ``first_slot`` 0 and ``slots`` 840.
    """

    uuid: str
    profile: str  # "" for the whole GPU
    first_slot: int
    slots: int
    memory_mib: int
    # Number of the GPU instance, by which dcgm-exporter names it. None: no MIG instance, or an older agent.
    instance: int | None = None


@dataclass(frozen=True, slots=True)
class MigProfileSeen:
    """A MIG profile that the driver of a GPU offers."""

    name: str  # "1g.10gb"
    slices: int  # number of compute slices that an instance takes; a GPU has 7
    memory_mib: int
    most: int  # number of instances that fit on an empty GPU
    size: int = 0  # number of memory slices that an instance takes; 0: unknown
    starts: list[int] = field(default_factory=list)  # memory slices at which it may begin; empty: unknown


@dataclass(frozen=True, slots=True)
class GpuSeen:
    index: int
    uuid: str
    model: str
    memory_mib: int
    compute_capability: int = 0
    nvlink_group: int | None = None
    numa_node: int | None = None
    pci_bus_id: str = ""
    units: list[UnitSeen] = field(default_factory=list)
    # By uuid of each other GPU of the host: the kind of the connection. It is "NVLink" or a value of
    # TOPOLOGY_LEVELS in agent/gpu/nvml/system.py.
    links: dict[str, str] = field(default_factory=dict)
    pcie: str = ""  # current and maximum link, such as "x16 of x16, up to generation 5"
    nvlinks: int | None = None  # number of NVLinks that are up
    power_limit_w: float | None = None  # the highest power limit that can be set
    slowdown_temperature_c: float | None = None  # at this temperature, the GPU slows down


@dataclass(frozen=True, slots=True)
class EnvironmentSeen:
    """The software and paths that this host offers to notebooks and jobs."""

    python: str  # version of the interpreter of notebooks, which is also the first in the PATH of jobs
    packages: dict[str, str] = field(default_factory=dict)  # versions of common packages, by name
    exposed: list[str] = field(default_factory=list)  # extra paths that workloads may read


@dataclass(frozen=True, slots=True)
class Inventory:
    gpus: list[GpuSeen]
    cpu_milli: int
    memory_mib: int
    isolation: str  # "bubblewrap" or "plain"
    simulated: bool
    driver_version: str = ""
    notes: list[str] = field(default_factory=list)  # limitations of this host, as sentences
    environment: EnvironmentSeen | None = None  # None: the agent is older and does not report it
    cuda_version: str = ""  # the newest version that the driver supports
    users_per_team: bool = False  # True: the workloads of each team run as a separate Unix user
    limits: list[str] = field(default_factory=list)  # controllers that limit runs: cpu, memory, pids, devices
    cgroups: str = ""  # v1, v2, hybrid or none
    network: str = ""  # network mode of workloads: private, internet or host
    # Address at which workloads of other hosts reach workloads of this host. Empty: unreachable or unknown.
    address: str = ""
    # By GpuSeen.model: the MIG profiles of the model. A model without an entry cannot be split.
    mig_profiles: dict[str, list[MigProfileSeen]] = field(default_factory=dict)
    diagnostics: list[str] = field(default_factory=list)  # names of the operator's own diagnostics
    disk_full: bool = False  # True: the host starts no run until the disk has free space again
    # Why the agent cannot write its state folder, such as "Read-only file system". Empty: it can.
    disk_problem: str = ""
    person_users: bool = False  # True: the host can run work as the Unix user of its owner
    home_limits: bool = False  # True: the file system of the homes can limit the size of a home
    # Why homes cannot be limited, such as "the file system nfs4 has no project quotas". Empty: they can, or
    # the agent is older.
    home_limits_problem: str = ""


@dataclass(frozen=True, slots=True)
class RunSeen:
    """The observed state of one run. ``state`` is any value of the scheduler's RunState except ``placed``."""

    run: str  # Run.public_id
    generation: int
    state: str  # starting, running, stopping, ended
    step: str = ""  # description of the current step, shown to users
    ready: bool = False  # True: the workspace answers
    outcome: str = ""  # reason code of an ended run
    exit_code: int | None = None
    started_at: float | None = None  # seconds since the epoch
    ended_at: float | None = None
    checkpoint_at: float | None = None  # time of the last checkpoint that the workload reported as done
    activity: dict[str, Any] = field(
        default_factory=dict
    )  # activity of a notebook, with the keys of agent/notebook/activity_probe.py
    # With outcome start_failed: True if the operator's prolog failed, which is a fault of the host.
    prolog_failed: bool = False
    # With outcome start_failed: True if the disk of the host is full, which is a fault of the host. With
    # outcome out_of_disk: True if the host's disk ran low and this run's disk usage had grown most. False if
    # the run exceeded the limit for a single run.
    host_full: bool = False
    saved: bool = False  # True: the workload has acknowledged a checkpoint since its notice
    # True: the run is a member of a gang, is ready to start and waits for the other members
    prepared: bool = False
    # With outcome start_failed: True if the run's GPUs could not be read, which is a fault of the host.
    gpu_unreadable: bool = False
    # For a run that failed without a stop order: the event codes of its GPUs in its last minutes, such as
    # "xid:79". Each code appears once.
    gpu_events: list[str] = field(default_factory=list)
    # Of an ended run, from its control group. None: not measured, as on a host without control groups.
    cpu_seconds: float | None = None
    memory_peak_mib: int | None = None


@dataclass(frozen=True, slots=True)
class HomeSeen:
    """The last measurement of one home. None means unknown, never zero."""

    name: str  # RunWanted.owner
    bytes: int | None = None  # allocated on the disk
    files: int | None = None
    changed_at: float | None = None  # time of the newest change in the home, seconds since the epoch
    complete: bool = True  # False: some entries could not be counted, so the numbers are lower bounds
    measured_at: float | None = None  # seconds since the epoch
    limit_bytes: int | None = None  # largest size that the file system allows; None: no limit, or unknown


@dataclass(frozen=True, slots=True)
class HomesSeen:
    """The homes that workloads of this host can mount."""

    storage: str  # hosts that report the same value share their homes
    listed_at: float  # seconds since the epoch
    homes: list[HomeSeen]
    total_bytes: int | None = None  # size of the file system of the homes
    free_bytes: int | None = None
    left_out: int = 0  # number of further homes that do not fit into the frame


@dataclass(frozen=True, slots=True)
class StraySeen:
    """A process that uses a GPU although it is not part of the run that holds this GPU.

    A process on a GPU that no run holds is a stray too.
    """

    gpu: str  # uuid
    pid: int
    started: int  # clock ticks after the boot
    user: str = ""  # user name, or the numeric id if the host has no name for it
    name: str = ""  # command name in the kernel
    memory_mib: int | None = None  # memory on this GPU
    # The run of this host that the process is part of. This run does not hold the GPU. "": no run.
    run: str = ""
    done: str = ""  # the action that was taken, or the reason for taking none


@dataclass(frozen=True, slots=True)
class CheckSeen:
    """One check of a diagnostic. ``passed`` is None if the check could not run or only measures a value."""

    name: str
    passed: bool | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DiagnosticSeen:
    diagnostic: str  # DiagnosticWanted.diagnostic
    state: str  # wanted (waiting for the GPU), running, passed, failed, stopped
    tool: str = ""  # dcgm, own, simulated, or a name in Inventory.diagnostics
    checks: list[CheckSeen] = field(default_factory=list)
    detail: str = ""
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class GeometrySeen:
    """The progress of a change of a GPU's MIG geometry."""

    change: str  # GeometryWanted.change
    # wanted (waiting for the GPU), changing, done, failed (the geometry is unchanged), unsure (the geometry
    # is unknown)
    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    version: int
    agent_version: str
    boot_id: str
    instance: str  # random, made at installation; a cloned machine has the same value
    sequence: int  # increases with each frame of one agent process
    inventory: Inventory
    runs: list[RunSeen]
    spooled_batches: int = 0
    homes: HomesSeen | None = None  # sent once after each measurement; None: unchanged
    start: str = ""  # random, made at each start of the agent
    starts_before: list[str] = field(
        default_factory=list
    )  # earlier values of start: the last one that the server knows, then all later ones
    strays: list[StraySeen] | None = None  # sent when they change; None: unchanged
    diagnostics: list[DiagnosticSeen] = field(default_factory=list)
    geometries: list[GeometrySeen] = field(default_factory=list)
    # True: the agent sends Desired.stream_key with each stream. The server then rejects a stream without the
    # key.
    binds_streams: bool = False
    kind: str = "observed"


@dataclass(frozen=True, slots=True)
class MemberWanted:
    """One host of a gang."""

    host: str  # name of the host in the pool
    address: str  # Inventory.address of the host
    units: int


@dataclass(frozen=True, slots=True)
class GangWanted:
    """Describes a gang: the runs of one attempt of a workload, one run on each of several hosts.

    Each host of the gang gets these facts, with its own ``rank``.

    An agent that does not support gangs starts its part of the run without waiting for ``go``.
    """

    rank: int  # from 0
    members: list[MemberWanted]  # by rank
    port: int  # port of the rendezvous, at the address of rank 0
    go: bool = False  # True: every member is prepared and the run may start


@dataclass(frozen=True, slots=True)
class PersonWanted:
    """The Unix identity of the owner of a run, for a run with the identity of a person."""

    uid: int
    gid: int
    groups: list[int] = field(default_factory=list)  # further groups
    name: str = ""  # Unix name
    home: str = ""  # path of the home on the host, below a folder that the host allows


@dataclass(frozen=True, slots=True)
class RunWanted:
    """The desired state of one run.

    ``verb`` is the strongest open order: stop is stronger than notice, and notice is stronger than start.
    """

    run: str
    workload: str  # Workload.public_id
    generation: int
    verb: str
    code: str = ""  # reason code of a notice or a stop
    stop_at: float | None = None  # with a notice: time of the stop that follows, seconds since the epoch
    grace_seconds: float = 30.0
    kind: str = "job"  # job or notebook
    command: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    unit_uuids: list[str] = field(default_factory=list)
    owner: str = ""  # name of the home folder
    team: str = ""
    team_id: str = ""  # never reused for another team, not even after a backup was restored
    team_user: int = 0  # Unix user id of the team on every host; 0: none
    # For a notebook: the value that the edge sends in X-Gpupool-Secret. Never part of the kernels'
    # environment.
    secret: str = ""
    attempt: int = 1
    cpu_milli: int = 0
    memory_mib: int = 0
    max_runtime_seconds: int = 0
    array_index: int | None = None  # index of the task of an array
    gang: GangWanted | None = None  # None: the run uses this host only
    person: PersonWanted | None = None  # None: the run has the Unix user of its team
    perf_events: bool = False  # True: the run may use the system call perf_event_open
    home_limit_mib: int = 0  # largest size of a new home; 0: no limit


@dataclass(frozen=True, slots=True)
class DiagnosticWanted:
    """A GPU to be tested.

    The diagnostic waits for the GPU's lock and is stopped when a workload needs the GPU.
    """

    diagnostic: str
    gpu: str  # uuid
    tool: str = "auto"  # auto, own, dcgm, or a name in Inventory.diagnostics
    deadline_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class GeometryPart:
    profile: str  # MigProfileSeen.name
    start: int | None = None  # memory slice at which it begins; None: the driver chooses


@dataclass(frozen=True, slots=True)
class GeometryWanted:
    """The desired geometry of a GPU that no run holds. Empty ``parts``: one whole GPU, MIG disabled."""

    change: str
    gpu: str  # uuid
    parts: list[GeometryPart] = field(default_factory=list)
    deadline_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state of a host. The agent stops each run of the host that is not in ``runs``."""

    version: int
    host: str
    # Length of the lease. The lease begins at the time at which the agent sent the Observed frame whose
    # sequence is ``answers``. If the lease expires, the shims stop the workloads.
    lease_seconds: float
    runs: list[RunWanted]
    committed_sequence: int = 0  # sample batches up to this one are in the database; the agent deletes them
    streams: int = 0  # number of idle stream connections to keep ready
    credential: str = ""  # a new credential, if the present one is old; "": keep the present one
    credential_expires_at: float | None = None
    poll_seconds: float = 5.0
    diagnostics: list[DiagnosticWanted] = field(default_factory=list)
    geometries: list[GeometryWanted] = field(default_factory=list)
    stray_action: str = "report"  # report, warn, end
    challenge: str = ""  # set if the credential is old: the agent signs this text and answers with a Proof
    # The sequence of the last Observed frame that the server handled. The lease begins at the time at which
    # the agent sent this frame. 0: the server is older and does not report the sequence.
    answers: int = 0
    # Key that the agent sends with each stream that it dials during this connection. "": no key is needed.
    stream_key: str = ""
    # The server's wall clock when it made this frame, in seconds since the epoch. None: the server is older.
    server_time: float | None = None
    # True: the server's database does not answer. The frame renews leases, and ``answers`` confirms nothing
    # else: events and logs that were sent meanwhile are sent again on the next connection.
    renewed_from_memory: bool = False
    kind: str = "desired"


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One reading of one unit. None means unknown, never zero."""

    unit: str  # unit uuid
    ts: float  # seconds since the epoch
    run: str | None = None  # the run that held the unit
    utilisation: float | None = None  # percentage of time in which any kernel ran
    sm_active: float | None = None
    tensor_active: float | None = None
    memory_used_mib: int | None = None
    memory_utilisation: float | None = None
    power_w: float | None = None
    energy_mj: int | None = None  # millijoules since the driver was loaded; a counter with resets
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: int | None = None
    pcie_rx_kib: int | None = None
    pcie_tx_kib: int | None = None
    nvlink_kib: int | None = None
    processes: int | None = None  # number of compute processes on the unit
    stray_processes: int | None = None  # number of compute processes that are not part of the unit's run
    uptime: float | None = None  # CLOCK_BOOTTIME at ``ts``, in seconds; None: the agent is older


@dataclass(frozen=True, slots=True)
class UnitMinuteSeen:
    """The readings of one unit that are read once a minute.

    They belong to the SampleRow of the unit with the same ``ts``. Percentages are means over the minute
    before ``ts``. None means unknown, never zero.
    """

    unit: str  # unit uuid
    ts: float
    graphics_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None
    fp64_active: float | None = None
    fp32_active: float | None = None
    fp16_active: float | None = None
    encoder_utilisation: float | None = None
    decoder_utilisation: float | None = None
    fan_percent: float | None = None
    power_limit_w: float | None = None  # the limit that is in force
    memory_clock_mhz: int | None = None
    video_clock_mhz: int | None = None
    # Counters of a whole GPU since the driver was loaded, with resets. A MIG instance has none.
    pcie_rx_bytes: int | None = None
    pcie_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    nvlink_tx_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuCountersSeen:
    """Counters and flags of one GPU that have changed since they were last sent, by their name.

    ``telemetry.dcgm.fields.SLOW_READINGS_OF_AGENTS`` has the names. All known values are sent once an hour.
    """

    gpu: str  # uuid
    ts: float
    values: dict[str, int]
    uptime: float | None = None


@dataclass(frozen=True, slots=True)
class RunUseSeen:
    """The use of the processes of a run since its start. None means not measured.

    ``io_*`` count the bytes that reached block devices. ``network_*`` count the bytes of the run's own
    network namespace; they are None if the run shares the network of its host.
    """

    run: str
    ts: float
    uptime: float | None = None
    cpu_seconds: float | None = None
    memory_mib: int | None = None  # at ``ts``
    memory_peak_mib: int | None = None
    io_read_bytes: int | None = None
    io_written_bytes: int | None = None
    network_rx_bytes: int | None = None
    network_tx_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceTrafficSeen:
    """The counters of one disk or network interface since the boot.

    ``bytes_in`` were read or received, ``bytes_out`` written or sent.
    """

    name: str
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class HostUseSeen:
    """The use of all processes of the host. Counters count since the boot. None means not measured."""

    ts: float
    uptime: float | None = None
    cpu_seconds: float | None = None  # counter of busy time, over all cores
    memory_used_mib: int | None = None  # without caches that the kernel can drop
    disk_bytes: int | None = None  # size of the file system with the agent's state
    disk_free_bytes: int | None = None
    disks: list[DeviceTrafficSeen] = field(default_factory=list)
    networks: list[DeviceTrafficSeen] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProcessUseSeen:
    """The use of one unit by one process of the run that holds the unit."""

    unit: str  # unit uuid
    ts: float
    run: str
    pid: int
    uptime: float | None = None
    name: str = ""  # command name in the kernel
    sm_percent: float | None = None  # share of time in which it used the SMs; None: not measured
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class SampleBatch:
    sequence: int  # per host, from 1, without gaps; kept in the spool until committed
    rows: list[SampleRow]
    boot_id: str = ""  # boot in which the rows were read; "": the agent is older
    # The server's wall clock minus CLOCK_BOOTTIME of this boot, in seconds, and its largest error. None: not
    # measured.
    server_offset: float | None = None
    server_offset_error: float | None = None
    # Once a minute, beside the rows.
    units: list[UnitMinuteSeen] = field(default_factory=list)
    gpus: list[GpuCountersSeen] = field(default_factory=list)
    runs: list[RunUseSeen] = field(default_factory=list)
    host: list[HostUseSeen] = field(default_factory=list)
    processes: list[ProcessUseSeen] = field(default_factory=list)
    kind: str = "samples"


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Bytes ``[offset, offset + len)`` of a run's log, as text. Bytes that are not UTF-8 are replaced."""

    run: str
    offset: int
    text: str
    kind: str = "log"


@dataclass(frozen=True, slots=True)
class Health:
    """One hardware event. The server ignores an ``event_id`` that it has already recorded."""

    event_id: str
    gpu: str  # uuid
    source: str  # "xid", "nvml", "simulated"
    code: str  # "xid:79"
    ts: float
    detail: str = ""
    kind: str = "health"


@dataclass(frozen=True, slots=True)
class Proof:
    """The agent's answer to ``Desired.challenge``, signed with the key that this host registered.

    If the signature is valid, the server renews the credential.
    """

    challenge: str
    signature: str  # Ed25519, base64
    kind: str = "proof"


@dataclass(frozen=True, slots=True)
class Refused:
    """A rejection by the server.

    Examples of reasons: an unknown version, a revoked credential, a second agent for the same host, or a
    database that is unavailable. ``retry`` is True if the agent may connect again.
    """

    reason: str
    retry: bool = False
    # Code of the reason. Empty: the server is older, or the agent's frame did not follow this protocol.
    code: str = ""
    kind: str = "refused"


@dataclass(frozen=True, slots=True)
class StreamOpen:
    run: str
    kind: str = "stream_open"


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Body of ``POST /agent/v1/join``."""

    version: int
    token: str
    host: str
    instance: str
    boot_id: str
    public_key: str = ""  # Ed25519, base64; "": a host without a key. The private key never leaves the host
    signature: str = ""  # signature of the token by that key, base64


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    credential: str
    credential_expires_at: float
    host: str


@dataclass(frozen=True, slots=True)
class RenewRequest:
    """Body of ``POST /agent/v1/renew``. The bearer token is the host's last credential.

    This credential must have expired: a valid credential is renewed over the sync connection. If the last
    credential was never used, the credential before the last one is accepted too.

    A renewal has two requests. The first has an empty ``challenge`` and asks the server for one. The second
    has the server's challenge and its signature.
    """

    version: int
    challenge: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True)
class RenewAnswer:
    """The answer to a RenewRequest: a credential if the signature was valid, otherwise a challenge."""

    challenge: str = ""
    credential: str = ""
    credential_expires_at: float | None = None


FRAMES_UP: dict[str, type] = {
    "observed": Observed,
    "samples": SampleBatch,
    "log": LogChunk,
    "health": Health,
    "proof": Proof,
}
FRAMES_DOWN: dict[str, type] = {"desired": Desired, "refused": Refused, "stream_open": StreamOpen}


def encode(frame: Any) -> str:
    """Return a frame as one line of JSON."""
    return json.dumps(dataclasses.asdict(frame), separators=(",", ":"), allow_nan=False)


def decode(text: str, frames: dict[str, type]) -> Any:
    """Return the frame in ``text``. Its ``kind`` selects the class in ``frames``. Raises ProtocolError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"frame: not JSON ({error})") from None
    kind = data.get("kind") if isinstance(data, dict) else type(data).__name__
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in frames:
        raise ProtocolError(f"kind: {shortened(kind)} is not one of {', '.join(sorted(frames))}")
    return parse(frames[kind], data)
