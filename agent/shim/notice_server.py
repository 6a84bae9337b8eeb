"""Serves the notice of a workload over HTTP."""

from __future__ import annotations

import _socket  # not the module socket, which would increase this process's memory by a sixth
import array
import ctypes
import fcntl
import json
import os

from agent.shim.libc import CLONE_NEWNET, raise_on_error
from agent.shim.run_files import boottime, log_error

TYPE_CHECKING = False  # not imported from typing, because the import would double this process's memory
if TYPE_CHECKING:
    from typing import Any

CLONE_NEWUSER = 0x10000000
NS_GET_USERNS = 0xB701  # ioctl_ns(2)
NOTICE_PORT = 4770  # port of the server if the workload has its own network
OPEN_TIMEOUT_SECONDS = 15.0  # longest wait for the workload's network; then the server stays closed
MAX_CLIENTS = 8
MAX_HEAD_BYTES = 8192  # longest head of a request
CLIENT_TIMEOUT_SECONDS = 5.0  # time limit for a client to send the whole head


class NoticeClient:
    """A client connection and the part of its request that was received so far."""

    def __init__(self, connection: _socket.socket) -> None:
        self.connection = connection
        self.head = b""
        self.until = boottime() + CLIENT_TIMEOUT_SECONDS

    def receive(self) -> bool:
        """Receive the next part of the head. Return True if no further part is needed. Raises OSError."""
        received = self.connection.recv(MAX_HEAD_BYTES)
        self.head += received
        return not received or self.is_whole or len(self.head) > MAX_HEAD_BYTES

    @property
    def is_whole(self) -> bool:
        """Return True if the head is complete, which means that it ends with an empty line."""
        return b"\r\n\r\n" in self.head or b"\n\n" in self.head


class NoticeServer:
    """A server that gives the stop notice to one workload, at a loopback port.

    The path of its URL is random, so that only this workload knows it. The answer to ``GET`` is 200 with the
    notice as JSON, or 204 if there is no notice. The server never waits for a client.
    """

    def __init__(self, own_network: bool, user: int | None) -> None:
        self.path = "/" + os.urandom(12).hex()
        self.port = NOTICE_PORT
        self.listener: _socket.socket | None = None
        self.clients: list[NoticeClient] = []
        self.gives_up_at = boottime() + OPEN_TIMEOUT_SECONDS
        if not own_network:
            self.listener = listen_as(user)
            self.port = self.listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    @property
    def is_due(self) -> bool:
        """Return True if the server still has to be opened in the workload's own network."""
        return self.listener is None and boottime() < self.gives_up_at

    def open_in_network_of(self, pid: int) -> None:
        """Listen in the network namespace of process ``pid``. On an error, log it and do not try again."""
        try:
            self.listener = listen_in_network_of(pid)
        except (OSError, ValueError, EOFError) as problem:
            if not os.path.exists(f"/proc/{pid}"):
                return  # the process has ended; the caller tries another process
            log_error(f"notice over HTTP: {problem}")
            self.gives_up_at = 0.0

    def waits_for(self) -> list[_socket.socket]:
        """Return the sockets on which the caller must wait with ``select``."""
        return (
            [self.listener, *(client.connection for client in self.clients)]
            if self.listener is not None
            else []
        )

    def answer(self, readable: list[Any], notice: dict[str, Any] | None) -> None:
        """Accept a new client, and answer clients whose request is complete."""
        if self.listener in readable:
            assert self.listener is not None
            try:
                descriptor, _ = self.listener._accept()  # type: ignore[attr-defined]
            except OSError:
                return  # the client disconnected at once
            connection = _socket.socket(fileno=descriptor)
            connection.setblocking(False)
            self.clients.append(NoticeClient(connection))
            if len(self.clients) > MAX_CLIENTS:
                self.clients.pop(0).connection.close()
        now = boottime()
        for client in list(self.clients):
            if (client.connection in readable and self.is_done(client, notice)) or now > client.until:
                self.clients.remove(client)
                client.connection.close()

    def is_done(self, client: NoticeClient, notice: dict[str, Any] | None) -> bool:
        """Receive more of the request and answer it once it is complete.

        Return True if the connection can be closed.
        """
        try:
            if not client.receive():
                return False
            if client.head:
                client.connection.send(self.reply(client, notice))
                client.connection.shutdown(_socket.SHUT_WR)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def reply(self, client: NoticeClient, notice: dict[str, Any] | None) -> bytes:
        status, body = "204 No Content", b""
        words = client.head.split(None, 2)[:2]
        if not client.is_whole:
            status = "400 Bad Request"
        elif words[:1] not in ([b"GET"], [b"HEAD"]) or words[1:2] != [self.path.encode()]:
            status = "404 Not Found"
        elif notice is not None:
            status, body = "200 OK", json.dumps(notice).encode()
        head = f"HTTP/1.1 {status}\r\nCache-Control: no-store\r\nConnection: close\r\n"
        if not status.startswith("204"):
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + (b"" if words[:1] == [b"HEAD"] else body)


def listen_as(user: int | None) -> _socket.socket:
    """Return a listening socket on a free loopback port, owned by the uid ``user``; None: this process's
    user.

    The socket needs this owner, because a workload in the host's network can reach only sockets of its user.
    """
    if user is None:
        return listen(0)
    own_uid = os.geteuid()
    os.seteuid(user)
    try:
        return listen(0)
    finally:
        os.seteuid(own_uid)


def listen(port: int) -> _socket.socket:
    """Return a socket that listens on a loopback port."""
    listener = _socket.socket(
        _socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
    )
    listener.bind(("127.0.0.1", port))
    listener.listen(8)
    return listener


def listen_in_network_of(pid: int) -> _socket.socket:
    """Return a socket that listens on NOTICE_PORT in the network namespace of process ``pid``.

    A child process enters the namespace and passes the socket back. This process stays in its own namespace.
    """
    parent_end, child_end = _socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            enter_network(pid)
            listener = listen(NOTICE_PORT)
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))]
            child_end.sendmsg([b"+"], rights)
        except OSError as problem:
            child_end.send(str(problem).encode()[:1000])
        finally:
            os._exit(0)
    child_end.close()
    try:
        message, passed, _, _ = parent_end.recvmsg(1000, _socket.CMSG_SPACE(4))
    finally:
        parent_end.close()
        os.waitpid(child, 0)
    if not passed:
        raise OSError(message.decode("utf-8", "replace") or "no answer")
    listener = _socket.socket(fileno=array.array("i", passed[0][2])[0])
    os.set_inheritable(listener.fileno(), False)
    listener.setblocking(False)
    return listener


def enter_network(pid: int) -> None:
    """Enter the network namespace of process ``pid``. Raises OSError.

    Without root, first enter the user namespace that owns the network namespace.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(space, CLONE_NEWNET) == 0:
        return
    owner = fcntl.ioctl(space, NS_GET_USERNS)
    raise_on_error(libc.setns(owner, CLONE_NEWUSER), "its user name space")
    raise_on_error(libc.setns(space, CLONE_NEWNET), "its network")
