"""Report a Celery worker from its main loop, and serve its probes."""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from django.conf import settings

from portal.processes.probe_server import start_probe_server
from portal.processes.reports import REPORT_INTERVAL_SECONDS, ProcessReport


class WorkerReport(bootsteps.StartStopStep):  # type: ignore[misc]
    """A boot step that reports the worker while it runs. The role is "engine" or "worker"."""

    requires = ("celery.worker.components:Timer", "celery.worker.components:Pool")

    def __init__(self, worker: Any, **options: Any) -> None:
        """Read the role from the name of the worker, such as engine@gpus."""
        super().__init__(worker, **options)
        role = "engine" if str(worker.hostname).partition("@")[0].startswith("engine") else "worker"
        self._report = ProcessReport(role)
        self._timer: Any = None

    def start(self, worker: Any) -> None:
        """Send the first report, and the next ones from the main loop."""
        self._report.send()
        self._timer = worker.timer.call_repeatedly(REPORT_INTERVAL_SECONDS, self._report.send)
        start_probe_server(self._report, settings.GPUPOOL_PROBE_PORT)

    def stop(self, worker: Any) -> None:
        """Withdraw the report when the worker ends."""
        if self._timer is not None:
            self._timer.cancel()
        self._report.withdraw()
