"""Gives orders to the shims, which supervise the runs: notice, stop, time limit and lease."""

from __future__ import annotations

import os
import signal
from typing import Any

from agent.host import processes
from agent.host.durable_files import log_disk_errors, read_json, write_json
from agent.runs.local_run import LocalRun, acknowledgement_identity, renew_lease, write_order
from agent.runs.reconcile import StopRun
from agent.runs.run_observer import RunObserver


class RunOrders(RunObserver):
    """The runs of this host, with methods that give orders to their shims."""

    _renewed: frozenset[str] = frozenset()  # ids of the runs whose leases the last frame renewed
    _renewed_until = 0.0  # CLOCK_BOOTTIME at which these leases end

    def notice(self, run_id: str, code: str, stop_at: float | None) -> None:
        """Order the shim to warn the workload that it will be stopped."""
        run = self.runs[run_id]
        acknowledgement = acknowledgement_identity(self._acknowledgement(run))
        self._order(run, notice={"code": code, "stop_at": stop_at}, word=acknowledgement)
        run.noticed, run.acknowledgement_before_notice = True, acknowledgement

    def withdraw(self, run_id: str) -> None:
        """Order the shim to withdraw the notice of a run."""
        run = self.runs[run_id]
        self._order(run, notice=None)
        run.noticed = False

    async def limit(self, run_id: str, seconds: int) -> None:
        """Replace the time limit of a run. ``seconds`` count from the run's start; 0 means no limit."""
        run = self.runs[run_id]
        self._order(run, max_runtime_seconds=seconds)
        about = {**run.about, "max_runtime_seconds": seconds}
        await self.in_thread(lambda: write_json(run.folder / "run.json", about))
        run.about = about

    def stop(self, order: StopRun) -> None:
        """Order the shim to send SIGTERM to the workload now, and SIGKILL after the grace period."""
        run = self.runs[order.run]
        stop: dict[str, Any] = {
            "outcome": order.outcome,
            "grace_seconds": order.grace_seconds,
            "whatever": order.whatever,
        }
        if order.why:
            stop["why"] = order.why
        if order.host_full:
            stop["host_full"] = True
        self._order(run, stop=stop)
        run.stop_ordered = True

    def _order(self, run: LocalRun, **fields: Any) -> None:
        """Set ``fields`` in the run's order file, keep its other fields, and wake the shim."""
        write_order(run.folder, {**(read_json(run.folder / "order.json") or {}), **fields})
        if run.shim and processes.is_alive(run.shim["pid"], run.shim["start_ticks"]):
            os.kill(
                run.shim["pid"], signal.SIGUSR2
            )  # without the signal the shim reads the order within a second

    def forget(self, run_id: str) -> None:
        """Remove an ended run. Call this method only after the server has recorded the end of the run."""
        run = self.runs.pop(run_id)
        self.trash.throw(run.folder)

    def renew(self, named: set[str], until: float) -> None:
        """Extend the leases of the named runs to ``until`` (CLOCK_BOOTTIME)."""
        self._renewed, self._renewed_until = frozenset(named), until
        for run in self.runs.values():
            if run.id in named and not run.ended:
                with log_disk_errors(f"the lease of run {run.id}"):
                    renew_lease(run, until)
