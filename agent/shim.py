"""The shim: one small process per workload that owns its process tree, its log and its lease.

Started by the agent as ``python -I -S shim.py RUN_DIR`` and then on its own: the agent may die and come back. It imports
only a few modules of the standard library and nothing of ours, so that it stays small (about 10 MB).

It reads from RUN_DIR                         It writes to RUN_DIR
  spec.json   what to start and the limits      shim.json   who it is (pid, start time, boot) and when the workload began
  lease       a time on CLOCK_BOOTTIME          log/        the workload's output, in segments named by their first byte
  order.json  what the agent asks for           exit.json   how it ended, written last, once, atomically

CLOCK_BOOTTIME counts through sleep and never jumps, so no change of the wall clock can shorten or lengthen a lease.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # not from typing: it would double this process's memory
if TYPE_CHECKING:
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36
TICK_SECONDS = 1.0
LEFTOVER_GRACE_SECONDS = 2.0  # for background processes that outlive the workload's main process
KILL_AGAIN_SECONDS = 0.1
LOG_SEGMENT_BYTES = 1 << 20
LOG_SEGMENTS = 8
READ_BYTES = 1 << 16
ACKNOWLEDGEMENT = ".done"


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object in ``path``, or None while there is none."""
    try:
        with open(path) as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (FileNotFoundError, ValueError):
        return None


def write_json(path: str, value: dict[str, Any]) -> None:
    """Atomic and durable: a reader sees the old file, the new file or none."""
    new = path + ".new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def process_stat(pid: int | str) -> tuple[int, int, str, str] | None:
    """(parent pid, start time in ticks, state letter, name) of a process, or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), int(fields[19]), fields[0], name


def descendants(root: int) -> list[tuple[int, int, str]]:
    """[(pid, depth, name)] of every living process below ``root``. Orphans stay below it: it is their subreaper."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = process_stat(entry)
            if stat is not None and stat[2] not in "ZX":
                children.setdefault(stat[0], []).append((int(entry), stat[3]))
    found: list[tuple[int, int, str]] = []
    level = [(root, 0)]
    while level:
        pid, depth = level.pop()
        for child, name in children.get(pid, ()):
            found.append((child, depth + 1, name))
            level.append((child, depth + 1))
    return found


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for the signal: one that has none would die of it."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return False


def out_of_memory_kills() -> int | None:
    """The kernel's count of processes it killed for memory, or None where it does not say."""
    try:
        with open("/proc/vmstat") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except OSError:
        return None
    return None


