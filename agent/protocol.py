"""The wire between an agent and the edge: JSON text frames over one WebSocket, version 1.

The agent connects to ``/agent/v1/sync`` with ``Authorization: Bearer <credential>``; the server knows the host from the
credential and never from a message. Both sides are level-triggered: each ``Observed`` carries everything that is so on the
host, each ``Desired`` everything that should be so, so a lost, doubled, late or reordered frame changes nothing.

Frames up:   Observed, SampleBatch, LogChunk, Health, Proof        Frames down: Desired, Refused
Workspace bytes go over further connections that the agent dials to ``/agent/v1/stream`` when ``Desired.streams`` asks for
them, with ``Desired.stream_key`` in the header ``X-Gpupool-Stream-Key``, which shows that they come from the process at the
other end of the sync connection: the edge sends one ``StreamOpen`` text frame that names the run, then both sides pass binary
frames to and from the run's unix socket until either closes.

Plain Python, no third-party import: the server imports this module, and the agent installs without the server.
Every ``from_json`` raises ProtocolError that names the field, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
SYNC_PATH = "/agent/v1/sync"
STREAM_PATH = "/agent/v1/stream"
STREAM_KEY_HEADER = "X-Gpupool-Stream-Key"
JOIN_PATH = "/agent/v1/join"
RENEW_PATH = "/agent/v1/renew"
LONGEST_TEXT = 10_000
LONGEST_LIST = 10_000
MOST_HOMES = 5_000  # of one host in one frame
LONGEST_HOME_NAME = 150
LARGEST_SIZE = 2**60  # bytes
MOST_PACKAGES = 50
MOST_EXPOSED = 50
LONGEST_PATH = 400


class ProtocolError(ValueError):
    """A frame that is not of this protocol: names the field, the value and what is allowed."""


class UnsupportedVersionError(ProtocolError):
    """A frame of a version that is not spoken here: nothing of it is used."""


@dataclass(frozen=True, slots=True)
class UnitSeen:
    """One holdable unit of a GPU. ``first_slot`` and ``slots`` are within the GPU: 0..840."""

    uuid: str
    profile: str  # "" for the whole GPU
    first_slot: int
    slots: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class MigProfileSeen:
    """A MIG instance that a GPU can be split into, as its driver offers it."""

    name: str  # "1g.10gb"
    slices: int  # of the GPU's 7 compute slices
    memory_mib: int
    most: int  # how many of it fit on an empty GPU
    size: int = 0  # memory slices that it takes; 0: not told
    starts: list[int] = field(default_factory=list)  # memory slices at which it may begin; empty: not told


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
    links: dict[str, str] = field(
        default_factory=dict
    )  # uuid of another GPU of the host: how it is reached, agent/gpu/nvml.py
    pcie: str = ""  # "gen 5 x16, of gen 5 x16"
    nvlinks: int | None = None  # links that are up


@dataclass(frozen=True, slots=True)
class EnvironmentSeen:
    """What notebooks and jobs find on this host beside their home."""

    python: str  # version of the interpreter that notebooks run in and that jobs find first
    packages: dict[str, str] = field(default_factory=dict)  # name: version, of those that people ask for
    exposed: list[str] = field(default_factory=list)  # further paths that workloads may read


@dataclass(frozen=True, slots=True)
class Inventory:
    gpus: list[GpuSeen]
    cpu_milli: int
    memory_mib: int
    isolation: str  # "bubblewrap" or "plain"
    simulated: bool
    driver_version: str = ""
    notes: list[str] = field(default_factory=list)  # what this host cannot do, in words
    environment: EnvironmentSeen | None = None  # None: an agent that does not tell
    cuda_version: str = ""  # the newest that the driver supports
    users_per_team: bool = False  # each team's work runs as a user of its own
    limits: list[str] = field(
        default_factory=list
    )  # of cpu, memory, pids, devices: those that are set per run
    cgroups: str = ""  # v1, v2, hybrid or none
    network: str = ""  # of workloads: private, internet or host
    address: str = ""  # where workloads of other hosts reach those of this one; empty: nowhere, or not known
    mig_profiles: dict[str, list[MigProfileSeen]] = field(
        default_factory=dict
    )  # by GpuSeen.model; absent: can't be split
    diagnostics: list[str] = field(
        default_factory=list
    )  # names of the operator's own diagnostics on this host
    disk_full: bool = False  # it starts nothing new before there is room again


@dataclass(frozen=True, slots=True)
class RunSeen:
    """What the agent sees of one run. ``state`` is a scheduler RunState value except placed."""

    run: str  # Run.public_id
    generation: int
    state: str  # starting, running, stopping, ended
    step: str = ""  # the last real step, for people
    ready: bool = False  # a notebook answers
    outcome: str = ""  # a reason code once ended
    exit_code: int | None = None
    started_at: float | None = None  # seconds since the epoch
    ended_at: float | None = None
    checkpoint_at: float | None = None  # last acknowledged checkpoint
    activity: dict[str, Any] = field(default_factory=dict)  # notebook: see agent/notebook/activity_probe.py
    prolog_failed: bool = (
        False  # with start_failed: the operator's own prolog, which is the host's matter and not the run's
    )
    # With start_failed: the host's disk takes nothing more, which is not the run's matter either. With out_of_disk: it was stopped
    # because that disk ran low and it had taken most of late, not because it went over what one run may take.
    host_full: bool = False
    saved: bool = False  # it has acknowledged a checkpoint since its notice
    prepared: bool = False  # a member of a gang that could begin here at once, and waits for the others
    gpu_unreadable: bool = (
        False  # with start_failed: its GPUs could not be asked whether they are clean: the host's matter, too
    )
    # With an end that nobody ordered and that was not good: what its GPUs told in its last minutes, like "xid:79", each code once.
    gpu_events: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HomeSeen:
    """One home, as it was measured last. None means unknown, never zero."""

    name: str  # RunWanted.owner
    bytes: int | None = None  # on the disk
    files: int | None = None
    changed_at: float | None = None  # the newest change of anything in it, seconds since the epoch
    complete: bool = True  # False: not everything could be counted, there is at least so much
    measured_at: float | None = None


@dataclass(frozen=True, slots=True)
class HomesSeen:
    """Every home that workloads of this host can be given."""

    storage: str  # hosts that report the same one have the same homes
    listed_at: float  # seconds since the epoch
    homes: list[HomeSeen]
    total_bytes: int | None = None  # of the file system that they lie on
    free_bytes: int | None = None
    left_out: int = 0  # how many more there are than a frame takes


@dataclass(frozen=True, slots=True)
class StraySeen:
    """A process on a GPU that the run holding it, if any, does not account for."""

    gpu: str  # uuid
    pid: int
    started: int  # clock ticks after the boot
    user: str = ""  # name, or the number where the host has no name for it
    name: str = ""  # the kernel's name of the command
    memory_mib: int | None = None  # that it holds on this GPU
    run: str = ""  # a run of this host that it belongs to and that does not hold this GPU
    done: str = ""  # what was done about it, or why nothing


@dataclass(frozen=True, slots=True)
class CheckSeen:
    """One check of a diagnostic. ``passed`` None: it could not be made, or it only measures."""

    name: str
    passed: bool | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DiagnosticSeen:
    diagnostic: str  # DiagnosticWanted.diagnostic
    state: str  # wanted (it waits for the GPU), running, passed, failed, stopped
    tool: str = ""  # dcgm, own, simulated, or a name of Inventory.diagnostics
    checks: list[CheckSeen] = field(default_factory=list)
    detail: str = ""
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class GeometrySeen:
    """How far a change of a GPU's geometry is."""

    change: str  # GeometryWanted.change
    state: str  # wanted (it waits for the GPU), changing, done, failed (it is as it was), unsure (nobody can say how it is)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    version: int
    agent_version: str
    boot_id: str
    instance: str  # random, made at installation: a clone has the same
    sequence: int  # grows with each frame of one agent process
    inventory: Inventory
    runs: list[RunSeen]
    spooled_batches: int = 0
    homes: HomesSeen | None = None  # said once after each measurement; None: nothing new
    start: str = ""  # random per start of the agent
    starts_before: list[str] = field(
        default_factory=list
    )  # the last one that the server knows of, and those since
    strays: list[StraySeen] | None = None  # said when they change; None: as before
    diagnostics: list[DiagnosticSeen] = field(default_factory=list)
    geometries: list[GeometrySeen] = field(default_factory=list)
    binds_streams: bool = (
        False  # it shows Desired.stream_key with each stream: one without it is not this agent's
    )
    kind: str = "observed"


