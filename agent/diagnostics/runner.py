"""Runs the diagnostics that the server orders.

A diagnostic tests one GPU. A unit is a whole GPU or a MIG instance. The runner tests the units of the GPU one
after the other until one does not pass. For each unit it starts a process with a deadline, which holds the
lock of the whole GPU. Workloads have priority: a diagnostic stops when a workload needs its GPU.

Each diagnostic has a folder with its result, or with the pid of its process. If the agent finds a pid there
after a restart, it waits until that process has ended. Then it reports the diagnostic as stopped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.gpu.conditions import RECOVERY_ACTIONS, Condition
from agent.gpu.reader import GpuInventory, GpuReadError
from agent.gpu.simulated_faults import FAULTS_FILE
from agent.host import gpu_locks, processes
from agent.host.durable_files import read_json, write_json
from agent.host.gpu_locks import SlotClaim
from agent.host.shutdown import cancel_tasks
from agent.host.state import StateFolder
from agent.protocol import SLOTS_PER_GPU, CheckSeen, DiagnosticSeen, DiagnosticWanted, GpuSeen, parse

log = logging.getLogger("agent.diagnostics.runner")

BUILTIN_TOOLS = ("auto", "own", "dcgm")
LOCK_POLL_SECONDS = 0.1
LOCK_WAIT_SECONDS = 60.0  # longest wait for a GPU's lock
KILL_MARGIN_SECONDS = 3.0  # a process that still lives this long after its deadline is killed
MAX_OUTPUT_BYTES = 1 << 20


class DiagnosticRunner:
    """The running and finished diagnostics that the server ordered. It runs on one event loop."""

    def __init__(
        self,
        state: StateFolder,
        hardware: GpuInventory,
        locks_folder: Path,
        *,
        simulated: bool,
        conditions: Callable[[], Awaitable[dict[str, Condition]]],
        commands: Mapping[str, list[str]] | None = None,
    ) -> None:
        self._folder = state.folder / "diagnostics"
        self._folder.mkdir(exist_ok=True, mode=0o700)
        self._faults = state.folder / FAULTS_FILE
        self._locks = locks_folder
        self._gpus = {gpu.uuid: gpu for gpu in hardware.gpus}
        self._simulated = simulated
        # The command of each diagnostic that the operator defined, by the name of the diagnostic. The server
        # requests such a diagnostic by its name and never sends a command.
        self._commands = dict(commands or {})
        self._conditions = conditions
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, tuple[str, int]] = {}  # by diagnostic: uuid of the GPU, pid of the process
        self._seen: dict[str, DiagnosticSeen] = {}
        self.changed = asyncio.Event()
        self._recover()

    def _recover(self) -> None:
        for folder in sorted(self._folder.iterdir()):
            result = read_json(folder / "result.json")
            if result is not None:
                self._seen[folder.name] = parse(DiagnosticSeen, result)

    def want(self, wanted: Iterable[DiagnosticWanted]) -> None:
        """Start the new diagnostics in ``wanted``, and forget the finished ones that are not in ``wanted``.

        The server lists a diagnostic until it has received the result.
        """
        named = {order.diagnostic: order for order in wanted if order.diagnostic.replace("-", "").isalnum()}
        for name in [name for name in self._seen if name not in named and name not in self._tasks]:
            del self._seen[name]
            shutil.rmtree(self._folder / name, ignore_errors=True)
        for name, order in named.items():
            is_final = name in self._seen and self._seen[name].state in ("passed", "failed", "stopped")
            if name not in self._tasks and not is_final:
                self._report(DiagnosticSeen(name, "wanted"))
                self._tasks[name] = asyncio.create_task(self._carry_out(order))
                self._tasks[name].add_done_callback(lambda task, name=name: self._on_task_done(name, task))  # type: ignore[misc]

    def take_over(self, hardware: GpuInventory) -> None:
        """Use this inventory from now on.

        This method is called after a MIG geometry change, and when a new read of unreadable GPUs gives a
        different inventory.
        """
        self._gpus = {gpu.uuid: gpu for gpu in hardware.gpus}

    def seen(self) -> list[DiagnosticSeen]:
        """Return the state of every diagnostic that the server has not confirmed."""
        return list(self._seen.values())

    def pids(self) -> list[int]:
        """Return the pids of the diagnostic processes and their descendants."""
        roots = [pid for _, pid in self._running.values()]
        if not roots:
            return []
        everything = processes.scan()
        return roots + [process.pid for root in roots for process in processes.descendants(everything, root)]

    def yield_gpus(self, units: Iterable[str]) -> None:
        """Stop the diagnostics on the GPUs of these units, because a workload is about to start on them."""
        wanted = set(units)
        for gpu, pid in self._running.values():
            if wanted & {unit.uuid for unit in self._gpus[gpu].units}:
                _send_signal(pid, signal.SIGTERM)

    async def close(self) -> None:
        """Stop all diagnostics. Otherwise the agent would wait for their processes after its next start."""
        for _, pid in self._running.values():
            _send_signal(pid, signal.SIGTERM)
        await cancel_tasks([*self._tasks.values()])

    def _on_task_done(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("diagnostic %s: %r", name, task.exception())
            self._finish(
                DiagnosticSeen(
                    name, "stopped", detail="the agent failed to carry it out", ended_at=time.time()
                )
            )

    async def _carry_out(self, wanted: DiagnosticWanted) -> None:
        folder = self._folder / wanted.diagnostic
        earlier = read_json(folder / "process.json")
        if earlier is not None:
            while processes.is_alive(earlier["pid"], earlier["start_ticks"]):
                await asyncio.sleep(LOCK_POLL_SECONDS)
            detail = "its agent was restarted meanwhile"
            self._finish(DiagnosticSeen(wanted.diagnostic, "stopped", detail=detail, ended_at=time.time()))
            return
        gpu = self._gpus.get(wanted.gpu)
        if gpu is None or not gpu.units:
            self._finish(
                DiagnosticSeen(wanted.diagnostic, "stopped", detail="this host does not have that GPU")
            )
            return
        if wanted.tool not in (*BUILTIN_TOOLS, *self._commands):
            detail = f"this host has no diagnostic of the name {wanted.tool[:40]!r}"
            self._finish(DiagnosticSeen(wanted.diagnostic, "stopped", detail=detail, ended_at=time.time()))
            return
        held = await self._locked(gpu)
        if held is None:
            detail = "the GPU was held all the time"
            self._finish(DiagnosticSeen(wanted.diagnostic, "stopped", detail=detail, ended_at=time.time()))
            return
        folder.mkdir(exist_ok=True, mode=0o700)
        began = time.time()
        found: list[dict[str, Any]] = []
        tool = ""
        try:
            for unit in gpu.units:
                result = await self._run_check(wanted, gpu, unit.uuid, folder, held, began)
                end = result.pop("end")
                tool = result.pop("tool") or tool
                found += result["checks"]
                if end["end"] != "passed":
                    break
        finally:
            held.close()
            self._running.pop(wanted.diagnostic, None)
        checks = [parse(CheckSeen, check) for check in found]
        recovery = await self._recovery_action_check(gpu.uuid)
        if end["end"] == "passed" and recovery:
            checks.append(CheckSeen("recovery", False, {}, recovery))
            end = {"end": "failed", "detail": f"recovery: {recovery}"}
        self._finish(
            DiagnosticSeen(
                wanted.diagnostic, end["end"], tool, checks, end["detail"][:300], began, time.time()
            )
        )

    async def _recovery_action_check(self, gpu: str) -> str:
        """Return a text about the recovery action that the driver recommends for a GPU, or about a lost GPU.

        Returns '' if the GPU needs no recovery or its condition can't be read.
        """
        try:
            condition = (await self._conditions()).get(gpu, {})
        except GpuReadError:
            return ""
        if condition.get("lost"):
            return "the driver does not reach it"
        action = RECOVERY_ACTIONS.get(condition.get("recovery") or 0, "")
        return f"the driver asks for {action.replace('_', ' ')}" if action else ""

    async def _locked(self, gpu: GpuSeen) -> gpu_locks.HeldLocks | None:
        until = time.monotonic() + LOCK_WAIT_SECONDS
        while time.monotonic() < until:
            try:
                return gpu_locks.lock_slots(self._locks, [SlotClaim(gpu.uuid, 0, SLOTS_PER_GPU)])
            except gpu_locks.SlotsLocked:
                await asyncio.sleep(LOCK_POLL_SECONDS)
        return None

    async def _run_check(
        self,
        wanted: DiagnosticWanted,
        gpu: GpuSeen,
        unit: str,
        folder: Path,
        held: gpu_locks.HeldLocks,
        began: float,
    ) -> dict[str, Any]:
        """Run the test process of one unit. Return the result of ``_parse_result`` for its output."""
        output = folder / "output"
        with output.open("wb") as out:
            process = subprocess.Popen(
                self._command(wanted, gpu, unit),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": unit,
                    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                    "GPUPOOL_GPU": gpu.uuid,
                    "GPUPOOL_UNIT": unit,
                    "GPUPOOL_GPU_INDEX": str(gpu.index),
                },
                pass_fds=held.descriptors,
                start_new_session=True,
            )
        self._running[wanted.diagnostic] = (gpu.uuid, process.pid)
        alive = processes.read_process(process.pid)
        ticks = alive.start_ticks if alive is not None else 0
        _write_if_possible(folder / "process.json", {"pid": process.pid, "start_ticks": ticks})
        self._report(DiagnosticSeen(wanted.diagnostic, "running", started_at=began))
        late = time.monotonic() + wanted.deadline_seconds + KILL_MARGIN_SECONDS
        while process.poll() is None:
            await asyncio.sleep(LOCK_POLL_SECONDS)
            if time.monotonic() > late:
                _send_signal(process.pid, signal.SIGKILL)
                if time.monotonic() > late + KILL_MARGIN_SECONDS:
                    break  # the process hangs in the driver, and keeps the lock of the GPU
        return _parse_result(output, process.poll(), wanted.deadline_seconds)

    def _command(self, wanted: DiagnosticWanted, gpu: GpuSeen, unit: str) -> list[str]:
        command = [
            sys.executable,
            "-m",
            "agent.diagnostics.gpu_check",
            "--deadline",
            f"{max(1.0, wanted.deadline_seconds):g}",
        ]
        if wanted.tool in self._commands:
            return [*command, "--tool", "operator", "--name", wanted.tool, "--", *self._commands[wanted.tool]]
        if self._simulated:
            fault = (read_json(self._faults) or {}).get(str(gpu.index), "")
            return [*command, "--tool", "simulated", "--fault", fault]
        tool = wanted.tool if unit == gpu.uuid else "own"  # DCGM tests whole GPUs only
        return [*command, "--tool", tool, "--index", str(gpu.index)]

    def _finish(self, seen: DiagnosticSeen) -> None:
        _write_if_possible(self._folder / seen.diagnostic / "result.json", asdict(seen))
        log.info("diagnostic %s: %s %s", seen.diagnostic, seen.state, seen.detail)
        self._report(seen)

    def _report(self, seen: DiagnosticSeen) -> None:
        self._seen[seen.diagnostic] = seen
        self.changed.set()


def _write_if_possible(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file that the agent reads after a restart.

    An error, such as a full disk, is only logged. The diagnostic continues.
    """
    try:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_json(path, value)
    except OSError as error:
        log.error("%s of a diagnostic could not be kept: %s", path.name, error)


