"""Runs whose shim is gone without a word: what is left of them is ended, and how they ended is found out."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agent.host import processes
from agent.host.clock import boot_id, boottime
from agent.host.durable_files import read_json
from agent.isolation.cgroups import Cgroups
from agent.runs.hooks import SYSTEM_PATH
from agent.runs.local_run import LocalRun, write_exit_file

log = logging.getLogger("agent.runs.orphaned_runs")

SHIM_START_SECONDS = 15.0
EPILOG_MARGIN_SECONDS = 2.0  # after its time, for the shim that runs it to end it


class OrphanedRuns:
    """Those of one host. ``tools``: where the shim's program lies."""

    def __init__(self, tools: Path, cgroups: Cgroups) -> None:
        self._tools = tools
        self._cgroups = cgroups

    def end(self, run: LocalRun) -> dict[str, Any] | None:
        """How it ended, as it is written down now; None while something of it is left. Raises OSError."""
        ended: dict[str, Any] | None = read_json(
            run.folder / "exit.json"
        )  # it may have ended between our two looks
        if ended is None:
            if self._kill_rest(run) or not self._epilog_is_over(run):
                return None  # not empty yet: look again
            ended = self._end_of_lost(run)
            write_exit_file(run.folder, ended)
        return ended

    def _end_of_lost(self, run: LocalRun) -> dict[str, Any]:
        begun = read_json(run.folder / "epilog.json")
        if begun is not None:
            told: dict[str, Any] = begun["ended"]  # the workload had ended before its shim was killed
            if "killed" in told:
                return told
        if run.shim:
            outcome, why = (
                "host_lost",
                "the process that kept this workload was killed, or the host restarted",
            )
        else:
            outcome, why = "start_failed", "the agent ended while it was starting this workload"
        return {"outcome": outcome, "exit_code": None, "ended_at": time.time(), "error": why, "killed": True}

    def _epilog_is_over(self, run: LocalRun) -> bool:
        """Whether the operator's epilog, if any, has run. It is started here where the shim was killed before it could."""
        hooks = (read_json(run.folder / "spec.json") or {}).get("hooks", {})
        if not run.shim or not hooks.get("epilog"):
            return True
        begun, now = read_json(run.folder / "epilog.json"), boottime()
        if begun is None:
            if run.epilog_ordered_at is None:
                run.epilog_ordered_at = now
                self._spawn_epilog(run)
            return (
                now - run.epilog_ordered_at > SHIM_START_SECONDS
            )  # it could not be started: the log says why
        if begun["boot_id"] != boot_id() or not processes.is_alive(begun["pid"], begun["start_ticks"]):
            return True
        if now > begun["until"] + EPILOG_MARGIN_SECONDS:
            for pid in [
                begun["pid"],
                *(each.pid for each in processes.descendants(processes.scan(), begun["pid"])),
            ]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return False

    def _spawn_epilog(self, run: LocalRun) -> None:
        command = [sys.executable, "-I", "-S", str(self._tools / "shim"), str(run.folder), "epilog"]
        try:
            with open(run.folder / "shim.err", "ab") as errors:
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd="/",
                    env={"PATH": SYSTEM_PATH},
                    timeout=SHIM_START_SECONDS,
                    check=True,
                )
        except (OSError, subprocess.SubprocessError) as error:
            log.error("run %s: its epilog could not be started: %s", run.id, error)

    def _kill_rest(self, run: LocalRun) -> bool:
        """KILL every process that is in the run's control groups, still carries its mark (which a process may take off), or was
        left to its guard; whether there was one."""
        mark = f"GPUPOOL_MARK={run.about['mark']}".encode()
        grouped = self._cgroups.members(run.about["mark"])
        everything = processes.scan()
        guarded = _orphans_of_guard(run, everything)
        found = False
        for pid in everything:
            if (
                pid in guarded or mark in processes.environment_entries(pid) or pid in grouped
            ):  # what can't be read is not ours to end
                found = True
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        return found


def _orphans_of_guard(run: LocalRun, everything: dict[int, processes.Process]) -> set[int]:
    """Pids of what fell to the guard when the shim was killed, without the operator's epilog, which has a time of its own."""
    guard = run.shim.get("guard") or {}
    if run.shim.get("boot_id") != boot_id() or not processes.is_alive(
        guard.get("pid", 0), guard.get("start_ticks", 0)
    ):
        return set()
    begun = read_json(run.folder / "epilog.json") or {}
    spared = (
        {begun["pid"], *(each.pid for each in processes.descendants(everything, begun["pid"]))}
        if begun
        else set()
    )
    return {each.pid for each in processes.descendants(everything, guard["pid"])} - spared
