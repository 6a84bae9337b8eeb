"""Other geometries of this host's GPUs: what is wanted, what runs and what came of it (``agent.gpu.mig`` does it).

Each change has a folder that says how the GPU was before the first attempt, and how it ended until the server has heard that. In
between nothing is remembered: an agent that was killed at any line asks for the same again.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from agent.gpu.mig import ReshapeOutcome
from agent.gpu.reader import GpuInventory, GpuReader, GpuReadError
from agent.host.durable_files import read_json, write_json
from agent.host.shutdown import cancel_tasks
from agent.host.state import StateFolder
from agent.protocol import GeometrySeen, GeometryWanted, GpuSeen, parse

log = logging.getLogger("agent.gpu.geometry_changes")

RETRY_SECONDS = 2.0  # until the driver is asked again that did not answer, or the lock that somebody held
LOCK_WAIT_SECONDS = 20.0  # for a GPU's lock: the server asks only when nobody holds it any more
FINAL_STATES = ("done", "failed", "unsure")


class GeometryChanges:
    """The changes that are wanted of this host's GPUs. All on one event loop, one change at a time."""

    def __init__(
        self,
        state: StateFolder,
        meter: GpuReader,
        hardware: GpuInventory,
        locks_folder: Path,
        take_over: Callable[[GpuInventory], None],
    ) -> None:
        self._folder = state.folder / "geometries"
        self._folder.mkdir(exist_ok=True, mode=0o700)
        self._meter = meter
        self._gpus = {gpu.uuid: gpu for gpu in hardware.gpus}
        self._locks = locks_folder
        self._take_over = take_over
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._seen: dict[str, GeometrySeen] = {}
        self.changed = asyncio.Event()
        for folder in sorted(self._folder.iterdir()):
            result = read_json(folder / "result.json")
            if result is not None:
                self._seen[folder.name] = parse(GeometrySeen, result)

    @property
    def busy(self) -> bool:
        """Whether a board is being changed just now: nothing is known of any of them meanwhile."""
        return self._one_at_a_time.locked()

    def want(self, wanted: Iterable[GeometryWanted]) -> None:
        """Begin what is new, go on with what was begun, forget what the server knows the end of."""
        named = {one.change: one for one in wanted if one.change.replace("-", "").isalnum()}
        for name in [name for name in self._tasks if name not in named]:
            self._tasks.pop(name).cancel()
            self._refreshing = asyncio.create_task(self._refresh())  # whatever it had come to
        for name in [name for name in self._seen if name not in named]:
            del self._seen[name]
            shutil.rmtree(self._folder / name, ignore_errors=True)
        for name, one in named.items():
            over = name in self._seen and self._seen[name].state in FINAL_STATES
            if name not in self._tasks and not over:
                self._tell(GeometrySeen(name, "wanted"))
                self._tasks[name] = asyncio.create_task(self._carry_out(one))
                self._tasks[name].add_done_callback(lambda task, name=name: self._is_over(name, task))  # type: ignore[misc]

    def know(self, hardware: GpuInventory) -> None:
        """The GPUs were read anew, for another reason than a change."""
        self._gpus = {gpu.uuid: gpu for gpu in hardware.gpus}

    def seen(self) -> list[GeometrySeen]:
        """Everything the server may not know yet."""
        return list(self._seen.values())

    async def close(self) -> None:
        """What the driver has begun it ends by itself; the next agent goes on from there."""
        await cancel_tasks([*self._tasks.values(), *([self._refreshing] if self._refreshing else [])])

    def _is_over(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            log.error("geometry %s: %r", name, task.exception())
            self._tell(GeometrySeen(name, "unsure", "its agent could not carry it out"))

    async def _carry_out(self, wanted: GeometryWanted) -> None:
        gpu = self._gpus.get(wanted.gpu)
        if gpu is None:
            self._finish(GeometrySeen(wanted.change, "failed", "this host does not have that GPU"))
            return
        try:
            before = self._before(wanted.change, gpu)
        except OSError as error:
            self._finish(GeometrySeen(wanted.change, "failed", f"nothing was changed: {error.strerror}"))
            return
        async with self._one_at_a_time:
            outcome = await self._reshape_with_retries(wanted, before)
            self._accept(await self._hardware())
        self._finish(GeometrySeen(wanted.change, outcome.state, outcome.detail[:300]))

    def _before(self, name: str, gpu: GpuSeen) -> list[str] | None:
        """How the GPU was before the first attempt of any agent; None: not split."""
        path = self._folder / name / "before.json"
        kept = read_json(path)
        if kept is None:
            profiles = [unit.profile for unit in gpu.units if unit.profile]
            kept = {"profiles": profiles, "split": not any(unit.profile == "" for unit in gpu.units)}
            path.parent.mkdir(exist_ok=True, mode=0o700)
            write_json(path, kept)
        return kept["profiles"] if kept["split"] and kept["profiles"] else None

    async def _reshape_with_retries(self, wanted: GeometryWanted, before: list[str] | None) -> ReshapeOutcome:
        """Asked again and again: what is there already is not done twice. The server gives up when it takes too long."""
        waited = 0.0
        while True:
            self._tell(GeometrySeen(wanted.change, "changing"))
            try:
                outcome = await self._meter.reshape(
                    wanted.gpu, wanted.parts, before, self._locks, max(1.0, wanted.deadline_seconds)
                )
            except GpuReadError as problem:
                log.error("geometry %s: %s", wanted.change, problem)
                self._tell(GeometrySeen(wanted.change, "changing", str(problem)[:300]))
            else:
                if outcome is not None:
                    return outcome
                waited += RETRY_SECONDS
                if waited > LOCK_WAIT_SECONDS:
                    return ReshapeOutcome("failed", "a process on this host still holds a part of the GPU")
            await asyncio.sleep(RETRY_SECONDS)

    async def _hardware(self) -> GpuInventory:
        while True:
            try:
                return await self._meter.hardware()
            except GpuReadError as problem:
                log.error("GPUs can't be read: %s", problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def _refresh(self) -> None:
        async with self._one_at_a_time:
            self._accept(await self._hardware())
        self.changed.set()

    def _accept(self, hardware: GpuInventory) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in hardware.gpus}
        self._take_over(hardware)

    def _finish(self, seen: GeometrySeen) -> None:
        folder = self._folder / seen.change
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            write_json(folder / "result.json", asdict(seen))
        except (
            OSError
        ) as error:  # an agent that starts again before the server has heard it looks at the GPU once more
            log.error("geometry %s: how it ended could not be kept: %s", seen.change, error)
        log.info("geometry %s: %s %s", seen.change, seen.state, seen.detail)
        self._tell(seen)

    def _tell(self, seen: GeometrySeen) -> None:
        if self._seen.get(seen.change) != seen:
            self._seen[seen.change] = seen
            self.changed.set()
