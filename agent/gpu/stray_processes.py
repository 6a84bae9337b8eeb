"""Finds stray processes on this host's GPUs, reports them, and ends them if the pool's policy says so.

A stray is a process on a GPU that is not part of the run that holds the GPU.

The agent ends a stray only if all of these are true:

- Its user is an ordinary user.
- It belongs to no workload.
- It does not descend from the agent.
- It is not a system service.
- It was seen at two successive reads of the GPUs.

The decision uses the user, the parents and the control group of the process. It never uses the name, the
program or the environment, because a process can choose them itself. The process gets SIGTERM and later
SIGKILL. Both are sent through a pidfd, so that they can never reach a later process with the same pid.

If a workload uses a GPU that its run does not hold, the same policy makes the agent stop the whole run, with
a grace period. A workload can use such a GPU without access to its device node, because another run of the
same owner can pass an open device to the workload.
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

# Uids below FIRST_PERSON_UID belong to system services. Uids above NOBODY_UID are subordinate uids, which
# processes of people may use.
FIRST_PERSON_UID, NOBODY_UID = 1000, 65534
TERM_GRACE_SECONDS = 10.0
STRAY_ENDED_CODE = "stray:ended"  # event code for processes ended by the pool's policy
MAX_NAMED_PROCESSES = 20  # an event names at most this many processes; the log names all of them
MEMORY_CHANGE_MIB = 256  # a smaller change of a process's memory is not reported
# System services that run programs of people: scheduled jobs, and logins that create no session.
USER_RUN_SERVICES = ("cron", "crond", "atd", "ssh", "sshd")
ProcessKey = tuple[str, int, int]  # gpu, pid, start
TERM_SENT, KILL_SENT = "asked to end", "killed"
SIGNAL_SENT = {TERM_SENT: "TERM", KILL_SENT: "KILL"}


@dataclass(frozen=True)
class WorkloadContext:
    """The agent's knowledge about the workloads of this host, for one read of the GPUs.

    - ``uses``: by unit uuid, the run that held the unit when the read of the GPUs began, with the pids of its
      processes.
    - ``holders``: by unit uuid, the id of the run that holds the unit now.
    - ``shims``: by pid of each shim (the process that supervises a run), the id of the run.
    - ``ours``: pids of the agent's own diagnostics.
    - ``team_users``: the range of uids that only workloads have.
    - ``cgroup_pids``: returns the pids in the control groups of workloads.
    """

    uses: Mapping[str, UnitUse] = field(default_factory=dict)
    holders: Mapping[str, str] = field(default_factory=dict)
    shims: Mapping[int, str] = field(default_factory=dict)
    ours: Iterable[int] = ()
    team_users: UidRange | None = None
    cgroup_pids: Callable[[], set[int]] = set

    def is_of_unit_use(self, found: GpuProcess) -> bool:
        """Return True if the process belonged to the run on its unit when the read of the GPUs began."""
        use = self.uses.get(found.unit)
        return use is not None and found.pid in use.pids

    def identifies_unit(self, found: GpuProcess) -> bool:
        """Return True if it is certain on which unit the process runs.

        This is certain for a whole GPU and for a MIG instance. It is uncertain if several runs share one GPU
        by time slices.
        """
        return found.unit == found.gpu or found.unit.startswith("MIG-")

    def run_of(self, process: processes.Process) -> str:
        """Return the run that a process belongs to; '' if it belongs to no run.

        The run is found by the pid of the process or of one of its ancestors.
        """
        for use in self.uses.values():
            if process.pid in use.pids:
                return use.run
        return next((self.shims[pid] for pid in _ancestors(process) if pid in self.shims), "")


@dataclass(frozen=True)
class EndedStray:
    """A stray that has ended after the agent sent it ``signal`` ("TERM" or "KILL")."""

    stray: StraySeen
    signal: str

    def __str__(self) -> str:
        """Return a description that begins with the pid.

        Only operators and auditors see the text after the pid (telemetry.health.rules.public_detail).
        """
        return f"{describe_stray(self.stray)}, by {self.signal}"


class StrayTracker:
    """Tracks the strays of this host from one call of ``look`` to the next.

    ``seen``: the strays at the last call. ``ended``: the strays that the agent has ended and whose end was
    noticed at the last call.
    """

    def __init__(self) -> None:
        self.seen: list[StraySeen] = []
        # By id of each run that the caller must stop: the GPU that the run uses without holding it.
        self.runs_on_foreign_gpus: dict[str, str] = {}
        self.ended: list[EndedStray] = []
        self._term_sent_at: dict[ProcessKey, float] = {}
        # Strays to which a signal was sent. An entry stays until the process has ended, even if the process
        # no longer uses the GPU.
        self._ending: dict[ProcessKey, EndedStray] = {}

    def look(self, found: Iterable[GpuProcess], known: WorkloadContext, *, action: str, now: float) -> bool:
        """Update ``seen`` from the processes on the GPUs. Return True if ``seen`` has changed.

        ``action``: the pool's policy (report, warn or end). With "end", the call sends the signals that are
        due. ``now``: seconds of a monotonic clock.
        """
        before, own = {_key(stray) for stray in self.seen}, set(known.ours)
        strays: dict[ProcessKey, StraySeen] = {}
        self.runs_on_foreign_gpus = {}
        for gpu_process in found:
            if gpu_process.pid in own or known.is_of_unit_use(gpu_process):
                continue
            process = processes.read_process(gpu_process.pid)
            if process is None:
                continue  # it has ended
            key = (gpu_process.gpu, gpu_process.pid, process.start_ticks)
            run = known.run_of(process)
            if run and run == known.holders.get(gpu_process.unit):
                continue
            if run and known.identifies_unit(gpu_process):
                done = self._handle_run_process(key, run, key in before, action)
            else:
                done = self._handle_process(key, process, run, key in before, action, known, now)
            strays[key] = StraySeen(
                gpu_process.gpu,
                gpu_process.pid,
                process.start_ticks,
                _user_name(gpu_process.pid),
                process.name[:64],
                gpu_process.memory_mib,
                run,
                done,
            )
            self._note_signal(key, strays[key])
        self._note_ended()
        self._term_sent_at = {key: since for key, since in self._term_sent_at.items() if key in strays}
        current = [strays[key] for key in sorted(strays)]
        has_changed = list(map(_reported_fields, current)) != list(map(_reported_fields, self.seen))
        if has_changed:
            self.seen = current
        return has_changed

    def _note_ended(self) -> None:
        self.ended = [
            end for (_, pid, start), end in self._ending.items() if not processes.is_alive(pid, start)
        ]
        for end in self.ended:
            del self._ending[_key(end.stray)]

    def _note_signal(self, key: ProcessKey, stray: StraySeen) -> None:
        signal_sent, before = SIGNAL_SENT.get(stray.done), self._ending.get(key)
        if signal_sent is not None and (before is None or before.signal != signal_sent):
            self._ending[key] = EndedStray(stray, signal_sent)
            log.warning(
                "on %s, a process that belongs to no workload is sent %s, because of the pool's policy: %s",
                stray.gpu,
                signal_sent,
                describe_stray(stray),
            )

    def _handle_run_process(self, key: ProcessKey, run: str, seen_before: bool, action: str) -> str:
        if action != "end":
            return ""
        if not seen_before:
            return "its workload is stopped if the process stays"
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
        since = self._term_sent_at.get(key)
        if since is None:
            reason = "it belongs to a workload" if run else reason_to_spare(process, known)
            if reason:
                return f"left alone: {reason}"
            if not seen_before:
                return "is ended if it stays"
            self._term_sent_at[key] = now
            return TERM_SENT if _send_signal(process, signal.SIGTERM) else "could not be ended: not permitted"
        if now - since < TERM_GRACE_SECONDS:
            return TERM_SENT
        return KILL_SENT if _send_signal(process, signal.SIGKILL) else "could not be ended: not permitted"


def describe_stray(stray: StraySeen) -> str:
    """Return a one-line description of a stray.

    Unprintable characters are replaced by "?", because a process chooses its own name.
    """
    name = "".join(character if character.isprintable() else "?" for character in stray.name)
    memory = "" if stray.memory_mib is None else f", {stray.memory_mib} MiB"
    return f"pid={stray.pid}, {name or 'unknown'} of user {stray.user or 'unknown'}{memory}"


def ended_by_gpu(ended: Iterable[EndedStray]) -> dict[str, str]:
    """Return a text by GPU uuid that describes all strays that have ended on the GPU.

    The caller reports one event per GPU with this text. A second event of the GPU within a second would be
    dropped as a duplicate.
    """
    by_gpu: dict[str, list[str]] = {}
    for end in ended:
        by_gpu.setdefault(end.stray.gpu, []).append(str(end))
    return {
        gpu: "; ".join(descriptions[:MAX_NAMED_PROCESSES])
        + (
            f"; and {len(descriptions) - MAX_NAMED_PROCESSES} more"
            if len(descriptions) > MAX_NAMED_PROCESSES
            else ""
        )
        for gpu, descriptions in by_gpu.items()
    }


def reason_to_spare(process: processes.Process, known: WorkloadContext) -> str:
    """Return the reason why this stray must not be ended; '' if it may be ended.

    The caller has already found that the process belongs to no known run.
    """
    uid = processes.user_id_of(process.pid)
    try:
        groups = Path(f"/proc/{process.pid}/cgroup").read_text()
    except OSError:
        uid = None
    if uid is None:
        return "its identity can't be read"
    if uid < FIRST_PERSON_UID or uid in (NOBODY_UID, os.getuid()):
        return "it runs as a user of the system or of the agent"
    if (known.team_users is not None and uid in known.team_users) or process.pid in known.cgroup_pids():
        return "it belongs to a workload that this agent does not know"
    if is_system_slice(groups):
        return "it is a service of the system"
    if os.getpid() in _ancestors(process):
        return "it descends from the agent"
    return ""


def is_system_service(pid: int) -> bool:
    """Return True if the process belongs to a system service. Return False if its groups can't be read."""
    try:
        return is_system_slice(Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        return False


def is_system_slice(groups: str) -> bool:
    """Return True if these control groups, the text of /proc/PID/cgroup, belong to a system service.

    Only the system can put a process below ``/system.slice``. A group of this name inside a user's own groups
    does not count, and neither do the services that run programs of people (USER_RUN_SERVICES).
    """
    lines = [line.split(":", 2) for line in groups.splitlines() if line.count(":") >= 2]
    kept = {controller or "unified": path for _, controller, path in lines}
    path = kept.get("name=systemd", kept.get("unified", ""))
    while path.startswith("/.."):
        path = path[3:]  # in a cgroup namespace, the paths of groups outside of it begin with "/.."
    steps = path.split("/")[1:]
    if len(steps) < 2 or steps[0] != "system.slice":
        return False
    return not any(step.removesuffix(".service").partition("@")[0] in USER_RUN_SERVICES for step in steps[1:])


def _ancestors(process: processes.Process) -> list[int]:
    """Return the pids of the ancestors of a process, the parent first, without pid 1."""
    found: list[int] = []
    parent = process.parent
    while parent > 1 and parent not in found:
        found.append(parent)
        parent_process = processes.read_process(parent)
        parent = parent_process.parent if parent_process is not None else 0
    return found


def _send_signal(process: processes.Process, number: signal.Signals) -> bool:
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return True  # it has ended
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
