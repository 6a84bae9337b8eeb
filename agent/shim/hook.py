"""Runs the operator's prolog and epilog around a workload."""

from __future__ import annotations

import os
import select
import signal
import time

from agent.shim.log_writer import drain_pipe
from agent.shim.process_tree import descendants, ended_children, process_stat, send_signal
from agent.shim.run_files import boot_id, boottime, log_error, write_json

TYPE_CHECKING = False  # not imported from typing, because the import would double this process's memory
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class HookHost(Protocol):
        """The parts of the supervisor that a hook uses."""

        hooks: dict[str, Any]
        wake: int

        def path(self, name: str) -> str: ...
        def remove(self, name: str) -> None: ...
        def drain_wake(self) -> None: ...


HOOK_TICK_SECONDS = 0.2
MAX_HOOK_OUTPUT_BYTES = 500  # the error message of a failed hook ends with this much of its last output
HOOK_CLEANUP_SECONDS = 5.0  # longest wait for the end of a hook's processes after SIGKILL


class HookRun:
    """One run of an operator's program, as the agent's user. After its end, all its processes are killed."""

    def __init__(self, shim: HookHost, name: str, more: dict[str, str]) -> None:
        self.shim = shim
        self.name = name
        self.seconds = float(shim.hooks["seconds"])
        self.env = {**shim.hooks["env"], "GPUPOOL_HOOK": name, **more}
        self.pid = 0
        self.status: int | None = None
        self.output = -1
        self.last_output = b""

    def run(self, is_cancelled: Callable[[], bool], ended: dict[str, Any] | None = None) -> str:
        """Run the program. Return '' if it ended with status 0, otherwise an error message.

        For an epilog, ``ended`` is the record of how the workload ended. For a prolog it is None.

        If the shim was killed, the agent starts another process for the epilog. An epilog that the shim has
        already started is not started a second time. In this case this method returns ''.
        """
        self.output, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        gate, go = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(go)
            self.become(gate, write_end)
        os.close(write_end)
        os.close(gate)
        try:
            if ended is not None and not self.is_first(ended):
                os.close(go)
                os.waitpid(self.pid, 0)
                return ""
            os.write(go, b"+")
            os.close(go)
            return self.wait(is_cancelled)
        finally:
            self.kill_remaining()
            os.close(self.output)

    def become(self, gate: int, output: int) -> None:
        try:
            if os.read(gate, 1) != b"+":
                return  # the parent closed the pipe, which means: do not start
            os.setsid()
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.set_blocking(output, True)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.set_wakeup_fd(-1)
            for number in range(1, 32):
                if number not in (signal.SIGKILL, signal.SIGSTOP):
                    signal.signal(number, signal.SIG_DFL)
            os.chdir("/")
            program = self.shim.hooks[self.name]
            os.execve(program, [program], self.env)
        except OSError as problem:
            os.write(2, f"it can't be started: {problem.strerror}".encode())
        finally:
            os._exit(127)

    def is_first(self, ended: dict[str, Any]) -> bool:
        """Create epilog.json and return True. Return False if another process has already created the file.

        The file records that the epilog was started. The agent reads the file and waits for the epilog until
        its time limit. On a full disk the epilog runs without the file.
        """
        stat = process_stat(self.pid)
        mark = {"pid": self.pid, "start_ticks": stat[1] if stat else 0, "boot_id": boot_id()}
        new, path = self.shim.path(f"epilog.{self.pid}"), self.shim.path("epilog.json")
        try:
            write_json(new, {**mark, "until": boottime() + self.seconds, "ended": ended})
            os.link(new, path)
        except FileExistsError:
            return False
        except OSError as problem:
            log_error(f"epilog.json: {problem}")
        finally:
            self.shim.remove(os.path.basename(new))
        return True

    def wait(self, is_cancelled: Callable[[], bool]) -> str:
        until = boottime() + self.seconds
        while self.status is None:
            if boottime() >= until:
                return f"the operator's {self.name} did not end in {self.seconds:g} seconds and was killed"
            if is_cancelled():
                return f"it was stopped while the operator's {self.name} ran"
            select.select([self.shim.wake], [], [], min(HOOK_TICK_SECONDS, max(0.0, until - boottime())))
            self.shim.drain_wake()
            self.read_output()
            self.reap()
        self.read_output()
        if self.status == 0:
            return ""
        code = 128 + os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else os.WEXITSTATUS(self.status)
        words = " ".join(
            self.last_output[-MAX_HOOK_OUTPUT_BYTES:].decode("utf-8", "replace").replace("\x00", "?").split()
        )
        return f"the operator's {self.name} ended with {code}" + (f": {words}" if words else "")

    def read_output(self) -> None:
        """Read the output of the program and keep the end of it."""
        drain_pipe(self.output, self.keep_output)

    def keep_output(self, data: bytes) -> None:
        self.last_output = (self.last_output + data)[-MAX_HOOK_OUTPUT_BYTES:]

    def reap(self) -> None:
        for pid, status in ended_children():
            if pid == self.pid:
                self.status = status

    def kill_remaining(self) -> None:
        """Send SIGKILL to the hook and all its descendants, until none remains.

        Return after HOOK_CLEANUP_SECONDS even if some remain.
        """
        until = boottime() + HOOK_CLEANUP_SECONDS
        while boottime() < until:
            self.reap()
            rest = descendants(os.getpid())
            if not rest:
                return
            for pid, _, _ in rest:
                send_signal(pid, signal.SIGKILL)
            time.sleep(0.02)
