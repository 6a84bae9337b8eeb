"""The diagnostics of this host's GPUs: one process for each unit of a GPU, with its lock and a deadline. It gives way to work.

Each has a folder, so that an agent that was restarted finds what an earlier one began: a diagnostic whose process is still there is
waited for, one whose process is gone is over.
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
from agent.host.gpu_locks import SLOTS_PER_GPU, SlotClaim
from agent.host.shutdown import cancel_tasks
from agent.host.state import StateFolder
from agent.protocol import CheckSeen, DiagnosticSeen, DiagnosticWanted, GpuSeen, parse

log = logging.getLogger("agent.diagnostics.runner")

BUILTIN_TOOLS = ("auto", "own", "dcgm")
LOCK_POLL_SECONDS = 0.1
LOCK_WAIT_SECONDS = 60.0  # for a GPU's lock; a workload that holds it comes first
KILL_MARGIN_SECONDS = 3.0  # after its deadline the process has ended itself; what has not is killed
MAX_OUTPUT_BYTES = 1 << 20


class DiagnosticRunner:
    """What is wanted of this host's GPUs, what runs and what came of it. All on one event loop."""

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
        self._commands = dict(
            commands or {}
        )  # the operator's own, by name: the server only ever says the name
        self._conditions = conditions
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, tuple[str, int]] = {}  # diagnostic: the GPU, the pid that looks at it
        self._seen: dict[str, DiagnosticSeen] = {}
        self.changed = asyncio.Event()
        self._recover()

    def _recover(self) -> None:
        for folder in sorted(self._folder.iterdir()):
            result = read_json(folder / "result.json")
            if result is not None:
                self._seen[folder.name] = parse(DiagnosticSeen, result)

    def want(self, wanted: Iterable[DiagnosticWanted]) -> None:
        """Begin what is new, forget what the server knows the end of."""
        named = {one.diagnostic: one for one in wanted if one.diagnostic.replace("-", "").isalnum()}
        for name in [name for name in self._seen if name not in named and name not in self._tasks]:
            del self._seen[name]
            shutil.rmtree(self._folder / name, ignore_errors=True)
        for name, one in named.items():
            over = name in self._seen and self._seen[name].state in ("passed", "failed", "stopped")
            if name not in self._tasks and not over:
                self._tell(DiagnosticSeen(name, "wanted"))
                self._tasks[name] = asyncio.create_task(self._carry_out(one))
                self._tasks[name].add_done_callback(lambda task, name=name: self._is_over(name, task))  # type: ignore[misc]

    def take_over(self, hardware: GpuInventory) -> None:
        """A GPU was split otherwise."""
        self._gpus = {gpu.uuid: gpu for gpu in hardware.gpus}

    def seen(self) -> list[DiagnosticSeen]:
        """Everything the server may not know yet."""
        return list(self._seen.values())

    def pids(self) -> list[int]:
        """Of the processes that look at GPUs, and of what they started."""
        roots = [pid for _, pid in self._running.values()]
        if not roots:
            return []
        everything = processes.scan()
        return roots + [process.pid for root in roots for process in processes.descendants(everything, root)]

    def yield_gpus(self, units: Iterable[str]) -> None:
        """Work is about to start on these units: whoever looks at their GPUs stops between two steps and lets go."""
        wanted = set(units)
        for gpu, pid in self._running.values():
            if wanted & {unit.uuid for unit in self._gpus[gpu].units}:
                _send_signal(pid, signal.SIGTERM)

    async def close(self) -> None:
        """Nothing is left running: who starts next would have to wait for it."""
        for _, pid in self._running.values():
            _send_signal(pid, signal.SIGTERM)
        await cancel_tasks([*self._tasks.values()])

    def _is_over(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("diagnostic %s: %r", name, task.exception())
            self._finish(
                DiagnosticSeen(
                    name, "stopped", detail="its agent could not carry it out", ended_at=time.time()
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
                told = await self._look_at(wanted, gpu, unit.uuid, folder, held, began)
                end = told.pop("end")
                tool = told.pop("tool") or tool
                found += told["checks"]
                if end["end"] != "passed":
                    break
        finally:
            held.close()
            self._running.pop(wanted.diagnostic, None)
        checks = [parse(CheckSeen, check) for check in found]
        asks = await self._recovery_action_check(gpu.uuid)
        if end["end"] == "passed" and asks:
            checks.append(CheckSeen("recovery", False, {}, asks))
            end = {"end": "failed", "detail": f"recovery: {asks}"}
        self._finish(
            DiagnosticSeen(
                wanted.diagnostic, end["end"], tool, checks, end["detail"][:300], began, time.time()
            )
        )

    async def _recovery_action_check(self, gpu: str) -> str:
        """What would put the GPU right, as its driver says; empty when nothing is, or when it can't be asked."""
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

    async def _look_at(
        self,
        wanted: DiagnosticWanted,
        gpu: GpuSeen,
        unit: str,
        folder: Path,
        held: gpu_locks.HeldLocks,
        began: float,
    ) -> dict[str, Any]:
        """One process for one unit: its lines put together, with an end whatever became of it."""
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
        self._tell(DiagnosticSeen(wanted.diagnostic, "running", started_at=began))
        late = time.monotonic() + wanted.deadline_seconds + KILL_MARGIN_SECONDS
        while process.poll() is None:
            await asyncio.sleep(LOCK_POLL_SECONDS)
            if time.monotonic() > late:
                _send_signal(process.pid, signal.SIGKILL)
                if time.monotonic() > late + KILL_MARGIN_SECONDS:
                    break  # it hangs in the driver, and keeps the GPU's lock for as long as it does
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
        tool = wanted.tool if unit == gpu.uuid else "own"  # DCGM looks at whole GPUs
        return [*command, "--tool", tool, "--index", str(gpu.index)]

    def _finish(self, seen: DiagnosticSeen) -> None:
        _write_if_possible(self._folder / seen.diagnostic / "result.json", asdict(seen))
        log.info("diagnostic %s: %s %s", seen.diagnostic, seen.state, seen.detail)
        self._tell(seen)

    def _tell(self, seen: DiagnosticSeen) -> None:
        self._seen[seen.diagnostic] = seen
        self.changed.set()


def _write_if_possible(path: Path, value: dict[str, Any]) -> None:
    """For an agent that starts again. On a full disk there is none, and neither a process nor an end that nobody knows of."""
    try:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_json(path, value)
    except OSError as error:
        log.error("%s of a diagnostic could not be kept: %s", path.name, error)


def _parse_result(output: Path, status: int | None, deadline: float) -> dict[str, Any]:
    """{"tool", "checks", "end"} of what a process wrote and of how it ended."""
    told: dict[str, Any] = {"tool": "", "checks": []}
    step, end, rest = "its start", None, ""
    with output.open("rb") as file:
        for line in file.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace").splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                rest = line
                continue
            if not isinstance(said, dict):
                continue
            told["tool"] = said.get("tool", told["tool"])
            step = said.get("step", step)
            if "check" in said:
                told["checks"].append(said["check"])
            if "end" in said:
                end = said
    if end is None and status == -signal.SIGTERM:  # it was told so before it could listen
        end = {"end": "stopped", "detail": "it gave way to work"}
    if end is None and (status is None or status in (-signal.SIGALRM, -signal.SIGKILL)):
        detail = f"{step}: no answer within {deadline:g} s" + (
            ", and it can't be ended" if status is None else ""
        )
        told["checks"].append({"name": str(step)[:40], "passed": False, "numbers": {}, "detail": detail})
        end = {"end": "failed", "detail": detail}
    if end is None:
        end = {"end": "stopped", "detail": f"{step}: its process ended with {status}. {rest}"[:300]}
    return {**told, "end": end}


def _send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