def _parse_result(output: Path, status: int | None, deadline: float) -> dict[str, Any]:
    """Return a dict with the keys "tool", "checks" and "end" from the output of a test process.

    The values are those of the JSON lines that ``gpu_check`` prints. If the process printed no end, the value
    of "end" is derived from the exit status. ``status`` is None if the process still runs.
    """
    result: dict[str, Any] = {"tool": "", "checks": []}
    step, end, rest = "its start", None, ""
    for line in _output_lines(output):
        try:
            message = json.loads(line)
        except ValueError:
            rest = line
            continue
        if not isinstance(message, dict):
            continue
        result["tool"] = message.get("tool", result["tool"])
        step = message.get("step", step)
        if "check" in message:
            result["checks"].append(message["check"])
        if "end" in message:
            end = message
    if end is None:
        end = _end_without_message(status, step, rest, deadline)
        if end["end"] == "failed":
            name = str(step)[:40]
            result["checks"].append({"name": name, "passed": False, "numbers": {}, "detail": end["detail"]})
    return {**result, "end": end}


def _output_lines(output: Path) -> list[str]:
    with output.open("rb") as file:
        return file.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace").splitlines()


def _end_without_message(status: int | None, step: object, rest: str, deadline: float) -> dict[str, str]:
    """Return the end of a diagnostic whose process reported no end, derived from its exit status."""
    if status == -signal.SIGTERM:  # SIGTERM arrived before the handler was installed
        return {"end": "stopped", "detail": "it was cancelled: a workload needs the GPU"}
    if status is None or status in (-signal.SIGALRM, -signal.SIGKILL):
        suffix = ", and it can't be ended" if status is None else ""
        return {"end": "failed", "detail": f"{step}: no answer within {deadline:g} s{suffix}"}
    return {"end": "stopped", "detail": f"{step}: its process ended with {status}. {rest}"[:300]}


def _send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