@dataclass(frozen=True, slots=True)
class MemberWanted:
    """One host of a gang."""

    host: str  # its name in the pool
    address: str  # Inventory.address of it
    units: int


@dataclass(frozen=True, slots=True)
class GangWanted:
    """What one member of a gang has to know of the others. An agent that knows nothing of gangs starts its part at once."""

    rank: int  # from 0
    members: list[MemberWanted]  # by rank
    port: int  # of the rendezvous, at the address of rank 0
    go: bool = False  # every member is prepared: begin. Until then nothing is started


@dataclass(frozen=True, slots=True)
class RunWanted:
    """What should be so for one run. ``verb`` is the strongest open command: start, notice or stop."""

    run: str
    workload: str  # Workload.public_id
    generation: int
    verb: str
    code: str = ""  # reason code of a notice or a stop
    stop_at: float | None = None  # notice: when the stop follows, seconds since the epoch
    grace_seconds: float = 30.0
    kind: str = "job"  # job or notebook
    command: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    unit_uuids: list[str] = field(default_factory=list)
    owner: str = ""  # name of the home folder
    team: str = ""
    team_id: str = ""  # never another team's, also after a restored backup
    team_user: int = 0  # number of the team's user on every host; 0: the server gives none
    secret: str = (
        ""  # notebook: what the edge sends in X-Gpupool-Secret; never put into the kernels' environment
    )
    attempt: int = 1
    cpu_milli: int = 0
    memory_mib: int = 0
    max_runtime_seconds: int = 0
    array_index: int | None = None  # which task of an array it is
    gang: GangWanted | None = None  # None: this host alone


