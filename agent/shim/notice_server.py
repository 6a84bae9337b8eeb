"""The notice over HTTP."""

from __future__ import annotations

import _socket  # not socket: it would add a sixth to this process's memory
import array
import ctypes
import fcntl
import json
import os

from agent.shim.libc import CLONE_NEWNET, raise_on_error
from agent.shim.run_files import boottime, log_error

TYPE_CHECKING = False  # not from typing: it would double this process's memory
if TYPE_CHECKING:
    from typing import Any

CLONE_NEWUSER = 0x10000000
NS_GET_USERNS = 0xB701  # ioctl_ns(2)
NOTICE_PORT = 4770  # of the notice over HTTP, where a workload has a network of its own
OPEN_TIMEOUT_SECONDS = 15.0  # after which a workload whose network was not found gets no notice over HTTP
MAX_CLIENTS = 8
MAX_HEAD_BYTES = 8192  # of a request
CLIENT_TIMEOUT_SECONDS = 5.0  # within which its head has to be there


class NoticeClient:
    """Somebody at the door, and what of a request came so far."""

    def __init__(self, line: _socket.socket) -> None:
        self.line = line
        self.head = b""
        self.until = boottime() + CLIENT_TIMEOUT_SECONDS

    def listen(self) -> bool:
        """Take what has come; whether that is all there is to hear. Raises OSError."""
        came = self.line.recv(MAX_HEAD_BYTES)
        self.head += came
        return not came or self.is_whole or len(self.head) > MAX_HEAD_BYTES

    @property
    def is_whole(self) -> bool:
        """An empty line ends a head, however many packets it came in."""
        return b"\r\n\r\n" in self.head or b"\n\n" in self.head


class NoticeServer:
    """The notice over HTTP, for this workload alone: a loopback port of the network that it is in, and a path nobody can guess.

    ``GET`` answers 200 with the notice as JSON, or 204 while there is none. It never waits for a caller.
    """

    def __init__(self, own_network: bool, user: int | None) -> None:
        self.path = "/" + os.urandom(12).hex()
        self.port = NOTICE_PORT
        self.listener: _socket.socket | None = None
        self.callers: list[NoticeClient] = []
        self.gives_up_at = boottime() + OPEN_TIMEOUT_SECONDS
        if not own_network:
            self.listener = listen_as(user)
            self.port = self.listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    @property
    def is_due(self) -> bool:
        """Has it still to be opened?"""
        return self.listener is None and boottime() < self.gives_up_at

    def open_in_network_of(self, pid: int) -> None:
        """Listen in the network that process ``pid`` is in. Says why it can't, and does not try again."""
        try:
            self.listener = listen_in_network_of(pid)
        except (OSError, ValueError, EOFError) as problem:
            if not os.path.exists(f"/proc/{pid}"):
                return  # it has ended; there may be another one
            log_error(f"notice over HTTP: {problem}")
            self.gives_up_at = 0.0

    def waits_for(self) -> list[_socket.socket]:
        """What ``select`` has to look at."""
        return [self.listener, *(caller.line for caller in self.callers)] if self.listener is not None else []

    def answer(self, readable: list[Any], notice: dict[str, Any] | None) -> None:
        """Let new callers in, and answer those who have asked."""
        if self.listener in readable:
            assert self.listener is not None
            try:
                descriptor, _ = self.listener._accept()  # type: ignore[attr-defined]
            except OSError:
                return  # it hung up at once
            line = _socket.socket(fileno=descriptor)
            line.setblocking(False)
            self.callers.append(NoticeClient(line))
            if len(self.callers) > MAX_CLIENTS:
                self.callers.pop(0).line.close()
        now = boottime()
        for caller in list(self.callers):
            if (caller.line in readable and self.is_done(caller, notice)) or now > caller.until:
                self.callers.remove(caller)
                caller.line.close()

    def is_done(self, caller: NoticeClient, notice: dict[str, Any] | None) -> bool:
        """Listen on, and answer once the head is whole or will never be; whether nothing more is to be done for this one."""
        try:
            if not caller.listen():
                return False
            if caller.head:
                caller.line.send(self.reply(caller, notice))
                caller.line.shutdown(_socket.SHUT_WR)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def reply(self, caller: NoticeClient, notice: dict[str, Any] | None) -> bytes:
        status, body = "204 No Content", b""
        asked = caller.head.split(None, 2)[:2]
        if not caller.is_whole:
            status = "400 Bad Request"
        elif asked[:1] not in ([b"GET"], [b"HEAD"]) or asked[1:2] != [self.path.encode()]:
            status = "404 Not Found"
        elif notice is not None:
            status, body = "200 OK", json.dumps(notice).encode()
        head = f"HTTP/1.1 {status}\r\nCache-Control: no-store\r\nConnection: close\r\n"
        if not status.startswith("204"):
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + (b"" if asked[:1] == [b"HEAD"] else body)


def listen_as(user: int | None) -> _socket.socket:
    """A socket on a free port of the host that belongs to ``user``: what belongs to others is closed to the workload."""
    if user is None:
        return listen(0)
    me = os.geteuid()
    os.seteuid(user)
    try:
        return listen(0)
    finally:
        os.seteuid(me)


def listen(port: int) -> _socket.socket:
    """A socket that listens on a loopback port."""
    listener = _socket.socket(
        _socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
    )
    listener.bind(("127.0.0.1", port))
    listener.listen(8)
    return listener


def listen_in_network_of(pid: int) -> _socket.socket:
    """A socket that listens on DOOR_PORT in the network name space of process ``pid``. A child goes there and hands it over: this
    process stays where it is."""
    ours, theirs = _socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            enter_network(pid)
            listener = listen(NOTICE_PORT)
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))]
            theirs.sendmsg([b"+"], rights)
        except OSError as problem:
            theirs.send(str(problem).encode()[:1000])
        finally:
            os._exit(0)
    theirs.close()
    try:
        said, passed, _, _ = ours.recvmsg(1000, _socket.CMSG_SPACE(4))
    finally:
        ours.close()
        os.waitpid(child, 0)
    if not passed:
        raise OSError(said.decode("utf-8", "replace") or "no answer")
    listener = _socket.socket(fileno=array.array("i", passed[0][2])[0])
    os.set_inheritable(listener.fileno(), False)
    listener.setblocking(False)
    return listener


def enter_network(pid: int) -> None:
    """Be in the network name space of ``pid`` from now on. Without root that takes entering the user name space that owns it."""
    libc = ctypes.CDLL(None, use_errno=True)
    space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(space, CLONE_NEWNET) == 0:
        return
    owner = fcntl.ioctl(space, NS_GET_USERNS)
    raise_on_error(libc.setns(owner, CLONE_NEWUSER), "its user name space")
    raise_on_error(libc.setns(space, CLONE_NEWNET), "its network")