class Log:
    """The workload's output in segments named by the offset of their first byte; the oldest go when there are too many."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.offset = 0
        self.file: int | None = None
        self.written = 0
        self.lost = 0
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def write(self, data: bytes) -> None:
        """Never raises: a full disk costs output, not the workload."""
        try:
            file = self.rotate() if self.file is None or self.written >= LOG_SEGMENT_BYTES else self.file
            while data:
                written = os.write(file, data)
                self.offset += written
                self.written += written
                data = data[written:]
        except OSError:
            self.lost += len(data)

    def rotate(self) -> int:
        if self.file is not None:
            os.close(self.file)
            self.file = None
        path = os.path.join(self.folder, f"{self.offset:015d}")
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.written = 0
        for name in sorted(os.listdir(self.folder))[:-LOG_SEGMENTS]:
            os.unlink(os.path.join(self.folder, name))
        return self.file


class Shim:
    """One workload from its start to its end."""

    def __init__(self, run_dir: str) -> None:
        self.dir = run_dir
        self.spec: dict[str, Any] = read_json(self.path("spec.json")) or {}
        self.log = Log(self.path("log"))
        self.main = 0  # pid of the process that was started: the workload itself or its sandbox
        self.main_status: int | None = None
        self.cause = ""  # why it is being stopped: "", "stop", "lease_lost", "time_limit", "leftover"
        self.stop_outcome = ""
        self.stop_whatever = False
        self.kill_at: float | None = None
        self.killed = False
        self.notice_seen: tuple[int, ...] | None = None  # the acknowledgement as it stood when the notice came
        self.noticed = False
        self.order_seen: tuple[int, int] | None = None
        self.ends_at: float | None = None
        self.wake = -1
        self.pipe: int | None = None
        self.oom_before: int | None = None

    def path(self, name: str) -> str:
        return os.path.join(self.dir, name)

    def run(self) -> None:
        """Start the workload, keep it, write how it ended."""
        self.catch_signals()
        os.set_inheritable(
            self.spec["alive_fd"], False
        )  # says that the shim lives; the GPU locks go on to the workload
        me = process_stat(os.getpid())
        identity: dict[str, Any] = {"pid": os.getpid(), "start_ticks": me[1] if me else 0, "boot_id": boot_id()}
        write_json(self.path("shim.json"), identity)
        self.oom_before = out_of_memory_kills()
        error = self.start()
        if error:
            self.finish("start_failed", None, error)
            return
        began = boottime()
        if self.spec.get("max_runtime_seconds"):
            self.ends_at = began + self.spec["max_runtime_seconds"]
        write_json(self.path("shim.json"), {**identity, "main_pid": self.main, "started_at": time.time()})
        self.keep()
        outcome, code = self.outcome()
        self.finish(outcome, code, "")

    def catch_signals(self) -> None:
        self.wake, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)  # who wants this workload stopped tells the agent
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(self) -> str:
        """Fork and exec the workload. The reason when it could not be started, else ''."""
        self.pipe, output = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.pipe, False)
        failed, failed_write = os.pipe2(os.O_CLOEXEC)
        self.main = os.fork()
        if self.main == 0:
            try:
                self.become_workload(output)
            except (OSError, ValueError, TypeError) as problem:
                os.write(failed_write, str(problem).encode()[:4000])
            finally:
                os._exit(127)
        os.close(output)
        os.close(failed_write)
        message = os.read(failed, 4096).decode("utf-8", "replace")
        os.close(failed)
        if message:
            os.waitpid(self.main, 0)
        return message

    def become_workload(self, output: int) -> None:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.set_wakeup_fd(-1)
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP) and number < 32:
                signal.signal(number, signal.SIG_DFL)
        os.umask(0o077)
        os.chdir(self.spec.get("cwd") or "/")
        for name in self.spec.get("cgroup_procs", ()):
            with open(name, "w") as file:
                file.write(str(os.getpid()))
        argv = self.spec["argv"]
        os.execvpe(argv[0], argv, self.spec["env"])

    def keep(self) -> None:
        """Until no process of the workload is left."""
        while True:
            readable, _, _ = select.select(
                [self.wake] + ([self.pipe] if self.pipe is not None else []), [], [], self.wait()
            )
            if self.wake in readable:
                self.drain_wake()
            self.drain_log()
            self.reap()
            self.obey()
            self.check_limits()
            if self.main_status is not None and not self.leftovers():
                self.drain_log()
                return

    def wait(self) -> float:
        if self.killed:
            return KILL_AGAIN_SECONDS
        now = boottime()
        ends = [when for when in (self.kill_at, self.ends_at, self.lease()) if when is not None and when > now]
        return min([TICK_SECONDS] + [when - now + 0.001 for when in ends])

    def drain_wake(self) -> None:
        try:
            while os.read(self.wake, 512):
                continue
        except BlockingIOError:
            return

    def drain_log(self) -> None:
        for _ in range(64):  # then look at signals and limits again, however much the workload writes
            if self.pipe is None:
                return
            try:
                data = os.read(self.pipe, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                os.close(self.pipe)
                self.pipe = None
                return
            self.log.write(data)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.main_status = status

    def lease(self) -> float | None:
        try:
            with open(self.path("lease")) as file:
                return float(file.read())
        except (OSError, ValueError):
            return None

    def obey(self) -> None:
        """Carry out what the agent wrote into order.json since the last look."""
        try:
            stat = os.stat(self.path("order.json"))
        except FileNotFoundError:
            return
        mark = (stat.st_ino, stat.st_mtime_ns)
        if mark == self.order_seen:
            return
        self.order_seen = mark
        order = read_json(self.path("order.json")) or {}
        notice = order.get("notice")
        if notice and not self.noticed:
            self.give_notice(notice)
        elif not notice and self.noticed:
            self.noticed = False
            self.remove("in/notice")
        if order.get("stop") and not self.cause:
            self.stop_outcome = order["stop"]["outcome"]
            self.stop_whatever = order["stop"]["whatever"]
            self.stop("stop", order["stop"]["grace_seconds"])

    def acknowledgement(self) -> tuple[int, ...] | None:
        """What tells one acknowledgement of a checkpoint from another, or None. It never follows a link."""
        folder = self.spec.get("checkpoint_dir")
        try:
            stat = os.lstat(os.path.join(folder, ACKNOWLEDGEMENT)) if folder else None
        except OSError:
            return None
        return (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) if stat else None

    def acknowledged(self) -> bool:
        now = self.acknowledgement()
        return self.noticed and now is not None and now != self.notice_seen

    def give_notice(self, notice: dict[str, Any]) -> None:
        """The file, then the signal. How the acknowledgement stood before decides what counts as an answer to it."""
        self.noticed = True
        self.notice_seen = self.acknowledgement()
        self.tell("in/notice", notice)
        if self.spec.get("signal_notice", True):
            for pid in self.workload_processes():
                if catches(pid, signal.SIGUSR1):
                    send(pid, signal.SIGUSR1)

    def tell(self, name: str, value: dict[str, Any]) -> None:
        """Write what is good to know but not worth dying for: on a full disk the workload goes on."""
        try:
            write_json(self.path(name), value)
        except OSError as problem:
            print(f"{name}: {problem}", file=sys.stderr)

    def remove(self, name: str) -> None:
        try:
            os.unlink(self.path(name))
        except FileNotFoundError:
            return

    def workload_processes(self) -> list[int]:
        """Pids of the workload itself: not the sandbox's own two processes, whose end would be everyone's."""
        sandboxed = self.spec.get("launcher") == "bubblewrap"
        return [pid for pid, depth, _ in descendants(os.getpid()) if not (sandboxed and depth <= 2)]

    def check_limits(self) -> None:
        now = boottime()
        if not self.cause:
            lease = self.lease()
            if self.ends_at is not None and now >= self.ends_at:
                self.stop("time_limit", self.spec["grace_seconds"])
            elif lease is not None and now >= lease:
                self.stop("lease_lost", self.spec["grace_seconds"])
        if self.kill_at is not None and now >= self.kill_at:
            self.kill()

    def stop(self, cause: str, grace: float) -> None:
        self.cause = cause
        self.kill_at = boottime() + grace
        self.tell("stopping.json", {"cause": cause})
        for pid in self.workload_processes() or [self.main]:  # a sandbox that is still being made has no workload yet
            send(pid, signal.SIGTERM)
            send(pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.main_status is None or self.leftovers():
            self.killed = self.killed or self.cause != "leftover"
            for pid, _, _ in descendants(os.getpid()):
                send(pid, signal.SIGKILL)

    def leftovers(self) -> bool:
        """Whether processes of the workload outlive its main process; asks them to go, then makes them."""
        if not descendants(os.getpid()):
            return False
        if not self.cause:
            self.stop("leftover", LEFTOVER_GRACE_SECONDS)
        return True

    def outcome(self) -> tuple[str, int]:
        """(reason code, exit code in the shell's convention) of a workload that has ended."""
        status = self.main_status or 0
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if self.cause in ("lease_lost", "time_limit"):
            return self.cause, code
        if self.cause == "stop":
            if self.stop_whatever:
                return self.stop_outcome, code
            if self.killed:
                return "killed_at_grace", code
            return ("checkpointed" if self.acknowledged() else self.stop_outcome), code
        if self.acknowledged():
            return "checkpointed", code
        if code == 0:
            return "finished", code
        after = out_of_memory_kills()
        counted = self.oom_before is not None and after is not None and after > self.oom_before
        if code == 128 + signal.SIGKILL and counted:
            return "out_of_memory", code
        return "failed", code

    def finish(self, outcome: str, code: int | None, error: str) -> None:
        ended = {"outcome": outcome, "exit_code": code, "ended_at": time.time(), "error": error, "killed": self.killed}
        while True:
            try:
                write_json(self.path("exit.json"), ended)
                return
            except OSError as problem:
                if problem.errno != errno.ENOSPC:
                    raise
                time.sleep(TICK_SECONDS)  # a full disk: the end is told as soon as there is room


def leave_parent() -> None:
    """A session of its own and no parent that waits: the end of the agent does not reach it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def main(run_dir: str) -> None:
    leave_parent()
    Shim(run_dir).run()


if __name__ == "__main__":
    main(sys.argv[1])
