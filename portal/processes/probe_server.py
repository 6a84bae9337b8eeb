"""Serve /healthz, /readyz and /metrics of a process that has no web server: engine, worker and beat.

The server listens on loopback, at the port of the setting GPUPOOL_PROBE_PORT.
"""

from __future__ import annotations

import json
import os
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import structlog
from django.db import connection
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest

from portal.processes.reports import HANG_SECONDS, VERSION, ProcessReport
from portal.processes.store_checks import store_states

log = structlog.get_logger(__name__)

READ_TIMEOUT_SECONDS = 10
JSON_TYPE = "application/json"
PROCESS_INFO = Gauge(
    "gpupool_process_info", "1 for the role and version of this process", ["role", "version"]
)
PROCESS_SECONDS = Gauge("gpupool_process_seconds_since_report", "age of the last report")


def record_process(role: str) -> None:
    """Set the metric with the role and version of this process."""
    PROCESS_INFO.labels(role, VERSION).set(1)


class ProbeServer(ThreadingHTTPServer):
    """Answer probes of one process in threads of their own, so that they answer while the main loop hangs."""

    daemon_threads = True

    def __init__(self, report: ProcessReport, port: int) -> None:
        super().__init__(("127.0.0.1", port), ProbeHandler)
        self.report = report
        record_process(report.role)
        PROCESS_SECONDS.set_function(lambda: report.seconds_since_last)

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Return status, content type and body."""
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest()
        silent = self.report.seconds_since_last
        hangs = silent > HANG_SECONDS
        body: dict[str, object] = {
            "status": "hangs" if hangs else "ok",
            "role": self.report.role,
            "version": VERSION,
            "seconds_since_report": round(silent, 1),
        }
        failed = hangs
        if path == "/readyz":
            stores = store_states()
            body |= stores
            failed = failed or set(stores.values()) != {"ok"}
        elif path != "/healthz":
            return HTTPStatus.NOT_FOUND, JSON_TYPE, b'{"allowed": ["/healthz", "/readyz", "/metrics"]}'
        status = HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK
        return status, JSON_TYPE, json.dumps(body).encode()


class ProbeHandler(BaseHTTPRequestHandler):
    """Answer GET requests for the probes."""

    server: ProbeServer
    timeout = READ_TIMEOUT_SECONDS
    server_version, sys_version = "gpupool", ""

    def do_GET(self) -> None:
        """Answer one probe."""
        try:
            status, content_type, body = self.server.answer(self.path.partition("?")[0])
        finally:
            connection.close()  # the thread ends after its requests
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write no line for a probe."""


def start_probe_server(report: ProcessReport, port: int) -> ProbeServer | None:
    """Start the server in a thread. Return None if ``port`` is 0 or taken: the process has no probes."""
    if port == 0:
        return None
    try:
        server = ProbeServer(report, port)
    except OSError as error:
        log.error("no probes", port=port, error=str(error))
        return None
    # A child must not hold the port of its parent, because the next process could not listen on it.
    os.register_at_fork(after_in_child=server.socket.close)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server
