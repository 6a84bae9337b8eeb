"""Test the reports of processes in Redis, and the probes of processes without a web server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.test import override_settings

from config.beat_scheduler import ClockJumpSafeScheduler
from config.celery import app
from config.http.process_report import ProcessReportMiddleware
from config.worker_report import WorkerReport
from portal.processes import reports
from portal.processes.probe_server import ProbeServer, start_probe_server
from portal.processes.reports import PROCESS_KEY, VERSION, ProcessReport, reported_processes
from scheduler.state import nudge
from tests.portal.edge.conftest import free_port


@pytest.fixture(autouse=True)
def no_reports() -> Iterator[None]:
    """Delete the reports that other tests of this worker left."""
    connection = nudge.redis_connection()
    for key in connection.scan_iter(match=f"{PROCESS_KEY}*"):
        connection.delete(key)
    yield


def roles() -> list[str]:
    found = reported_processes()
    assert found is not None
    return [each.role for each in found]


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_a_report_names_role_and_version_until_it_is_withdrawn_or_expires() -> None:
    beat, engine = ProcessReport("beat"), ProcessReport("engine")
    beat.send()
    engine.send()
    assert roles() == ["engine", "beat"]
    [first, _] = reported_processes() or []
    assert (first.version, first.pid, first.host) == (VERSION, engine.pid, engine.host)
    assert 0 < nudge.redis_connection().pttl(engine.key) <= reports.REPORT_TTL_SECONDS * 1000  # type: ignore[operator]
    engine.withdraw()
    assert roles() == ["beat"]


def test_the_processes_are_unknown_without_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    nudge.redis_connection.cache_clear()
    try:
        with override_settings(REDIS_URL="unix:///nowhere/at/all"):
            ProcessReport("beat").send()
            assert reported_processes() is None
    finally:
        nudge.redis_connection.cache_clear()


async def test_the_web_process_reports_between_startup_and_shutdown() -> None:
    sent: list[str] = []
    seen: list[list[str]] = []
    steps = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, Any]:
        step = next(steps)
        if step == "lifespan.shutdown":
            import asyncio

            while not await asyncio.to_thread(roles):
                await asyncio.sleep(0)
            seen.append(await asyncio.to_thread(roles))
        return {"type": step}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    async def no_application(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("a lifespan is no request")

    await ProcessReportMiddleware(no_application)({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert seen == [["web"]]
    import asyncio

    assert await asyncio.to_thread(roles) == []


def test_beat_reports_from_its_loop(tmp_path: Path) -> None:
    own = Celery("test", broker="memory://")
    scheduler = ClockJumpSafeScheduler(own, schedule_filename=str(tmp_path / "schedule"))
    scheduler.tick()
    assert roles() == ["beat"]
    scheduler.close()
    assert roles() == []


def test_workers_report_by_a_step_of_their_start() -> None:
    assert WorkerReport in app.steps["worker"]


@pytest.mark.django_db
def test_a_process_without_a_web_server_answers_probes() -> None:
    report, port = ProcessReport("engine"), free_port()
    server = start_probe_server(report, port)
    assert isinstance(server, ProbeServer)
    try:
        status, body = ask(port, "/healthz")
        assert (status, json.loads(body)["status"], json.loads(body)["role"]) == (200, "ok", "engine")
        status, body = ask(port, "/readyz")
        assert (status, json.loads(body)["valkey"], json.loads(body)["postgres"]) == (200, "ok", "ok")
        status, body = ask(port, "/metrics")
        assert status == 200
        assert f'gpupool_process_info{{role="engine",version="{VERSION}"}} 1.0' in body
        assert ask(port, "/else")[0] == 404
        report._last_sent -= reports.HANG_SECONDS + 1
        for path in ("/healthz", "/readyz"):
            status, body = ask(port, path)
            assert (status, json.loads(body)["status"]) == (503, "hangs")
        assert start_probe_server(report, port) is None, "the port is taken"
    finally:
        server.shutdown()
        server.server_close()


def test_no_probes_are_served_without_a_port() -> None:
    assert start_probe_server(ProcessReport("beat"), 0) is None
