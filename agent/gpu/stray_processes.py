"""Processes on this host's GPUs that no workload there accounts for: seen, described, and ended where the pool says so.

Ended is only what is surely neither ours nor the system's: a process of an ordinary user that belongs to no workload, descends from
no agent, is no service of the system, and was there at two looks. What it is, is told by what it can't choose itself: its user,
its parents and its control group, never by its name, its program or its environment. TERM first, KILL after a while, over a file
descriptor of the process, so that nobody else with the same pid is met.

Of a workload that uses a GPU which its run does not hold no single process is ended: the run is, with its notice and its grace. It
needs no open door for that where another run of its owner has handed it a device that it had open.
"""

from __future__ import annotations

import logging
import os
import pwd
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.gpu.reader import GpuProcess, UnitUse
from agent.host import processes
from agent.isolation.team_users import UidRange
from agent.protocol import StraySeen

log = logging.getLogger("agent.gpu.stray_processes")

FIRST_PERSON_UID, NOBODY_UID = (
    1000,
    65534,
)  # services are below; above are subordinate users of people, which each may become
TERM_GRACE_SECONDS = 10.0
STRAY_ENDED_CODE = "stray:ended"  # the code of the event about those that the pool's policy ended
MAX_NAMED_PROCESSES = 20  # in one such event; the log names every one
MEMORY_CHANGE_MIB = 256  # a smaller change of its memory is no news
# Services of the system in which people's own programs may run: by a timetable, or where nobody makes a session of a login.
USER_RUN_SERVICES = ("cron", "crond", "atd", "ssh", "sshd")
ProcessKey = tuple[str, int, int]  # gpu, pid, start
TERM_SENT, KILL_SENT = "asked to end", "killed"
SIGNAL_SENT = {TERM_SENT: "TERM", KILL_SENT: "KILL"}


@dataclass(frozen=True)
class WorkloadContext:
    """What is known of this host's workloads when its GPUs were looked at.

    ``uses``: by unit, of when that look began; ``holders``: by unit the run that holds it, and ``shims``: by pid the run that a
    shim keeps, both as of now; ``ours``: processes of this agent; ``team_users``: numbers that only workloads run as;
    ``in_groups``: tells the processes in control groups of workloads.
    """

    uses: Mapping[str, UnitUse] = field(default_factory=dict)
    holders: Mapping[str, str] = field(default_factory=dict)
    shims: Mapping[int, str] = field(default_factory=dict)
    ours: Iterable[int] = ()
    team_users: UidRange | None = None
    cgroup_pids: Callable[[], set[int]] = set

    def identifies_unit(self, found: GpuProcess) -> bool:
        """Is it known on whose unit this process is? Of several runs that take turns on one GPU nobody can tell."""
        return found.unit == found.gpu or found.unit.startswith("MIG-")

    def run_of(self, process: processes.Process) -> str:
        """The run that a process belongs to, by what was seen or by its ancestors; empty for none."""
        for use in self.uses.values():
            if process.pid in use.pids:
                return use.run
        return next((self.shims[pid] for pid in _ancestors(process) if pid in self.shims), "")


@dataclass(frozen=True)
class EndedStray:
    """A process that was sent ``signal``, and is gone."""

    stray: StraySeen
    signal: str

    def __str__(self) -> str:
        """Its pid first: what follows that in an event is for operators and auditors (telemetry.health.rules.public_detail)."""
        return f"{describe_stray(self.stray)}, by {self.signal}"


class StrayTracker:
    """What was seen at the last look, what was asked to end when, and ``ended``: of these, what was found gone at the last look."""

    def __init__(self) -> None:
        self.seen: list[StraySeen] = []
        self.runs_on_foreign_gpus: dict[
            str, str
        ] = {}  # run -> the GPU that it uses and does not hold, where the pool ends that
        self.ended: list[EndedStray] = []
        self._asked: dict[ProcessKey, float] = {}
        # Kept until it is gone, also where it has left the GPU and takes its time to end.
        self._ending: dict[ProcessKey, EndedStray] = {}

    def look(self, found: Iterable[GpuProcess], known: WorkloadContext, *, action: str, now: float) -> bool:
        """Whether anything is other than at the last look. ``now``: a clock that only goes forward."""
        before, own = {_key(stray) for stray in self.seen}, set(known.ours)
        strays: dict[ProcessKey, StraySeen] = {}
        self.runs_on_foreign_gpus = {}
        for each in found:
            use = known.uses.get(each.unit)
            if each.pid in own or (use is not None and each.pid in use.pids):
                continue
            process = processes.read_process(each.pid)
            if process is None:
                continue  # it is gone already
            key = (each.gpu, each.pid, process.start_ticks)
            run = known.run_of(process)
            if run and run == known.holders.get(each.unit):
                continue
            if run and known.identifies_unit(each):
                done = self._handle_run_process(key, run, key in before, action)
            else:
                done = self._handle_process(key, process, run, key in before, action, known, now)
            strays[key] = StraySeen(
                each.gpu,
                each.pid,
                process.start_ticks,
                _user_name(each.pid),
                process.name[:64],
                each.memory_mib,
                run,
                done,
            )
            self._note_signal(key, strays[key])
        self.ended = [
            end for (_, pid, start), end in self._ending.items() if not processes.is_alive(pid, start)
        ]
        for end in self.ended:
            del self._ending[_key(end.stray)]
        self._asked = {key: since for key, since in self._asked.items() if key in strays}
        fresh = [strays[key] for key in sorted(strays)]
        is_news = [_reported_fields(stray) for stray in fresh] != [
            _reported_fields(stray) for stray in self.seen
        ]
        if is_news:
            self.seen = fresh
        return is_news

    def _note_signal(self, key: ProcessKey, stray: StraySeen) -> None:
        signal_sent, before = SIGNAL_SENT.get(stray.done), self._ending.get(key)
        if signal_sent is not None and (before is None or before.signal != signal_sent):
            self._ending[key] = EndedStray(stray, signal_sent)
            log.warning(
                "a process of no workload on %s is sent %s, as the pool says: %s",
                stray.gpu,
                signal_sent,
                describe_stray(stray),
            )

    def _handle_run_process(self, key: ProcessKey, run: str, seen_before: bool, action: str) -> str:
        if action != "end":
            return ""
        if not seen_before:
            return "its workload is stopped if it stays"
        self.runs_on_foreign_gpus[run] = key[0]
        return "its workload is stopped"

    def _handle_process(
        self,
        key: ProcessKey,
        process: processes.Process,
        run: str,
        seen_before: bool,
        action: str,
        known: WorkloadContext,
        now: float,
    ) -> str:
        if action != "end":
            return ""
        since = self._asked.get(key)
        if since is None:
            why = "it belongs to a workload" if run else reason_to_spare(process, known)
            if why:
                return f"left alone: {why}"
            if not seen_before:
                return "is ended if it stays"
            self._asked[key] = now
            return TERM_SENT if _send_signal(process, signal.SIGTERM) else "could not be ended: not permitted"
        if now - since < TERM_GRACE_SECONDS:
            return TERM_SENT
        return KILL_SENT if _send_signal(process, signal.SIGKILL) else "could not be ended: not permitted"


