"""Starts one workload, supervises it and records its end."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import time
from stat import S_ISREG

from agent.shim import lifecycle_rules
from agent.shim.guard import fork_guard
from agent.shim.hook import HookRun
from agent.shim.log_writer import LogWriter, drain_pipe
from agent.shim.notice_server import NoticeServer
from agent.shim.process_tree import (
    cgroup_members,
    descendants,
    ended_children,
    has_signal_handler,
    out_of_memory_kills,
    process_stat,
    send_signal,
)
from agent.shim.run_files import boot_id, boottime, log_error, read_json, write_json
from agent.shim.workload_entry import fork_workload

TYPE_CHECKING = False  # not imported from typing, because the import would double this process's memory
if TYPE_CHECKING:
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36
NOTICE_SERVER_TICK_SECONDS = 0.02
TICK_SECONDS = 1.0
LEFTOVER_GRACE_SECONDS = 2.0  # time from TERM to KILL for background processes that outlive the main process
KILL_RETRY_SECONDS = 0.1
# After this many tries to kill the workload, wait TICK_SECONDS between two tries, because each try reads all
# of /proc.
KILL_RETRIES = 20
ACKNOWLEDGEMENT_FILE = ".done"


class WorkloadSupervisor:
    """Supervises one workload from its start to its end."""

    def __init__(self, run_dir: str) -> None:
        self.dir = run_dir
        self.spec: dict[str, Any] = read_json(self.path("spec.json")) or {}
        self.log = LogWriter(self.path("log"))
        self.main = 0  # pid of the started process: the workload itself or its sandbox
        self.main_status: int | None = None
        self.cause = ""  # why the workload is stopped: "", "stop", "lease_lost", "time_limit", "leftover"
        self.stop_outcome = ""
        self.stop_whatever = False
        self.kill_at: float | None = None
        self.killed = False
        self.prolog_failed = False  # True: the prolog failed and was not cancelled
        self.polls_after_kill = 0
        self.acknowledgement_before_notice: tuple[int, ...] | None = None
        self.noticed = False
        self.notice: dict[str, Any] | None = None
        self.notice_server: NoticeServer | None = None
        self.order_seen: dict[str, Any] = {}
        self.began = 0.0
        self.ends_at: float | None = None
        self.lease_until = 0.0
        self.lease_error_logged = False  # True: an unreadable lease was logged, and is not logged again
        self.wake = -1
        self.pipe: int | None = None
        self.oom_before: int | None = None
        self.hooks: dict[str, Any] = self.spec.get("hooks", {})

    def path(self, name: str) -> str:
        return os.path.join(self.dir, name)

    def run(self) -> None:
        """Start the workload, supervise it, and record its end."""
        self.catch_signals()
        # The descriptors hold the lock of the file ``alive`` and the GPU locks. The workload must not inherit
        # them.
        for descriptor in self.spec["own_fds"]:
            os.set_inheritable(descriptor, False)
        own = process_stat(os.getpid())
        guard = process_stat(os.getppid())
        identity: dict[str, Any] = {
            "pid": os.getpid(),
            "start_ticks": own[1] if own else 0,
            "boot_id": boot_id(),
            "guard": {"pid": os.getppid(), "start_ticks": guard[1] if guard else 0},
        }
        write_json(self.path("shim.json"), identity)
        if not self.prolog(identity):
            return
        self.oom_before = out_of_memory_kills()
        self.make_notice_server()
        if self.is_cancelled():  # for example, the lease has expired during the start
            self.finish_unstarted("it was stopped, or its lease expired, before it started")
            return
        self.main, self.pipe, error = fork_workload(self.spec)
        if error:
            self.finish("start_failed", None, error)
            return
        self.began = boottime()
        self.limit(self.spec.get("max_runtime_seconds", 0))
        write_json(self.path("shim.json"), {**identity, "main_pid": self.main, "started_at": time.time()})
        self.supervise()
        outcome, code = self.outcome()
        self.finish(outcome, code, "")

    def catch_signals(self) -> None:
        self.wake, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            # A workload is stopped through the agent, not by signals to its shim.
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def make_notice_server(self) -> None:
        """Create the notice server.

        If this fails, the workload still gets the notice as a file and a signal.
        """
        try:
            own_network = bool(self.spec.get("network")) or "--unshare-net" in self.spec["argv"]
            self.notice_server = NoticeServer(own_network, self.spec.get("user"))
        except OSError as problem:
            log_error(f"notice over HTTP: {problem}")
        else:
            self.spec["env"]["GPUPOOL_NOTICE_URL"] = self.notice_server.url

    def supervise(self) -> None:
        """Supervise the workload until none of its processes remains."""
        while True:
            waits_for: list[Any] = [
                self.wake,
                *(self.notice_server.waits_for() if self.notice_server is not None else []),
            ]
            waits_for += [self.pipe] if self.pipe is not None else []
            readable, _, _ = select.select(waits_for, [], [], self.wait())
            if self.wake in readable:
                self.drain_wake()
            self.drain_log()
            self.reap()
            self.apply_order()
            self.serve_notice(readable)
            self.enforce_limits()
            if self.main_status is not None and not self.leftovers():
                self.drain_log()
                return

    def wait(self) -> float:
        if self.killed:
            self.polls_after_kill += 1
            return KILL_RETRY_SECONDS if self.polls_after_kill <= KILL_RETRIES else TICK_SECONDS
        if self.notice_server is not None and self.notice_server.is_due:
            return NOTICE_SERVER_TICK_SECONDS
        now = boottime()
        ends = [
            when for when in (self.kill_at, self.ends_at, self.lease()) if when is not None and when > now
        ]
        return min([TICK_SECONDS] + [when - now + 0.001 for when in ends])

    def serve_notice(self, readable: list[Any]) -> None:
        """Open the notice server once the workload has processes, and answer its requests."""
        if self.notice_server is None:
            return
        if self.notice_server.is_due:
            workload = self.workload_processes()
            if workload:
                self.notice_server.open_in_network_of(workload[0])
        self.notice_server.answer(readable, self.notice)

    def drain_wake(self) -> None:
        try:
            while os.read(self.wake, 512):
                continue
        except BlockingIOError:
            return

    def drain_log(self) -> None:
        if self.pipe is not None and drain_pipe(self.pipe, self.log.write):
            os.close(self.pipe)
            self.pipe = None

    def reap(self) -> None:
        for pid, status in ended_children():
            if pid == self.main:
                self.main_status = status

    def lease(self) -> float:
        """Return the end of the lease (CLOCK_BOOTTIME). If the file is unreadable, return the last value.

        While the disk is read-only, the agent writes later ends into a file in memory.
        """
        try:
            with open(self.path("lease")) as file:
                self.lease_until = max(float(file.read()), self.lease_in_memory())
        except (OSError, ValueError) as problem:
            if not self.lease_error_logged:
                log_error(f"lease: {problem}")
            self.lease_error_logged = True
        return self.lease_until

    def lease_in_memory(self) -> float:
        """Return the end of the lease that the agent has written into memory; 0.0 if it has written none."""
        number = self.spec.get("lease_fd")
        text = os.pread(number, 64, 0) if number is not None else b""
        return float(text) if text else 0.0

    def apply_order(self) -> None:
        """Apply the orders that the agent has written since the last call."""
        try:
            order = read_json(self.path("order.json"))
        except OSError:
            return  # the next call reads it again
        if order is None or order == self.order_seen:
            return  # the file is missing, is being written, or is unchanged
        self.order_seen = order
        notice = order.get("notice")
        if notice and not self.noticed:
            self.give_notice(notice)
        elif not notice and self.noticed:
            self.noticed, self.notice = False, None
            self.remove("in/notice")
        if order.get("max_runtime_seconds") is not None:
            self.limit(order["max_runtime_seconds"])
        if lifecycle_rules.accepts_stop_order(order, self.cause, self.main_status is not None):
            self.stop_outcome = order["stop"]["outcome"]
            self.stop_whatever = order["stop"]["whatever"]
            self.stop("stop", order["stop"]["grace_seconds"])

    def limit(self, seconds: float) -> None:
        """Set the time limit to ``seconds`` after the start of the workload; 0 means no limit."""
        self.ends_at = lifecycle_rules.time_limit_deadline(self.began, seconds)

    def acknowledgement(self) -> tuple[int, ...] | None:
        """Return a value that identifies the workload's checkpoint acknowledgement; None if there is none.

        The acknowledgement is a file. Links are never followed.
        """
        folder = self.spec.get("checkpoint_dir")
        try:
            stat = os.lstat(os.path.join(folder, ACKNOWLEDGEMENT_FILE)) if folder else None
        except OSError:
            return None
        if stat is None or not S_ISREG(stat.st_mode):
            return None  # a link or a folder: the agent does not accept it either
        return (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)

    def acknowledged(self) -> bool:
        now = self.acknowledgement()
        return self.noticed and now is not None and now != self.acknowledgement_before_notice

    def give_notice(self, notice: dict[str, Any]) -> None:
        """Give the workload a stop notice: write the notice file, then send SIGUSR1 to its processes.

        Only a job gets the signal, and only in its processes that handle SIGUSR1, because it would kill other
        processes. Only a checkpoint acknowledgement after this time counts as an answer to the notice.
        """
        self.noticed, self.notice = True, notice
        self.acknowledgement_before_notice = self.acknowledgement()
        self.write_or_log("in/notice", notice)
        if self.spec.get("signal_notice", True):
            for pid in self.workload_processes():
                if has_signal_handler(pid, signal.SIGUSR1):
                    send_signal(pid, signal.SIGUSR1)

    def write_or_log(self, name: str, value: dict[str, Any]) -> None:
        """Write a file that is not essential.

        An error, such as a full disk, is only logged, and the workload continues.
        """
        try:
            write_json(self.path(name), value, 0o640)  # the group of ``in`` is the group of the workload
        except OSError as problem:
            log_error(f"{name}: {problem}")

    def remove(self, name: str) -> None:
        try:
            os.unlink(self.path(name))
        except FileNotFoundError:
            return
        except OSError as problem:
            log_error(f"{name}: {problem}")

    def workload_processes(self) -> list[int]:
        """Return the pids of the workload, without the two processes of the sandbox itself."""
        sandboxed = self.spec.get("launcher") == "bubblewrap"
        return [pid for pid, depth, _ in descendants(os.getpid()) if not (sandboxed and depth <= 2)]

    def enforce_limits(self) -> None:
        now = boottime()
        if not self.cause and (cause := lifecycle_rules.stop_cause(now, self.ends_at, self.lease())):
            self.stop(cause, self.spec["grace_seconds"])
        if self.kill_at is not None and now >= self.kill_at:
            self.kill()

    def stop(self, cause: str, grace: float) -> None:
        self.cause = cause
        self.kill_at = boottime() + grace
        self.write_or_log("stopping.json", {"cause": cause})
        # A sandbox that is being set up has no workload process yet.
        for pid in self.workload_processes() or [self.main]:
            send_signal(pid, signal.SIGTERM)
            send_signal(pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.main_status is None or self.leftovers():
            self.killed = self.killed or self.cause != "leftover"
            for pid in self.all_pids():
                send_signal(pid, signal.SIGKILL)

    def all_pids(self) -> set[int]:
        """Return the pids of all processes below this process or in the workload's control groups."""
        grouped = cgroup_members(self.spec.get("cgroup_procs", []))
        living = {pid for pid in grouped if (process_stat(pid) or (0, 0, "X", ""))[2] not in "ZX"}
        return living | {pid for pid, _, _ in descendants(os.getpid())}

    def leftovers(self) -> bool:
        """Return True if processes of the workload are still alive. Call this after the main process has
        ended.

        The remaining processes get SIGTERM and, after a grace period, SIGKILL.
        """
        if not self.all_pids():
            return False
        if not self.cause:
            self.stop("leftover", LEFTOVER_GRACE_SECONDS)
        return True

    def outcome(self) -> tuple[str, int]:
        """Return the outcome and the exit code of a workload that has ended.

        The exit code is 128 + N if signal N has killed the main process.
        """
        status = self.main_status or 0
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        stop = (self.stop_outcome, self.stop_whatever)
        saved, out_of_memory = self.acknowledged(), self.ran_out_of_memory(code)
        return lifecycle_rules.outcome_of_exit(
            code, self.cause, stop, killed=self.killed, saved=saved, out_of_memory=out_of_memory
        ), code

    def ran_out_of_memory(self, code: int) -> bool:
        own = out_of_memory_kills(self.spec["memory_events"]) if self.spec.get("memory_events") else None
        return lifecycle_rules.ran_out_of_memory(code, own, self.oom_before, out_of_memory_kills())

    # --- the operator's hooks ---

    def prolog(self, identity: dict[str, Any]) -> bool:
        """Run the prolog, if there is one. Return True if the workload may start.

        If the workload must not start, this method records its end.
        """
        if not self.hooks.get("prolog"):
            return True
        write_json(self.path("shim.json"), {**identity, "step": "running the operator's prolog"})
        # With the run's mark in its environment, the agent can find and kill the hook if this process is
        # killed.
        hook = HookRun(self, "prolog", {"GPUPOOL_MARK": self.spec["env"]["GPUPOOL_MARK"]})
        why = hook.run(self.is_cancelled)
        if not why:
            return True
        self.prolog_failed = not self.cause
        self.finish_unstarted(why)
        return False

    def finish_unstarted(self, why: str) -> None:
        self.finish(lifecycle_rules.outcome_of_unstarted(self.cause, self.stop_outcome), None, why)

    def is_cancelled(self) -> bool:
        """Return True if the workload must not start: a stop was ordered, or the lease has expired."""
        order = read_json(self.path("order.json")) or {}
        self.cause = lifecycle_rules.start_blocker(order, boottime(), self.lease()) or self.cause
        if self.cause == "stop":
            self.stop_outcome = order["stop"]["outcome"]
        return bool(self.cause)

    def epilog(self, ended: dict[str, Any]) -> str:
        """Run the epilog, unless there is none or it was started before. Return '' or an error message."""
        if not self.hooks.get("epilog"):
            return ""
        self.write_or_log("stopping.json", {"cause": self.cause or "epilog"})
        code = "" if ended["exit_code"] is None else str(ended["exit_code"])
        hook = HookRun(self, "epilog", {"GPUPOOL_OUTCOME": ended["outcome"], "GPUPOOL_EXIT_CODE": code})
        return hook.run(lambda: False, ended)

    def run_epilog_only(self) -> None:
        """Run only the epilog. The agent starts a process for this if the shim of the run was killed.

        The agent has already killed all processes of the workload.
        """
        self.catch_signals()
        why = self.epilog({"outcome": "host_lost", "exit_code": None, "ended_at": time.time()})
        if why:
            log_error(f"epilog: {why}")

    def finish(self, outcome: str, code: int | None, error: str) -> None:
        ended = {
            "outcome": outcome,
            "exit_code": code,
            "ended_at": time.time(),
            "error": error,
            "killed": self.killed,
        }
        if self.prolog_failed:
            ended["prolog_failed"] = True
        epilog_error = self.epilog(ended)
        ended["error"] = error or epilog_error
        while True:
            try:
                write_json(self.path("exit.json"), ended)
                return
            except OSError as problem:
                if problem.errno == errno.ENOSPC and self.write_exit_in_reserved_space(ended):
                    return
                # The disk is full or read-only. Try again until it can be written: without the file, the end
                # of the workload would be unknown, and it would count as lost.
                time.sleep(TICK_SECONDS)

    def write_exit_in_reserved_space(self, ended: dict[str, Any]) -> bool:
        """Write the end into exit.room and rename it to exit.json. Return True on success.

        This needs no disk space, because the space of exit.room is already reserved.
        """
        reserved = self.path("exit.room")
        try:
            with open(reserved, "r+") as file:
                size = os.fstat(file.fileno()).st_size
                file.write(json.dumps({**ended, "error": ended["error"][: size // 8]}).ljust(size))
                file.flush()
                os.fsync(file.fileno())
            os.replace(reserved, self.path("exit.json"))
        except OSError as problem:
            log_error(f"exit.json: {problem}")
            return False
        return True


def detach_from_agent() -> None:
    """Continue in a forked child process, in a new session. The calling process ends.

    The child is no child of the agent, so it survives the end of the agent.
    """
    if os.fork():
        os._exit(0)
    os.setsid()


def main(run_dir: str, part: str = "") -> None:
    detach_from_agent()
    if part == "epilog":
        if os.fork():
            os._exit(0)
        WorkloadSupervisor(run_dir).run_epilog_only()
    else:
        fork_guard(read_json(os.path.join(run_dir, "spec.json")) or {})
        WorkloadSupervisor(run_dir).run()