@dataclass(frozen=True, slots=True)
class DiagnosticWanted:
    """A GPU to be looked at. It waits for the GPU's lock and gives way to work."""

    diagnostic: str
    gpu: str  # uuid
    tool: str = "auto"  # auto, own, dcgm, or a name of Inventory.diagnostics
    deadline_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class GeometryPart:
    profile: str  # MigProfileSeen.name
    start: int | None = None  # memory slice at which it begins; None: where the driver puts it


@dataclass(frozen=True, slots=True)
class GeometryWanted:
    """A GPU that nobody holds, to be split like this. No parts: one whole GPU, MIG off."""

    change: str
    gpu: str  # uuid
    parts: list[GeometryPart] = field(default_factory=list)
    deadline_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Desired:
    """Everything this host should run. A run that the agent holds and that is not named here must stop."""

    version: int
    host: str
    lease_seconds: float  # a workload whose agent hears nothing this long is stopped by its shim
    runs: list[RunWanted]
    committed_sequence: int = 0  # sample batches up to this one are in the database: delete them
    streams: int = 0  # how many idle stream connections to keep ready
    credential: str = ""  # a renewed credential, when this one is old
    credential_expires_at: float | None = None
    poll_seconds: float = 5.0
    diagnostics: list[DiagnosticWanted] = field(default_factory=list)
    geometries: list[GeometryWanted] = field(default_factory=list)
    stray_action: str = "report"  # report, warn, end
    challenge: str = ""  # sign this and say so in a Proof: the credential is old
    answers: int = (
        0  # Observed.sequence handled last: the lease runs from when that frame was sent; 0: not told
    )
    stream_key: str = ""  # of this connection: what its agent shows with the streams that it dials; "": nothing is asked for
    kind: str = "desired"


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One reading of one unit. None means unknown, never zero."""

    unit: str  # unit uuid
    ts: float  # seconds since the epoch
    run: str | None = None  # the run that held it, as the agent saw it
    utilisation: float | None = None  # per cent of time in which any kernel ran
    sm_active: float | None = None
    tensor_active: float | None = None
    memory_used_mib: int | None = None
    memory_utilisation: float | None = None
    power_w: float | None = None
    energy_mj: int | None = None  # millijoules since the driver loaded: a counter with resets
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: int | None = None
    pcie_rx_kib: int | None = None
    pcie_tx_kib: int | None = None
    nvlink_kib: int | None = None
    processes: int | None = None  # compute processes on it
    stray_processes: int | None = None  # of these, held by no run


@dataclass(frozen=True, slots=True)
class SampleBatch:
    sequence: int  # per host, from 1, without gaps; kept in the spool until committed
    rows: list[SampleRow]
    kind: str = "samples"


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Bytes ``[offset, offset + len)`` of a run's log, as text with undecodable bytes replaced."""

    run: str
    offset: int
    text: str
    kind: str = "log"


@dataclass(frozen=True, slots=True)
class Health:
    """One hardware event. ``event_id`` makes a repeated frame harmless."""

    event_id: str
    gpu: str  # uuid
    source: str  # "xid", "nvml", "simulated"
    code: str  # "xid:79"
    ts: float
    detail: str = ""
    kind: str = "health"


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer to ``Desired.challenge``: signed with the key that this host registered when it joined. Brings a credential."""

    challenge: str
    signature: str  # Ed25519, base64
    kind: str = "proof"


@dataclass(frozen=True, slots=True)
class Refused:
    """The server's clear no: an unknown version, a revoked credential, a second agent for the same host."""

    reason: str
    retry: bool = False
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
    public_key: str = ""  # Ed25519, base64; its private half never leaves the host. "": a host without a key
    signature: str = ""  # of the token, with that key


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    credential: str
    credential_expires_at: float
    host: str


@dataclass(frozen=True, slots=True)
class RenewRequest:
    """Body of ``POST /agent/v1/renew``; the bearer is the last credential, even an expired one. No challenge: asks for one."""

    version: int
    challenge: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True)
class RenewAnswer:
    """A challenge, or the credential that its signature brought."""

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
    """A frame as one line of JSON."""
    return json.dumps(dataclasses.asdict(frame), separators=(",", ":"), allow_nan=False)


