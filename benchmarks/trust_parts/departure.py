"""Measure how fast the access of a person and the work of a host end."""

from __future__ import annotations

import selectors
import socket
import time
from typing import Any

from benchmarks.fault_injection.host_faults import last_beat, state_of
from benchmarks.fault_injection.job_ledger import heartbeat_job
from benchmarks.fault_injection.process_faults import MAX_WAIT_SECONDS
from benchmarks.harness.conditions import ConditionTimeout, wait_until
from benchmarks.trust_parts.attacks.target import AttackTarget, Workspace

SOCKETS = 200
SOCKET_PATH = "/api/events/subscribe"
OPCODE_MASK, CLOSE_OPCODE, LENGTH_MASK = 0x0F, 0x08, 0x7F
EXTENDED_LENGTH_BYTES = {126: 2, 127: 8}  # bytes of the length, by the value in its place


def revoke_ms(target: AttackTarget, sockets: int = SOCKETS) -> float:
    """End the sessions of a person whose workspace has open sockets.

    Return the milliseconds from the operator's request until the last socket is closed. They include the
    request itself.
    """
    person = target.person("faults")
    lab = target.notebook_of(person)
    workspace = target.enter(target.entry_link(target.signed_in(person), lab))
    opened = [open_socket(target, workspace) for _ in range(sockets)]
    try:
        began = time.monotonic()
        target.operator.program.made(f"people/{person.name}/end-sessions/", {"why": "stolen"})
        ended = _last_close(opened)
    finally:
        for connection in opened:
            connection.close()
    if workspace.browser.get("/api/status").status == 200:
        raise ConditionTimeout("the cookie of the workspace is refused")
    person.program.made(f"workloads/{lab}/cancel/", {})
    return round((ended - began) * 1000, 1)


def open_socket(target: AttackTarget, workspace: Workspace) -> socket.socket:
    """Open a WebSocket to a notebook. Retry while the agent opens another connection to the edge."""
    cookies = "; ".join(f"{name}={value}" for name, value in workspace.browser.cookies.items())
    host = workspace.link.netloc
    request = (
        f"GET {SOCKET_PATH} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nCookie: {cookies}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        connection = socket.create_connection(("127.0.0.1", target.edge_port), timeout=30)
        connection.sendall(request.encode())
        head = b""
        while b"\r\n\r\n" not in head and (piece := connection.recv(4096)):
            head += piece
        if head.startswith(b"HTTP/1.1 101"):
            return connection
        connection.close()
        if time.monotonic() > deadline:
            raise ConditionTimeout(f"a socket is opened: {head[:200]!r}")
        time.sleep(0.1)


def _last_close(connections: list[socket.socket]) -> float:
    """Wait until each connection is closed. Return the time of the last end."""
    ended = 0.0
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    with selectors.DefaultSelector() as waiting:
        for connection in connections:
            connection.setblocking(False)
            waiting.register(connection, selectors.EVENT_READ)
        while waiting.get_map():
            if time.monotonic() > deadline:
                raise ConditionTimeout(f"{len(waiting.get_map())} sockets are closed")
            for key, _ in waiting.select(1.0):
                if _is_closed(key.fileobj):
                    ended = time.monotonic()
                    waiting.unregister(key.fileobj)
    return ended


def _is_closed(connection: Any) -> bool:
    try:
        received = connection.recv(65536)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return not received or has_close_frame(received)


def has_close_frame(received: bytes) -> bool:
    """Return True if one of these WebSocket frames closes the connection. Pings may come before it."""
    position = 0
    while position + 2 <= len(received):
        if received[position] & OPCODE_MASK == CLOSE_OPCODE:
            return True
        length, header = received[position + 1] & LENGTH_MASK, 2
        if length in EXTENDED_LENGTH_BYTES:
            header += EXTENDED_LENGTH_BYTES[length]
            length = int.from_bytes(received[position + 2 : position + header])
        position += header + length
    return False


def deprovision_s(target: AttackTarget) -> float:
    """Remove a person with a session, a token, a notebook with an open socket and a running job.

    Return the seconds until all have ended: the job writes nothing more, and both ends are recorded.
    """
    person = target.person("faults")
    lab = target.notebook_of(person)
    browser = target.signed_in(person)
    workspace = target.enter(target.entry_link(browser, lab))
    opened = open_socket(target, workspace)
    body = target.job(name="work of a person who leaves", command=heartbeat_job())
    job = str(person.program.made("jobs/", body)["id"])
    home = target.site.folder / "homes" / person.name / "ledger"
    wait_until(home.exists, MAX_WAIT_SECONDS, "the job works")
    began = time.monotonic()
    target.operator.program.made(f"people/{person.name}/remove/", {"why": "left"})
    _last_close([opened])
    opened.close()
    refused = {
        "the session": lambda: not browser.is_signed_in(),
        "the token": lambda: person.program.get("me/").status == 401,
        "the workspace": lambda: workspace.browser.get("/api/status").status != 200,
        "the job": lambda: state_of(job)[0] == "ended",
        "the notebook": lambda: state_of(lab)[0] == "ended",
    }
    for what, has_ended in refused.items():
        wait_until(has_ended, MAX_WAIT_SECONDS, f"{what} ends")
    took = time.monotonic() - began
    size = home.stat().st_size
    time.sleep(1.0)
    if home.stat().st_size != size:
        raise ConditionTimeout("the job writes nothing after its end was recorded")
    return round(took, 2)


def cut_off_host(target: AttackTarget) -> tuple[float, float]:
    """Cut off one host. Return the seconds until its work stopped, and the limit.

    Raises ConditionTimeout if its work started elsewhere before that.
    """
    from benchmarks.fault_injection.host_faults import cut_off, start_heartbeat_job
    from benchmarks.fault_injection.process_faults import cancel
    from benchmarks.harness.installation import GRACE_SECONDS
    from benchmarks.trust_parts.work import context_of

    context = context_of(target.site)
    workload, first, host = start_heartbeat_job(context)
    began = time.time()
    with cut_off(context, [host]):
        second = context.ledger.wait_started(workload, 20 * MAX_WAIT_SECONDS, attempt=first.attempt + 1)
        stopped = last_beat(context, first.run)
    if second.at < stopped:
        raise ConditionTimeout(f"its work starts elsewhere after its end: {stopped - second.at:.2f} s before")
    cancel(context, workload)
    wait_until(lambda: target.site.alive() == len(target.site.hosts), MAX_WAIT_SECONDS, "it is alive again")
    return round(stopped - began, 2), target.site.lease_seconds + GRACE_SECONDS + 1.0
