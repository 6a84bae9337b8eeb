"""Start agents from a preloaded process, so that a start needs a fork and no imports.

Run as a program, this file is the preloaded process. It imports the agent and ``tests.agent.counted_agent``,
and no other test module. ``start_preloaded_agent`` starts an agent with the caller's arguments and output,
like ``python -m tests.agent.counted_agent``.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MESSAGE_BYTES = 1 << 20
NUMBER = struct.Struct("<i")
SET_BY_PYTEST = "PYTEST_CURRENT_TEST"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != SET_BY_PYTEST}


class PreloadedAgent:
    """A forked agent. It has the interface of ``asyncio.subprocess.Process`` that the tests use."""

    def __init__(self, pid: int, status_pipe: int) -> None:
        self.pid = pid
        self._pipe = status_pipe
        self._returncode: int | None = None

    @property
    def returncode(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the agent runs."""
        if self._returncode is None and select.select([self._pipe], [], [], 0)[0]:
            answer = os.read(self._pipe, NUMBER.size)
            os.close(self._pipe)
            assert answer, "the preloaded process has ended"
            self._returncode = os.waitstatus_to_exitcode(NUMBER.unpack(answer)[0])
        return self._returncode

    async def wait(self) -> int:
        """Return the exit status after the end of the agent."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        if self.returncode is None:
            watched = os.dup(self._pipe)  # another waiter may read the status and close the pipe
            loop.add_reader(watched, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(watched)
                os.close(watched)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def has_its_first_environment() -> bool:
    """Return False if a test has changed the environment, because the preloaded process lacks the change."""
    return {name: value for name, value in os.environ.items() if name != SET_BY_PYTEST} == ENVIRONMENT


def start_preloaded_agent(
    arguments: Sequence[str], counts: Path | None = None, constants: Mapping[str, float] | None = None
) -> PreloadedAgent:
    """Start an agent like ``python -m agent ARGUMENTS`` in the checkout, with this process's output.

    If `counts` is given, the agent counts its steps in that folder. `constants` replaces constants of the
    agent's modules: {dotted name: value}.
    """
    connection = _preloaded_process()
    pid_pipe, pid_end = os.pipe()
    status_pipe, status_end = os.pipe()
    request = json.dumps(
        {
            "arguments": list(arguments),
            "counts": str(counts) if counts else "",
            "constants": dict(constants or {}),
        }
    ).encode()
    rights = array.array("i", [0, 1, 2, pid_end, status_end])
    try:
        connection.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        os.close(pid_end)
        pid = NUMBER.unpack(os.read(pid_pipe, NUMBER.size))[0]
    finally:
        os.close(status_end)
        os.close(pid_pipe)
    return PreloadedAgent(pid, status_pipe)


@cache
def _preloaded_process() -> socket.socket:
    """Return a connection to the preloaded process, which is started once per test process.

    The preloaded process ends after the test process has ended.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
    subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno()), "agent run"],  # "agent run": for the output of `ps`
        cwd=ROOT,
        env=ENVIRONMENT,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    theirs.close()
    return ours


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork an agent for each request.

    Returns the request in each forked process. Returns None after the test process has ended.
    """
    running: dict[int, int] = {}
    wake, child_ended = os.pipe()
    for end in (wake, child_ended):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(child_ended, warn_on_full_buffer=False)
    while True:
        readable = select.select([connection, wake], [], [])[0]
        if wake in readable:
            os.read(wake, 4096)
            _report_ended(running)
        if connection not in readable:
            continue
        request, ancillary, _, _ = connection.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(5 * 4))
        if not request:
            return None
        *standard, pid_end, status_end = array.array("i", ancillary[0][2])
        pid = os.fork()
        if pid == 0:
            return _become_agent(request, standard)
        os.write(pid_end, NUMBER.pack(pid))
        running[pid] = status_end
        for end in (*standard, pid_end):
            os.close(end)


def _report_ended(running: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status_end = running.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):  # no test reads the exit status of this agent
                os.write(status_end, NUMBER.pack(ended[1]))
            os.close(status_end)


def _become_agent(request: bytes, standard: Sequence[int]) -> dict[str, Any]:
    """Give this forked process the state of a new process. Return the request."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, source in enumerate(standard):
        os.dup2(source, target)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    wanted: dict[str, Any] = json.loads(request)
    return wanted


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the test process
    sys.path[0] = str(ROOT)
    import agent.cli
    from tests.agent import counted_agent

    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        request = _serve(connection)
        if request is None:
            return 0
        connection.detach()
    if request["counts"]:
        counted_agent.count_steps(Path(request["counts"]))
    counted_agent.set_constants(request["constants"])
    arguments = request["arguments"]
    sys.argv = [str(ROOT / "agent" / "__main__.py"), *arguments]
    return agent.cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