def decode(text: str, frames: dict[str, type]) -> Any:
    """One of ``frames`` from its JSON; its ``kind`` says which."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"frame: not JSON ({error})") from None
    kind = data.get("kind") if isinstance(data, dict) else type(data).__name__
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in frames:
        raise ProtocolError(f"kind: {_shortened(kind)} is not one of {', '.join(sorted(frames))}")
    return parse(frames[kind], data)


T = typing.TypeVar("T")


def parse(kind: type[T], data: Any, where: str = "") -> T:
    """A value of dataclass ``kind`` from a JSON object. Unknown keys are ignored, so that a newer peer may say more.

    What can't be read raises UnsupportedVersionError where it says that it is of one, else ProtocolError.
    """
    try:
        return typing.cast(T, _reader(typing.cast(Any, kind))(data))
    except _InvalidValue as wrong:
        version = data.get("version", VERSION) if isinstance(data, dict) and not where else VERSION
        if version != VERSION:
            raise UnsupportedVersionError(f"version: {_shortened(version)}; allowed: {VERSION}") from None
        path = (where + "".join(reversed(wrong.path))).removeprefix(".")
        raise ProtocolError(f"{path or kind.__name__}: {wrong.why}") from None


class _InvalidValue(Exception):
    """What is wrong with a value. Where it is, is put together on the way out, innermost first."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path: list[str] = []

    def within(self, step: str) -> _InvalidValue:
        self.path.append(step)
        return self


ValueReader = Callable[[Any], Any]
MISSING = object()


@functools.cache
def _reader(kind: typing.Any) -> ValueReader:
    """What reads a value of this dataclass: made once, since an edge reads hundreds of frames a second."""
    hints = typing.get_type_hints(kind)
    entries = [
        (
            entry.name,
            _reader_of(hints[entry.name], entry.name),
            entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING,
        )
        for entry in dataclasses.fields(kind)
    ]

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _InvalidValue(f"{_shortened(data)} is not an object")
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, reader, required in entries:
                value = data.get(name, MISSING)
                if value is not MISSING:
                    values[name] = reader(value)
                elif required:
                    raise _InvalidValue("missing")
        except _InvalidValue as wrong:
            raise wrong.within(f".{name}") from None
        return kind(**values)

    return read


def _reader_of(hint: Any, name: str = "") -> ValueReader:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        present = _reader_of(next(a for a in args if a is not type(None)), name)
        return lambda value: None if value is None else present(value)
    if origin is list:
        return _list_reader(_reader_of(args[0]))
    if origin is dict:
        return _dict_reader(_reader_of(args[1]), _reader_of(args[1], "text"))
    if dataclasses.is_dataclass(hint):
        return _reader(typing.cast(type, hint))
    if hint is str:
        return _text_reader(64 * LONGEST_TEXT if name.endswith("text") else LONGEST_TEXT)
    return SCALAR_READERS[hint]


def _list_reader(item: ValueReader) -> ValueReader:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) > LONGEST_LIST:
            raise _InvalidValue(f"{_shortened(value)} is not a list of at most {LONGEST_LIST} entries")
        found = []
        try:
            for one in value:
                found.append(item(one))
        except _InvalidValue as wrong:
            raise wrong.within(f"[{len(found)}]") from None
        return found

    return read


def _dict_reader(item: ValueReader, text: ValueReader) -> ValueReader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > LONGEST_LIST:
            raise _InvalidValue(f"{_shortened(value)} is not an object of at most {LONGEST_LIST} entries")
        key: object = ""
        try:
            found = {}
            for key, one in value.items():
                found[str(key)] = (text if str(key).endswith("text") else item)(one)
        except _InvalidValue as wrong:
            raise wrong.within(f".{key}") from None
        return found

    return read


def _text_reader(most: int) -> ValueReader:
    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise _InvalidValue(f"{_shortened(value)} is not str")
        if "\x00" in value:
            raise _InvalidValue("holds a NUL character")
        if len(value) > most:
            raise _InvalidValue(f"{len(value)} characters; allowed: at most {most}")
        return value

    return read


def _read_float(value: Any) -> Any:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _InvalidValue(f"{_shortened(value)} is not float")
    if value != value or abs(value) > 1e18:
        raise _InvalidValue(f"{_shortened(value)} is not a finite number")
    return float(value)


def _read_int(value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _InvalidValue(f"{_shortened(value)} is not int")
    if abs(value) >= 2**63:
        raise _InvalidValue(f"{_shortened(value)} is not a 64-bit integer")
    return value


def _read_bool(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _InvalidValue(f"{_shortened(value)} is not bool")
    return value


SCALAR_READERS: dict[Any, ValueReader] = {
    Any: lambda value: value,
    float: _read_float,
    int: _read_int,
    bool: _read_bool,
}


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
