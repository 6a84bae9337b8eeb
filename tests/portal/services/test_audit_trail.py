"""Test the chain of seals over audit records, its check, and the stream of records to a receiver."""

from __future__ import annotations

import datetime as dt
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError, connection, transaction

from portal.models import AuditEvent, AuditProgress, AuditSeal
from portal.services import audit
from portal.services.audit_trail import seals, stream, verification
from tests.world import World

TABLES = ("portal_auditevent", "portal_auditseal", "portal_sealedauditevent")
MINUTE = dt.timedelta(minutes=1)


def act(world: World, count: int = 1) -> list[AuditEvent]:
    return [
        audit.record(actor=world.operator, via="web", now=world.now, verb="act", target=world.vision.team)
        for _ in range(count)
    ]


def bypass_triggers(statement: str) -> None:
    """Change rows as somebody who controls the database would, without the trigger."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        role = cursor.fetchone()[0]
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; SET ROLE NONE")
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        cursor.execute(statement)
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        cursor.execute(f"SET CONSTRAINTS ALL DEFERRED; SET ROLE {role}")


def codes() -> list[tuple[str, int | None, int | None]]:
    return [(found.code, found.seal, found.event) for found in verification.find_differences()]


def test_committed_records_are_sealed_once_and_a_second_call_seals_nothing(world: World) -> None:
    act(world, 3)
    total = AuditEvent.objects.count()
    assert seals.seal_new_events(world.now) == total
    assert seals.seal_new_events(world.now + MINUTE) == 0
    act(world)
    assert seals.seal_new_events(world.now + MINUTE) == 1
    first, second = AuditSeal.objects.order_by("number")
    assert (first.number, first.events, first.previous) == (1, total, "0" * 64)
    assert (second.number, second.events, second.previous) == (2, 1, first.digest)
    assert codes() == []


def test_a_record_that_commits_after_a_later_one_is_sealed_too(world: World) -> None:
    act(world)
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('portal_auditevent_id_seq')")
        early = cursor.fetchone()[0]
    act(world)
    seals.seal_new_events(world.now)
    [late] = act(world)
    bypass_triggers(f"UPDATE portal_auditevent SET id = {early} WHERE id = {late.pk}")
    assert seals.seal_new_events(world.now + MINUTE) == 1
    assert AuditSeal.objects.get(number=2).entries.get().event_id == early
    assert codes() == []


def test_a_removed_and_a_changed_record_are_found(world: World) -> None:
    removed, changed, kept = act(world, 3)
    seals.seal_new_events(world.now)
    bypass_triggers(f"DELETE FROM portal_auditevent WHERE id = {removed.pk}")
    bypass_triggers(f"UPDATE portal_auditevent SET actor_name = 'nobody' WHERE id = {changed.pk}")
    assert codes() == [("event_removed", 1, removed.pk), ("event_changed", 1, changed.pk)]
    assert kept.pk not in [event for _, _, event in codes()]


def test_a_changed_and_a_removed_seal_are_found(world: World) -> None:
    for minute in range(4):
        act(world)
        seals.seal_new_events(world.now + minute * MINUTE)
    bypass_triggers("UPDATE portal_auditseal SET digest = repeat('a', 64) WHERE number = 2")
    assert codes() == [("seal_changed", 2, None), ("seal_changed", 3, None)]
    bypass_triggers("DELETE FROM portal_sealedauditevent WHERE seal_id = 3")
    bypass_triggers("DELETE FROM portal_auditseal WHERE number = 3")
    assert ("seal_removed", 3, None) in codes()


def test_a_record_that_was_inserted_with_an_old_id_is_found(world: World) -> None:
    act(world, 2)
    seals.seal_new_events(world.now)
    [forged] = act(world)
    bypass_triggers(f"UPDATE portal_auditevent SET id = -5 WHERE id = {forged.pk}")
    found = list(verification.events_without_seal(world.now + dt.timedelta(days=2)))
    assert [(each.code, each.event) for each in found] == [("event_not_sealed", -5)]


@pytest.mark.parametrize("table", ["portal_auditseal", "portal_sealedauditevent"])
def test_seals_cannot_be_changed_or_deleted(world: World, table: str) -> None:
    act(world)
    seals.seal_new_events(world.now)
    for statement in (f"UPDATE {table} SET digest = ''", f"DELETE FROM {table}"):
        refused = pytest.raises(DatabaseError, match="append-only")
        with refused, transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_the_periodic_check_stores_what_a_complete_pass_found(world: World) -> None:
    [event] = act(world)
    seals.seal_new_events(world.now)
    assert verification.check_next_seals(world.now) == 0
    state = verification.audit_integrity(world.now, has_receiver=False)
    assert state.checked_at == world.now and state.findings == [] and state.undelivered is None
    bypass_triggers(f"DELETE FROM portal_auditevent WHERE id = {event.pk}")
    assert verification.check_next_seals(world.now + MINUTE) == 1
    state = verification.audit_integrity(world.now, has_receiver=False)
    assert [finding.code for finding in state.findings] == ["event_removed"]


def test_the_periodic_check_continues_where_it_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "SEALS_PER_CALL", 2)
    events = []
    for minute in range(3):
        events += act(world)
        seals.seal_new_events(world.now + minute * MINUTE)
    bypass_triggers(f"DELETE FROM portal_auditevent WHERE id = {events[0].pk}")
    assert verification.check_next_seals(world.now) == 1
    assert verification.audit_integrity(world.now, has_receiver=False).checked_at is None
    verification.check_next_seals(world.now)
    state = verification.audit_integrity(world.now, has_receiver=False)
    assert [finding.event for finding in state.findings] == [events[0].pk]


def test_the_command_names_the_changed_record_and_accepts_a_noted_seal(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    [event] = act(world)
    seals.seal_new_events(world.now)
    noted = AuditSeal.objects.get()
    call_command("verify_audit", expect=f"1:{noted.digest}")
    assert f"The last seal is 1:{noted.digest}" in capsys.readouterr().out
    with pytest.raises(CommandError, match="no seal 1 with this digest"):
        call_command("verify_audit", expect=f"1:{'0' * 64}")
    with pytest.raises(CommandError, match="allowed: NUMBER:DIGEST"):
        call_command("verify_audit", expect="yesterday")
    bypass_triggers(f"UPDATE portal_auditevent SET why = 'other' WHERE id = {event.pk}")
    with pytest.raises(CommandError, match="1 differences"):
        call_command("verify_audit")
    assert f"Audit record {event.pk} was changed" in capsys.readouterr().out


class Receiver(BaseHTTPRequestHandler):
    """Answers with the statuses in `statuses`, and keeps what it got."""

    statuses: list[int] = []
    got: list[tuple[str | None, Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Receiver.got.append((self.headers["Authorization"], body))
        self.send_response(Receiver.statuses.pop(0) if Receiver.statuses else 204)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        return None


@pytest.fixture
def webhook() -> Iterator[str]:
    Receiver.statuses, Receiver.got = [], []
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/audit"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_each_record_and_its_seal_as_json(world: World, webhook: str) -> None:
    [event] = act(world)
    seals.seal_new_events(world.now)
    assert stream.stream_records(webhook, "secret", world.now) == 1
    assert stream.stream_records(webhook, "secret", world.now) == 0, "nothing is sent twice without a failure"
    [(authorization, body)] = Receiver.got
    assert authorization == "Bearer secret"
    *records, seal = body["records"]
    mine = next(record for record in records if record["id"] == event.pk)
    assert (mine["kind"], mine["verb"], mine["actor_name"]) == ("audit", "act", world.operator.username)
    assert (seal["kind"], seal["digest"]) == ("audit_seal", AuditSeal.objects.get().digest)


@pytest.mark.parametrize("status", [302, 403, 500])
def test_a_failing_webhook_delays_records_and_loses_none(world: World, webhook: str, status: int) -> None:
    act(world)
    seals.seal_new_events(world.now)
    Receiver.statuses = [status, status]
    for minute in range(2):
        assert stream.stream_records(webhook, "", world.now + minute * MINUTE) == 0
    act(world)
    seals.seal_new_events(world.now + MINUTE)
    state = verification.audit_integrity(world.now + MINUTE, has_receiver=True)
    assert state.undelivered == AuditEvent.objects.count()
    assert state.failing_since == world.now and state.failure == f"the receiver answered with status {status}"
    assert stream.stream_records(webhook, "", world.now + 2 * MINUTE) == 2
    delivered = {record["id"] for _, body in Receiver.got[2:] for record in body["records"]}
    assert {event.pk for event in AuditEvent.objects.all()} <= delivered
    state = verification.audit_integrity(world.now + 2 * MINUTE, has_receiver=True)
    assert (state.undelivered, state.failing_since, state.failure) == (0, None, "")


def receive_once(server: socket.socket, got: list[bytes], close_early: bool) -> Callable[[], None]:
    def receive() -> None:
        connection, _ = server.accept()
        with connection:
            if close_early:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return
            while chunk := connection.recv(65536):
                got.append(chunk)

    return receive


def deliver_to_syslog(world: World, close_early: bool) -> tuple[int, bytes]:
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=receive_once(server, got, close_early))
        thread.start()
        url = f"syslog+tcp://127.0.0.1:{server.getsockname()[1]}"
        done = stream.stream_records(url, "", world.now)
        thread.join()
    return done, b"".join(got)


def test_syslog_gets_frames_with_json(world: World) -> None:
    [event] = act(world)
    seals.seal_new_events(world.now)
    done, text = deliver_to_syslog(world, close_early=False)
    assert done == 1
    found = []
    while text:
        length, _, text = text.partition(b" ")
        line, text = text[: int(length)], text[int(length) :]
        assert line.startswith(b"<110>1 ")
        found.append(json.loads(line.partition(b" - audit - ")[2]))
    assert event.pk in [record["id"] for record in found] and found[-1]["kind"] == "audit_seal"


def test_a_syslog_connection_that_is_reset_counts_as_not_delivered(world: World) -> None:
    act(world, 200)
    seals.seal_new_events(world.now)
    done, _ = deliver_to_syslog(world, close_early=True)
    assert done == 0 and AuditProgress.objects.get().failing_since == world.now
    assert deliver_to_syslog(world, close_early=False)[0] == 1


def test_a_local_syslog_socket_gets_one_datagram_for_each_record(world: World, tmp_path: Path) -> None:
    act(world)
    seals.seal_new_events(world.now)
    place = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(place))
        server.settimeout(5)
        assert stream.stream_records(f"syslog+unix://{place}", "", world.now) == 1
        lines = [server.recv(65536) for _ in range(AuditEvent.objects.count() + 1)]
    assert b'"verb": "act"' in b"".join(lines) and b"audit_seal" in lines[-1]
    assert stream.stream_records(f"syslog+unix://{tmp_path}/nobody", "", world.now) == 0
