"""Test a command line that is newer than its portal.

It reports missing features in a sentence, and the other features work.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from config.http.error_responses import NOT_FOUND_MESSAGE
from tests.cli.conftest import CommandResult

HOST = {
    "name": "h3",
    "pool": "shared",
    "gpus": ["H100-80GB"],
    "lease_state": "silent",
    "admin_state": "draining",
    "repair_state": "well",
    "last_sync_at": None,
    "state_reason": "",
    "simulated": False,
}
WORK = {
    "id": "00000000-0000-4000-8000-000000000001",
    "name": "storm",
    "kind": "job",
    "state": "running",
    "outcome": "",
    "reason": "",
    "project": "vision/main",
    "pool": "shared",
    "units": 2,
    "hosts": 1,
    "models": [],
    "profile": "",
    "attempt": 1,
    "submitted_at": "2026-03-02T09:00:00Z",
    "started_at": None,
    "max_runtime_seconds": 60,
    "command": "true",
    "runs": [{"attempt": 1, "host": "h3", "gpus": ["GPU-a", "GPU-b"]}],
}
# Answers of an older portal, without previews, origins of rules and free slices.
MODEL = {"model": "H100", "gpus": 8, "held_gpus": 0, "free_gpus": 8}
ANSWERS: dict[str, Any] = {
    "/api/v1/pools/": [{"slug": "shared", "kind": "dynamic", "models": [MODEL]}],
    "/api/v1/hosts/": {"count": 1, "results": [HOST]},
    "/api/v1/hosts/h3/drain/": HOST,
    "/api/v1/hosts/h3/health/": {"gpus": [], "strays": 0, "stray_processes": [], "maintenance": []},
    "/api/v1/health-rules/": {
        "count": 1,
        "results": [{"code": "xid:79", "meaning": "gone", "action": "cordon", "repeats": 1}],
    },
    f"/api/v1/workloads/{WORK['id']}/": WORK,
}


def error_body(message: str) -> dict[str, Any]:
    return {"errors": [{"field": "", "value": None, "message": message}]}


class OlderPortal(BaseHTTPRequestHandler):
    """A server that answers like an older portal."""

    def do_GET(self) -> None:
        body = ANSWERS.get(self.path.partition("?")[0])
        self.answer(*((404, error_body(NOT_FOUND_MESSAGE)) if body is None else (200, body)))

    def answer(self, status: int, body: Any) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(
            405, error_body('Method "POST" not allowed.')
        ) if self.path == "/api/v1/health-rules/" else self.do_GET()

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def old_portal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], CommandResult]]:
    """Return a function that runs one command line against the older portal."""
    from cli.main import run

    server = ThreadingHTTPServer(("127.0.0.1", 0), OlderPortal)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GPUPOOL_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("GPUPOOL_TOKEN", "gpp_x")

    def call(line: str) -> CommandResult:
        code = run(line.split())
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    yield call
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("line", "missing_field"),
    [("status", "free_in_parts_gpus"), ("host health h3", "state_reason"), ("health-rule list", "origin")],
)
def test_a_missing_field_is_reported_in_a_sentence(
    old_portal: Callable[[str], CommandResult], line: str, missing_field: str
) -> None:
    answer = old_portal(line)
    assert answer.code == 5
    assert answer.err == (
        f"gpupool: The portal is older than this command: its answer lacks {missing_field!r}."
        " Update the portal, or use --json.\n"
    )
    assert old_portal(f"{line} --json").code == 0


def test_an_unknown_call_is_reported_in_a_sentence(old_portal: Callable[[str], CommandResult]) -> None:
    for line in ("host drain h3 --preview", "health-rule show 79"):
        answer = old_portal(line)
        assert answer.code == 4, line
        assert (
            "There is no such address" in answer.err
            and "Or the portal is older than this command." in answer.err
        ), line
    answer = old_portal("health-rule add 201 --meaning odd --action note")
    assert (
        answer.code == 5 and "There is no such API call: the portal is older than this command" in answer.err
    )


def test_a_server_that_knows_no_call_is_reported_as_no_portal(
    old_portal: Callable[[str], CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer_empty(handler: OlderPortal) -> None:
        handler.send_response(404)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    monkeypatch.setattr(OlderPortal, "do_GET", answer_empty)
    answer = old_portal("hosts")
    assert answer.code == 5 and "or the address is not a portal" in answer.err


@pytest.mark.parametrize("status", [200, 403])
def test_an_answer_that_breaks_off_is_reported_as_no_answer(
    old_portal: Callable[[str], CommandResult], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def answer_in_part(handler: OlderPortal) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b'{"errors": ')

    monkeypatch.setattr(OlderPortal, "do_GET", answer_in_part)
    answer = old_portal("hosts")
    assert answer.code == 5 and "does not answer: IncompleteRead" in answer.err


def test_known_calls_work_with_an_older_portal(old_portal: Callable[[str], CommandResult]) -> None:
    assert old_portal("host drain h3").out == "h3 is draining, well.\n"
    assert "its agent is silent" in old_portal("hosts").out
    assert "GPU-a, GPU-b" in old_portal(f"show {WORK['id']}").out
