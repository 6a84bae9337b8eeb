"""Ends orphaned runs.

The shim of a run supervises the run and writes its end to exit.json. A run is orphaned if its shim has died
without writing this file.
"""

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
from agent.host.system_path import SYSTEM_PATH
from agent.isolation.cgroups import Cgroups
from agent.runs.local_run import LocalRun, write_exit_file

log = logging.getLogger("agent.runs.orphaned_runs")

SHIM_START_SECONDS = 15.0
# The shim process of an epilog should kill the epilog at its time limit. After this margin, the agent kills
# the epilog.
EPILOG_MARGIN_SECONDS = 2.0


class OrphanedRuns:
    """Ends the orphaned runs of one host. ``tools`` is the folder that contains the shim program."""

    def __init__(self, tools: Path, cgroups: Cgroups) -> None:
        self._tools = tools
        self._cgroups = cgroups

    def end(self, run: LocalRun) -> dict[str, Any] | None:
        """Kill the remaining processes of a run, wait for its epilog, and return the content of exit.json.

        Returns None while a process of the run or its epilog remains; call the method again later. Writes
        exit.json before it returns its content. Raises OSError.
        """
        # The shim may have written the file after the caller looked for it.
        ended: dict[str, Any] | None = read_json(run.folder / "exit.json")
        if ended is None:
            if self._kill_rest(run) or not self._epilog_is_over(run):
                return None
            ended = self._end_of_orphan(run)
            write_exit_file(run.folder, ended)
        return ended

    def _end_of_orphan(self, run: LocalRun) -> dict[str, Any]:
        epilog = read_json(run.folder / "epilog.json")
        if epilog is not None:
            ended: dict[str, Any] = epilog["ended"]  # the workload had ended before its shim was killed
            if "killed" in ended:
                return ended
        if run.shim:
            outcome, why = (
                "host_lost",
                "the shim of this workload was killed, or the host restarted",
            )
        else:
            outcome, why = "start_failed", "the agent ended while it was starting this workload"
        return {"outcome": outcome, "exit_code": None, "ended_at": time.time(), "error": why, "killed": True}

    def _epilog_is_over(self, run: LocalRun) -> bool:
        """Return True if the operator's epilog has ended, or if no epilog is needed.

        If the shim was killed before it could start the epilog, start the epilog.
        """
        hooks = (read_json(run.folder / "spec.json") or {}).get("hooks", {})
        if not run.shim or not hooks.get("epilog"):
            return True
        epilog, now = read_json(run.folder / "epilog.json"), boottime()
        if epilog is None:
            if run.epilog_ordered_at is None:
                run.epilog_ordered_at = now
                self._spawn_epilog(run)
            # If the epilog has not started within SHIM_START_SECONDS, its start counts as failed. The log
            # gives the reason.
            return now - run.epilog_ordered_at > SHIM_START_SECONDS
        if epilog["boot_id"] != boot_id() or not processes.is_alive(epilog["pid"], epilog["start_ticks"]):
            return True
        if now > epilog["until"] + EPILOG_MARGIN_SECONDS:
            for pid in [
                epilog["pid"],
                *(process.pid for process in processes.descendants(processes.scan(), epilog["pid"])),
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
        """Send SIGKILL to every remaining process of a run. Return True if there was such a process.

        A process is part of the run in three cases: it is in the run's control groups, it has the run's mark
        in its environment, or it descends from the run's guard. The mark alone does not suffice, because a
        process can remove it.
        """
        mark = f"GPUPOOL_MARK={run.about['mark']}".encode()
        grouped = self._cgroups.members(run.about["mark"])
        all_processes = processes.scan()
        guarded = _orphans_of_guard(run, all_processes)
        found = False
        for pid in all_processes:
            # If the agent may not read the environment of a process, ``environment_entries`` returns []. The
            # process then belongs to no run of this agent.
            if pid in guarded or mark in processes.environment_entries(pid) or pid in grouped:
                found = True
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        return found


def _orphans_of_guard(run: LocalRun, all_processes: dict[int, processes.Process]) -> set[int]:
    """Return the pids of the descendants of the run's guard, without the operator's epilog.

    The guard is the parent of the shim and inherits the processes of a killed shim. The processes of the
    epilog are left out, because the epilog has its own time limit.
    """
    guard = run.shim.get("guard") or {}
    if run.shim.get("boot_id") != boot_id() or not processes.is_alive(
        guard.get("pid", 0), guard.get("start_ticks", 0)
    ):
        return set()
    epilog = read_json(run.folder / "epilog.json") or {}
    epilog_pids = (
        {epilog["pid"], *(process.pid for process in processes.descendants(all_processes, epilog["pid"]))}
        if epilog
        else set()
    )
    return {process.pid for process in processes.descendants(all_processes, guard["pid"])} - epilog_pids