def describe_stray(stray: StraySeen) -> str:
    """Who it is, in one line: a process chooses its name, and what it chose goes to a log."""
    name = "".join(each if each.isprintable() else "?" for each in stray.name)
    memory = "" if stray.memory_mib is None else f", {stray.memory_mib} MiB"
    return f"pid={stray.pid}, {name or 'unknown'} of user {stray.user or 'unknown'}{memory}"


def ended_by_gpu(ended: Iterable[EndedStray]) -> dict[str, str]:
    """By GPU what is told of those that ended there: one event for all of a look, since of more in a second one is told."""
    by_gpu: dict[str, list[str]] = {}
    for end in ended:
        by_gpu.setdefault(end.stray.gpu, []).append(str(end))
    return {
        gpu: "; ".join(told[:MAX_NAMED_PROCESSES])
        + (f"; and {len(told) - MAX_NAMED_PROCESSES} more" if len(told) > MAX_NAMED_PROCESSES else "")
        for gpu, told in by_gpu.items()
    }


def reason_to_spare(process: processes.Process, known: WorkloadContext) -> str:
    """Why a process that no workload here accounts for is not ended all the same; empty when nothing speaks for it."""
    uid = processes.user_id_of(process.pid)
    try:
        groups = Path(f"/proc/{process.pid}/cgroup").read_text()
    except OSError:
        uid = None
    if uid is None:
        return "what it is can't be read"
    if uid < FIRST_PERSON_UID or uid in (NOBODY_UID, os.getuid()):
        return "it runs as a user of the system or of the agent"
    if (known.team_users is not None and uid in known.team_users) or process.pid in known.cgroup_pids():
        return "it belongs to a workload that is not known here"
    if is_system_slice(groups):
        return "it is a service of the system"
    if os.getpid() in _ancestors(process):
        return "it descends from the agent"
    return ""


def is_system_service(pid: int) -> bool:
    """Whether it is a process of a service of the system; not so where that can't be read."""
    try:
        return is_system_slice(Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        return False


def is_system_slice(groups: str) -> bool:
    """Whether a process with these control groups (/proc/PID/cgroup) was started by the system: nobody else puts one below
    ``/system.slice``. A group of that name within a person's own groups says nothing."""
    lines = [line.split(":", 2) for line in groups.splitlines() if line.count(":") >= 2]
    kept = {controller or "unified": path for _, controller, path in lines}
    path = kept.get("name=systemd", kept.get("unified", ""))
    while path.startswith("/.."):
        path = path[3:]  # as an agent in a group of its own sees those outside
    steps = path.split("/")[1:]
    if len(steps) < 2 or steps[0] != "system.slice":
        return False
    return not any(step.removesuffix(".service").partition("@")[0] in USER_RUN_SERVICES for step in steps[1:])


def _ancestors(process: processes.Process) -> list[int]:
    """Pids from its parent upwards, without the first process of the host."""
    found: list[int] = []
    parent = process.parent
    while parent > 1 and parent not in found:
        found.append(parent)
        above = processes.read_process(parent)
        parent = above.parent if above is not None else 0
    return found


def _send_signal(process: processes.Process, number: signal.Signals) -> bool:
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return True  # it is gone
    try:
        if not processes.is_alive(process.pid, process.start_ticks):
            return True
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    finally:
        os.close(descriptor)
    return True


def _user_name(pid: int) -> str:
    uid = processes.user_id_of(pid)
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name[:64]
    except KeyError:
        return str(uid)


def _key(stray: StraySeen) -> ProcessKey:
    return stray.gpu, stray.pid, stray.started


def _reported_fields(stray: StraySeen) -> tuple[object, ...]:
    return (
        _key(stray),
        stray.done,
        stray.run,
        None if stray.memory_mib is None else stray.memory_mib // MEMORY_CHANGE_MIB,
    )
