"""Carries out changes of MIG geometry that the server orders, and reports their state.

Each change has a folder. The folder contains the geometry from before the first attempt. After the change it
also contains the result, until the server has received the result. Progress is not stored: if the agent is
killed during a change, the server orders the same change again.
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

RETRY_SECONDS = 2.0  # pause before the next attempt, if the driver did not answer or the GPU's lock was held
# Longest wait for a GPU's lock. A short wait suffices, because the server orders a change only after the last
# run on the GPU has ended.
LOCK_WAIT_SECONDS = 20.0
FINAL_STATES = ("done", "failed", "unsure")


class GeometryChanges:
    """The geometry changes ordered for this host. They run on one event loop, one after the other."""

    def __init__(
        self,
        state: StateFolder,
        reader: GpuReader,
        hardware: GpuInventory,
        locks_folder: Path,
        take_over: Callable[[GpuInventory], None],
    ) -> None:
        self._folder = state.folder / "geometries"
        self._folder.mkdir(exist_ok=True, mode=0o700)
        self._reader = reader
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
        """Return True while a GPU is being changed. No GPU of the host can be read during this time."""
        return self._one_at_a_time.locked()

    def want(self, wanted: Iterable[GeometryWanted]) -> None:
        """Start the new changes in ``wanted``. Cancel and forget the changes that are not in ``wanted``.

        The server lists a change until it has received the result or has withdrawn the change.
        """
        named = {order.change: order for order in wanted if order.change.replace("-", "").isalnum()}
        for name in [name for name in self._tasks if name not in named]:
            self._tasks.pop(name).cancel()
            # The cancelled task may have changed the GPU.
            self._refreshing = asyncio.create_task(self._refresh())
        for name in [name for name in self._seen if name not in named]:
            del self._seen[name]
            shutil.rmtree(self._folder / name, ignore_errors=True)
        for name, order in named.items():
            is_final = name in self._seen and self._seen[name].state in FINAL_STATES
            if name not in self._tasks and not is_final:
                self._report(GeometrySeen(name, "wanted"))
                self._tasks[name] = asyncio.create_task(self._carry_out(order))
                self._tasks[name].add_done_callback(lambda task, name=name: self._on_task_done(name, task))  # type: ignore[misc]

    def set_inventory(self, hardware: GpuInventory) -> None:
        """Use this inventory, which the agent has read for a reason other than a geometry change."""
        self._gpus = {gpu.uuid: gpu for gpu in hardware.gpus}

    def seen(self) -> list[GeometrySeen]:
        """Return the state of every change that the server has not confirmed."""
        return list(self._seen.values())

    async def close(self) -> None:
        """Cancel all tasks.

        The driver still completes a call that has begun. After a restart, the agent continues the change.
        """
        await cancel_tasks([*self._tasks.values(), *([self._refreshing] if self._refreshing else [])])

    def _on_task_done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            log.error("geometry %s: %r", name, task.exception())
            self._report(GeometrySeen(name, "unsure", "the agent failed during the change"))

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
        """Return the MIG profiles that the GPU had before the first attempt; None if it had no instances.

        The first call stores the profiles, so that a restarted agent returns the same value.
        """
        path = self._folder / name / "before.json"
        stored = read_json(path)
        if stored is None:
            profiles = [unit.profile for unit in gpu.units if unit.profile]
            stored = {"profiles": profiles, "split": not any(unit.profile == "" for unit in gpu.units)}
            path.parent.mkdir(exist_ok=True, mode=0o700)
            write_json(path, stored)
        return stored["profiles"] if stored["split"] and stored["profiles"] else None

    async def _reshape_with_retries(self, wanted: GeometryWanted, before: list[str] | None) -> ReshapeOutcome:
        """Repeat the change until the driver answers, and return the outcome.

        A repeated attempt performs only the missing steps. There is no time limit here: the server withdraws
        a change that takes too long.
        """
        waited = 0.0
        while True:
            self._report(GeometrySeen(wanted.change, "changing"))
            try:
                outcome = await self._reader.reshape(
                    wanted.gpu, wanted.parts, before, self._locks, max(1.0, wanted.deadline_seconds)
                )
            except GpuReadError as error:
                log.error("geometry %s: %s", wanted.change, error)
                self._report(GeometrySeen(wanted.change, "changing", str(error)[:300]))
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
                return await self._reader.hardware()
            except GpuReadError as error:
                log.error("GPUs can't be read: %s", error)
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
        except OSError as error:  # only logged, because a restarted agent reads the geometry from the GPU
            log.error("geometry %s: the result could not be written: %s", seen.change, error)
        log.info("geometry %s: %s %s", seen.change, seen.state, seen.detail)
        self._report(seen)

    def _report(self, seen: GeometrySeen) -> None:
        if self._seen.get(seen.change) != seen:
            self._seen[seen.change] = seen
            self.changed.set()
