"""The shim: one small process per workload that owns its process tree, its log and its lease.

Started by the agent as ``python -I -S shim.py RUN_DIR`` and then on its own: the agent may die and come back. It imports
only a few modules of the standard library and nothing of ours, so that it stays small (about 10 MB).

It reads from RUN_DIR                         It writes to RUN_DIR
  spec.json   what to start and the limits      shim.json   who it is (pid, start time, boot) and when the workload began
  lease       a time on CLOCK_BOOTTIME          log/        the workload's output, in segments named by their first byte
  order.json  what the agent asks for           epilog.json that the operator's epilog was begun, and how the workload ended
  exit.room   room for exit.json on a full disk exit.json   how it ended, written last, once, atomically

CLOCK_BOOTTIME counts through sleep and never jumps, so no change of the wall clock can shorten or lengthen a lease.
"""

from __future__ import annotations

import _socket  # not socket: it would add a sixth to this process's memory
import array
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import sys
import time
from stat import S_ISREG

TYPE_CHECKING = False  # not from typing: it would double this process's memory
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Numbers of system calls (the same on every machine that Linux added them to at once) and of what they are asked, landlock(7).
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET = 1
SCOPES_SINCE = 6  # of landlock's versions: Linux 6.12
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWNS = 0x20000
CLONE_NEWNET = 0x40000000
MFD_NOEXEC_SEAL = 8
MS_BIND, MS_REC, MS_SLAVE, MS_NOSUID, MS_NODEV = 0x1000, 0x4000, 0x80000, 0x2, 0x4
CLONE_NEWUSER = 0x10000000
NS_GET_USERNS = 0xB701  # ioctl_ns(2)
DOOR_PORT = 4770  # of the notice over HTTP, where a workload has a network of its own
DOOR_SECONDS = 15.0  # after which a workload whose network was not found gets no notice over HTTP
DOOR_TICK_SECONDS = 0.02
MOST_CALLERS = 8
MOST_HEAD_BYTES = 8192  # of a request
CALLER_SECONDS = 5.0  # within which its head has to be there
# What a workload may make sockets of: what a network name space confines, and what CUDA and NCCL use; linux/socket.h.
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
# Of each way into the kernel (AUDIT_ARCH_ of linux/audit.h): the calls that make a socket of the family they are given, and the
# call that makes one of what it finds in memory, where a filter can't look. From the kernel's tables of system calls.
X86_64, I386, AARCH64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
SOCKETS = {X86_64: ((41, 53), None), I386: ((359, 360), 102), AARCH64: ((198, 199), None), ARM: ((281, 288), None)}
SOCKETCALLS = (1, 8)  # of the latter, linux/net.h: SYS_SOCKET and SYS_SOCKETPAIR
X32 = 0x40000000  # set in the numbers of X86_64 by programs with pointers of 32 bits
IO_URING_SETUP = 425  # everywhere; it makes sockets past every filter
BPF_LOAD, BPF_AND, BPF_IF_EQUAL, BPF_RETURN = 0x20, 0x54, 0x15, 0x06  # linux/bpf_common.h
AT_NUMBER, AT_ARCH, AT_FIRST_ARGUMENT = 0, 4, 16  # in struct seccomp_data, its lower half on little-endian machines
SECCOMP_ALLOW, SECCOMP_ERRNO = 0x7FFF0000, 0x00050000
SECCOMP_NUMBERS = {"x86_64": 317, "aarch64": 277}  # of the system call; seccomp(2) for what it is asked
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 4
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
KEYCTL_JOIN_SESSION_KEYRING = 1
KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219}  # of the system call, which the C library has no function for
TICK_SECONDS = 1.0
LEFTOVER_GRACE_SECONDS = 2.0  # for background processes that outlive the workload's main process
KILL_AGAIN_SECONDS = 0.1
KILL_AGAIN_TIMES = 20  # then a process that can't be killed is looked at less often: each look reads all of /proc
LOG_SEGMENT_BYTES = 1 << 20
LOG_SEGMENTS = 8
READ_BYTES = 1 << 16
HOOK_TICK_SECONDS = 0.2
HOOK_WORDS = 500  # bytes of what a failing hook printed last that are told
HOOK_REST_SECONDS = 5.0  # for what a hook left running to be gone after a KILL
ACKNOWLEDGEMENT = ".done"


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object in ``path``, or None while there is none."""
    try:
        with open(path) as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (FileNotFoundError, ValueError):
        return None


def write_json(path: str, value: dict[str, Any], mode: int = 0o600) -> None:
    """Atomic and durable: a reader sees the old file, the new file or none. A link is replaced, not followed."""
    new = path + ".new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def complain(text: str) -> None:
    """Say it in shim.err. What a full disk does not take is lost, and nobody's workload with it."""
    try:
        os.write(2, text.encode() + b"\n")
    except OSError:
        return


def process_stat(pid: int | str) -> tuple[int, int, str, str] | None:
    """(parent pid, start time in ticks, state letter, name) of a process, or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), int(fields[19]), fields[0], name


def descendants(root: int) -> list[tuple[int, int, str]]:
    """[(pid, depth, name)] of every living process below ``root``. Orphans stay below it: it is their subreaper."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = process_stat(entry)
            if stat is not None and stat[2] not in "ZX":
                children.setdefault(stat[0], []).append((int(entry), stat[3]))
    found: list[tuple[int, int, str]] = []
    level = [(root, 0)]
    while level:
        pid, depth = level.pop()
        for child, name in children.get(pid, ()):
            found.append((child, depth + 1, name))
            level.append((child, depth + 1))
    return found


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for the signal: one that has none would die of it."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return False


def out_of_memory_kills(path: str = "/proc/vmstat") -> int | None:
    """How many processes the kernel killed for memory, or None where it does not say: of the whole host, or of the control group
    whose memory.events (version 2) or memory.oom_control (version 1) is given."""
    try:
        with open(path) as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except OSError:
        return None
    return None


def members(files: list[str]) -> set[int]:
    """Pids of the processes in the control groups whose cgroup.procs are given."""
    found: set[int] = set()
    for name in files:
        try:
            with open(name) as file:
                found.update(int(line) for line in file)
        except OSError:
            continue  # removed: so it is empty
    found.discard(0)  # a process of another pid name space
    return found


def checked(result: int, what: str) -> None:
    """Raise OSError with the C library's errno where a call of it failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(spec: dict[str, Any]) -> None:
    """Make the calling process what the workload starts as: call it between fork and exec. Raises OSError, and then nothing may
    be started.

    ``cgroup_procs``: files to write the pid into. ``network``: a network name space to be in. ``stage``: folders to show at other
    paths, below ``stage_at``, to this process alone. ``user``: the user and group to become for good, without any other group.
    ``own_sockets``: whether to reach only such abstract sockets as it or its children make. ``known_families``: whether to make
    sockets of no other families than a network name space confines.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for name in spec.get("cgroup_procs", ()):
        with open(name, "w") as file:
            file.write(str(os.getpid()))
    keyctl = KEYCTL_NUMBERS.get(os.uname().machine)
    if keyctl:  # the keys of whoever started the agent are not the workload's
        libc.syscall(keyctl, KEYCTL_JOIN_SESSION_KEYRING, None)
    if spec.get("network"):
        space = os.open(spec["network"], os.O_RDONLY | os.O_CLOEXEC)
        checked(libc.setns(space, CLONE_NEWNET), f"network {spec['network']}")
        os.close(space)
    if spec.get("stage"):
        show(libc, spec["stage_at"], spec["stage"])
    user = spec.get("user")
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    own_sockets, known_families = spec.get("own_sockets"), spec.get("known_families")
    if user is not None or spec.get("launcher") == "plain" or own_sockets or known_families:
        checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    if own_sockets:
        keep_to_own_sockets(libc)
    if known_families:
        keep_to_known_families(libc)


def handed_in(argv: list[str], env: dict[str, str]) -> tuple[list[str], int]:
    """(``argv`` of a sandbox that gives ``env`` to its workload, descriptor from which it reads that). Raises ValueError.

    bwrap itself still stands outside, as whoever the agent is: what of ``env`` speaks to the loader (LD_PRELOAD) must not reach
    it, and as an argument everybody on the host would read it.
    """
    words: list[bytes] = []
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:  # a NUL would end the value, and begin an option
            raise ValueError(f"{name!r} can't be in an environment")
        words += [b"--setenv", os.fsencode(name), os.fsencode(value)]
    try:
        descriptor = os.memfd_create("environment", MFD_NOEXEC_SEAL)  # a host may demand it
    except OSError:  # Linux before 6.3
        descriptor = os.memfd_create("environment", 0)
    with open(os.dup(descriptor), "wb") as file:
        file.write(b"".join(word + b"\0" for word in words))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return [argv[0], "--args", str(descriptor), *argv[1:]], descriptor


def landlock_version() -> int:
    """Of the kernel's landlock; 0 where there is none."""
    found = ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_CREATE_RULESET_VERSION)
    return max(0, int(found))


def keep_to_own_sockets(libc: ctypes.CDLL) -> None:
    """From now on this process and what it starts connect to no abstract unix socket of anybody else. Neither files nor ports nor
    rights stand before those, and whoever shares the host's network would reach them, root's too."""
    # struct landlock_ruleset_attr: handled_access_fs, handled_access_net, scoped; the first two are left as they are
    asked = array.array("Q", [0, 0, LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET])
    place, size = asked.buffer_info()
    rules = libc.syscall(LANDLOCK_CREATE_RULESET, ctypes.c_void_p(place), ctypes.c_size_t(size * asked.itemsize), 0)
    checked(0 if rules >= 0 else rules, "abstract sockets")
    checked(libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0), "abstract sockets")
    os.close(rules)


def filters_calls() -> bool:
    """Whether system calls can be filtered here: a kernel that has filters looks for the one that it is not given."""
    ctypes.set_errno(0)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, None)
    return os.uname().machine in SECCOMP_NUMBERS and ctypes.get_errno() == errno.EFAULT


def keep_to_known_families(libc: ctypes.CDLL) -> None:
    """From now on this process and what it starts make no sockets of families that belong to no network name space: vsock reaches
    the hypervisor and other virtual machines out of every one of them."""
    steps = family_filter()
    place, length = steps.buffer_info()
    program = array.array("Q", [length, place])  # struct sock_fprog
    number, asked = SECCOMP_NUMBERS[os.uname().machine], ctypes.c_void_p(program.buffer_info()[0])
    # Without the flag, kernels before 5.16 slow the workload down for it; before 4.17 they don't know it.
    if libc.syscall(number, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, asked) != 0:
        checked(libc.syscall(number, SECCOMP_SET_MODE_FILTER, 0, asked), "address families")


def family_filter() -> array.array[int]:
    """The filter as the kernel takes it, one struct sock_filter in 64 bits: code, how far to jump if so and if not, value."""
    steps: list[tuple[int, int, str]] = []  # code, value, and of a question the mark to go to where the answer is yes
    marks: dict[str, int] = {}

    def ask(values: tuple[int, ...], to: str) -> None:
        steps.extend((BPF_IF_EQUAL, value, to) for value in values)

    def end(mark: str, answer: int) -> None:
        marks.setdefault(mark, len(steps))
        steps.append((BPF_RETURN, answer, ""))

    steps.append((BPF_LOAD, AT_ARCH, ""))
    for way in SOCKETS:
        ask((way,), f"{way}")
    end("unknown", SECCOMP_ERRNO | errno.ENOSYS)  # way into the kernel
    for way, (calls, socketcall) in SOCKETS.items():
        marks[f"{way}"] = len(steps)
        steps += [(BPF_LOAD, AT_NUMBER, ""), (BPF_AND, ~X32 & 0xFFFFFFFF, "")]
        ask(calls, "by family")
        ask((socketcall,) if socketcall else (), "by call")
        ask((IO_URING_SETUP,), "no such call")
        end("another call", SECCOMP_ALLOW)
    marks["by call"] = len(steps)
    steps.append((BPF_LOAD, AT_FIRST_ARGUMENT, ""))
    ask(SOCKETCALLS, "refused")
    end("no socket", SECCOMP_ALLOW)
    marks["by family"] = len(steps)
    steps.append((BPF_LOAD, AT_FIRST_ARGUMENT, ""))
    ask((AF_UNIX, AF_INET, AF_INET6, AF_NETLINK), "taken")
    end("refused", SECCOMP_ERRNO | errno.EAFNOSUPPORT)
    end("taken", SECCOMP_ALLOW)
    end("no such call", SECCOMP_ERRNO | errno.ENOSYS)
    jumps = [marks[to] - at - 1 if to else 0 for at, (_, _, to) in enumerate(steps)]
    return array.array("Q", (code | yes << 16 | value << 32 for (code, value, _), yes in zip(steps, jumps, strict=True)))


def show(libc: ctypes.CDLL, place: str, mounts: list[list[str]]) -> None:
    """Mount each (path, place below ``place``) in a mount name space of this process's own; the host sees nothing of it."""
    checked(libc.unshare(CLONE_NEWNS), "mount name space")
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "mount name space")
    sources = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path, _ in mounts]  # before anything is put over them
    flags = MS_NOSUID | MS_NODEV
    checked(libc.mount(b"gpupool", place.encode(), b"tmpfs", flags, b"mode=0755,size=1m"), place)
    for source, (_, target) in zip(sources, mounts, strict=True):
        if os.path.isdir(f"/proc/self/fd/{source}"):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
        path = f"/proc/self/fd/{source}"
        checked(libc.mount(path.encode(), target.encode(), None, MS_BIND | MS_REC, None), target)
        os.close(source)


class Log:
    """The workload's output in segments named by the offset of their first byte; the oldest go when there are too many."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.offset = 0
        self.file: int | None = None
        self.written = 0
        self.lost = 0
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def write(self, data: bytes) -> None:
        """Never raises: a full disk costs output, not the workload."""
        try:
            file = self.rotate() if self.file is None or self.written >= LOG_SEGMENT_BYTES else self.file
            while data:
                written = os.write(file, data)
                self.offset += written
                self.written += written
                data = data[written:]
        except OSError:
            self.lost += len(data)

    def rotate(self) -> int:
        if self.file is not None:
            os.close(self.file)
            self.file = None
        path = os.path.join(self.folder, f"{self.offset:015d}")
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.written = 0
        for name in sorted(os.listdir(self.folder))[:-LOG_SEGMENTS]:
            os.unlink(os.path.join(self.folder, name))
        return self.file


class Caller:
    """Somebody at the door, and what of a request came so far."""

    def __init__(self, line: _socket.socket) -> None:
        self.line = line
        self.head = b""
        self.until = boottime() + CALLER_SECONDS

    def listen(self) -> bool:
        """Take what has come; whether that is all there is to hear. Raises OSError."""
        came = self.line.recv(MOST_HEAD_BYTES)
        self.head += came
        return not came or self.is_whole or len(self.head) > MOST_HEAD_BYTES

    @property
    def is_whole(self) -> bool:
        """An empty line ends a head, however many packets it came in."""
        return b"\r\n\r\n" in self.head or b"\n\n" in self.head


class NoticeDoor:
    """The notice over HTTP, for this workload alone: a loopback port of the network that it is in, and a path nobody can guess.

    ``GET`` answers 200 with the notice as JSON, or 204 while there is none. It never waits for a caller.
    """

    def __init__(self, own_network: bool, user: int | None) -> None:
        self.path = "/" + os.urandom(12).hex()
        self.port = DOOR_PORT
        self.listener: _socket.socket | None = None
        self.callers: list[Caller] = []
        self.gives_up_at = boottime() + DOOR_SECONDS
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

    def open_beside(self, pid: int) -> None:
        """Listen in the network that process ``pid`` is in. Says why it can't, and does not try again."""
        try:
            self.listener = listen_beside(pid)
        except (OSError, ValueError, EOFError) as problem:
            if not os.path.exists(f"/proc/{pid}"):
                return  # it has ended; there may be another one
            complain(f"notice over HTTP: {problem}")
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
            self.callers.append(Caller(line))
            if len(self.callers) > MOST_CALLERS:
                self.callers.pop(0).line.close()
        now = boottime()
        for caller in list(self.callers):
            if (caller.line in readable and self.is_done(caller, notice)) or now > caller.until:
                self.callers.remove(caller)
                caller.line.close()

    def is_done(self, caller: Caller, notice: dict[str, Any] | None) -> bool:
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

    def reply(self, caller: Caller, notice: dict[str, Any] | None) -> bytes:
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
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC)
    listener.bind(("127.0.0.1", port))
    listener.listen(8)
    return listener


def listen_beside(pid: int) -> _socket.socket:
    """A socket that listens on DOOR_PORT in the network name space of process ``pid``. A child goes there and hands it over: this
    process stays where it is."""
    ours, theirs = _socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            enter_network(pid)
            listener = listen(DOOR_PORT)
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
    checked(libc.setns(owner, CLONE_NEWUSER), "its user name space")
    checked(libc.setns(space, CLONE_NEWNET), "its network")


class Hook:
    """One run of a program of the operator's, as the agent's user. It and all that it leaves running are gone afterwards."""

    def __init__(self, shim: Shim, name: str, more: dict[str, str]) -> None:
        self.shim = shim
        self.name = name
        self.seconds = float(shim.hooks["seconds"])
        self.env = {**shim.hooks["env"], "GPUPOOL_HOOK": name, **more}
        self.pid = 0
        self.status: int | None = None
        self.output = -1
        self.said = b""

    def run(self, called_off: Callable[[], bool], ended: dict[str, Any] | None = None) -> str:
        """'' when it ended with 0, or had been begun before (``ended``: how the workload ended; such a hook is begun once, ever).
        Else what went wrong, in words."""
        self.output, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        gate, go = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(go)
            self.become(gate, write_end)
        os.close(write_end)
        os.close(gate)
        try:
            if ended is not None and not self.is_first(ended):
                os.close(go)
                os.waitpid(self.pid, 0)
                return ""
            os.write(go, b"+")
            os.close(go)
            return self.wait(called_off)
        finally:
            self.end_the_rest()
            os.close(self.output)

    def become(self, gate: int, output: int) -> None:
        try:
            if os.read(gate, 1) != b"+":
                return  # it is not to begin
            os.setsid()
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.set_blocking(output, True)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.set_wakeup_fd(-1)
            for number in range(1, 32):
                if number not in (signal.SIGKILL, signal.SIGSTOP):
                    signal.signal(number, signal.SIG_DFL)
            os.chdir("/")
            program = self.shim.hooks[self.name]
            os.execve(program, [program], self.env)
        except OSError as problem:
            os.write(2, f"it can't be started: {problem.strerror}".encode())
        finally:
            os._exit(127)

    def is_first(self, ended: dict[str, Any]) -> bool:
        """Leave the mark that it was begun, unless somebody else has. Who finds the mark waits for this process until its time is
        over. On a full disk there is no mark, and no epilog lost for it."""
        stat = process_stat(self.pid)
        mark = {"pid": self.pid, "start_ticks": stat[1] if stat else 0, "boot_id": boot_id()}
        new, path = self.shim.path(f"epilog.{self.pid}"), self.shim.path("epilog.json")
        try:
            write_json(new, {**mark, "until": boottime() + self.seconds, "ended": ended})
            os.link(new, path)
        except FileExistsError:
            return False
        except OSError as problem:
            complain(f"epilog.json: {problem}")
        finally:
            self.shim.remove(os.path.basename(new))
        return True

    def wait(self, called_off: Callable[[], bool]) -> str:
        until = boottime() + self.seconds
        while self.status is None:
            if boottime() >= until:
                return f"the operator's {self.name} did not end in {self.seconds:g} seconds and was killed"
            if called_off():
                return f"it was stopped while the operator's {self.name} ran"
            select.select([self.shim.wake], [], [], min(HOOK_TICK_SECONDS, max(0.0, until - boottime())))
            self.shim.drain_wake()
            self.listen()
            self.reap()
        self.listen()
        if self.status == 0:
            return ""
        code = 128 + os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else os.WEXITSTATUS(self.status)
        words = " ".join(self.said[-HOOK_WORDS:].decode("utf-8", "replace").replace("\x00", "?").split())
        return f"the operator's {self.name} ended with {code}" + (f": {words}" if words else "")

    def listen(self) -> None:
        """Keep the last of what it prints; never waits, and comes to an end however much that is."""
        try:
            for _ in range(64):
                data = os.read(self.output, READ_BYTES)
                if not data:
                    return
                self.said = (self.said + data)[-HOOK_WORDS:]
        except BlockingIOError:
            return

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = status

    def end_the_rest(self) -> None:
        """KILL it, where it still runs, and whatever it started. Processes that KILL does not end are left after a while."""
        until = boottime() + HOOK_REST_SECONDS
        while boottime() < until:
            self.reap()
            rest = descendants(os.getpid())
            if not rest:
                return
            for pid, _, _ in rest:
                send(pid, signal.SIGKILL)
            time.sleep(0.02)


class Shim:
    """One workload from its start to its end."""

    def __init__(self, run_dir: str) -> None:
        self.dir = run_dir
        self.spec: dict[str, Any] = read_json(self.path("spec.json")) or {}
        self.log = Log(self.path("log"))
        self.main = 0  # pid of the process that was started: the workload itself or its sandbox
        self.main_status: int | None = None
        self.cause = ""  # why it is being stopped: "", "stop", "lease_lost", "time_limit", "leftover"
        self.stop_outcome = ""
        self.stop_whatever = False
        self.kill_at: float | None = None
        self.killed = False
        self.prolog_failed = False  # by itself, and not because it was called off
        self.looks_after_kill = 0
        self.notice_seen: tuple[int, ...] | None = None  # the acknowledgement as it stood when the notice came
        self.noticed = False
        self.notice: dict[str, Any] | None = None
        self.door: NoticeDoor | None = None
        self.order_seen: dict[str, Any] = {}
        self.began = 0.0
        self.ends_at: float | None = None
        self.lease_until = 0.0
        self.lease_trouble = False  # said once
        self.wake = -1
        self.pipe: int | None = None
        self.oom_before: int | None = None
        self.hooks: dict[str, Any] = self.spec.get("hooks", {})

    def path(self, name: str) -> str:
        return os.path.join(self.dir, name)

    def run(self) -> None:
        """Start the workload, keep it, write how it ended."""
        self.catch_signals()
        for own in self.spec[
            "own_fds"
        ]:  # that it lives, and its half of the GPU locks; the workload inherits the other
            os.set_inheritable(own, False)
        me = process_stat(os.getpid())
        identity: dict[str, Any] = {"pid": os.getpid(), "start_ticks": me[1] if me else 0, "boot_id": boot_id()}
        write_json(self.path("shim.json"), identity)
        if not self.prolog(identity):
            return
        self.oom_before = out_of_memory_kills()
        self.make_door()
        if self.called_off():  # whoever started this may have been held up for long in between
            self.finish_unbegun("it was stopped, or its lease was over, before it began")
            return
        error = self.start()
        if error:
            self.finish("start_failed", None, error)
            return
        self.began = boottime()
        self.limit(self.spec.get("max_runtime_seconds", 0))
        write_json(self.path("shim.json"), {**identity, "main_pid": self.main, "started_at": time.time()})
        self.keep()
        outcome, code = self.outcome()
        self.finish(outcome, code, "")

    def catch_signals(self) -> None:
        self.wake, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)  # who wants this workload stopped tells the agent
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def make_door(self) -> None:
        """Without a port, or the memory for it, the workload has the file and the signal."""
        try:
            own_network = bool(self.spec.get("network")) or "--unshare-net" in self.spec["argv"]
            self.door = NoticeDoor(own_network, self.spec.get("user"))
        except OSError as problem:
            complain(f"notice over HTTP: {problem}")
        else:
            self.spec["env"]["GPUPOOL_NOTICE_URL"] = self.door.url

    def start(self) -> str:
        """Fork and exec the workload. The reason when it could not be started, else ''."""
        self.pipe, output = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.pipe, False)
        failed, failed_write = os.pipe2(os.O_CLOEXEC)
        self.main = os.fork()
        if self.main == 0:
            try:
                self.become_workload(output)
            except (OSError, ValueError, TypeError) as problem:
                os.write(failed_write, str(problem).encode()[:4000])
            finally:
                os._exit(127)
        os.close(output)
        os.close(failed_write)
        message = os.read(failed, 4096).decode("utf-8", "replace")
        os.close(failed)
        if message:
            os.waitpid(self.main, 0)
        return message

    def become_workload(self, output: int) -> None:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.set_wakeup_fd(-1)
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP) and number < 32:
                signal.signal(number, signal.SIG_DFL)
        os.umask(0o077)
        enter(self.spec)
        os.chdir(self.spec.get("cwd") or "/")
        argv, env = self.spec["argv"], self.spec["env"]
        if self.spec.get("launcher") == "bubblewrap":
            argv, _ = handed_in(argv, env)
            env = {"GPUPOOL_MARK": env["GPUPOOL_MARK"]}  # by which the agent finds it
        os.execvpe(argv[0], argv, env)

    def keep(self) -> None:
        """Until no process of the workload is left."""
        while True:
            waits_for: list[Any] = [self.wake, *(self.door.waits_for() if self.door is not None else [])]
            waits_for += [self.pipe] if self.pipe is not None else []
            readable, _, _ = select.select(waits_for, [], [], self.wait())
            if self.wake in readable:
                self.drain_wake()
            self.drain_log()
            self.reap()
            self.obey()
            self.tend_door(readable)
            self.check_limits()
            if self.main_status is not None and not self.leftovers():
                self.drain_log()
                return

    def wait(self) -> float:
        if self.killed:
            self.looks_after_kill += 1
            return KILL_AGAIN_SECONDS if self.looks_after_kill <= KILL_AGAIN_TIMES else TICK_SECONDS
        if self.door is not None and self.door.is_due:
            return DOOR_TICK_SECONDS
        now = boottime()
        ends = [when for when in (self.kill_at, self.ends_at, self.lease()) if when is not None and when > now]
        return min([TICK_SECONDS] + [when - now + 0.001 for when in ends])

    def tend_door(self, readable: list[Any]) -> None:
        """Open the door once there is a workload to open it to, and answer who knocks."""
        if self.door is None:
            return
        if self.door.is_due:
            workload = self.workload_processes()
            if workload:
                self.door.open_beside(workload[0])
        self.door.answer(readable, self.notice)

    def drain_wake(self) -> None:
        try:
            while os.read(self.wake, 512):
                continue
        except BlockingIOError:
            return

    def drain_log(self) -> None:
        for _ in range(64):  # then look at signals and limits again, however much the workload writes
            if self.pipe is None:
                return
            try:
                data = os.read(self.pipe, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                os.close(self.pipe)
                self.pipe = None
                return
            self.log.write(data)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.main_status = status

    def lease(self) -> float:
        """Until when the workload may run (CLOCK_BOOTTIME): what was last read, where it can't be read now. Never read: over."""
        try:
            with open(self.path("lease")) as file:
                self.lease_until = float(file.read())
        except (OSError, ValueError) as problem:
            if not self.lease_trouble:
                complain(f"lease: {problem}")
            self.lease_trouble = True
        return self.lease_until

    def obey(self) -> None:
        """Carry out what the agent wrote into order.json since the last look."""
        try:
            order = read_json(self.path("order.json"))
        except OSError:
            return  # what can't be read now is read at the next look
        if order is None or order == self.order_seen:
            return  # none yet, one that is being written, or none that is new
        self.order_seen = order
        notice = order.get("notice")
        if notice and not self.noticed:
            self.give_notice(notice)
        elif not notice and self.noticed:
            self.noticed, self.notice = False, None
            self.remove("in/notice")
        if order.get("max_runtime_seconds") is not None:
            self.limit(order["max_runtime_seconds"])
        if order.get("stop") and not self.cause and self.main_status is None:  # what has ended by itself is not stopped any more
            self.stop_outcome = order["stop"]["outcome"]
            self.stop_whatever = order["stop"]["whatever"]
            self.stop("stop", order["stop"]["grace_seconds"])

    def limit(self, seconds: float) -> None:
        """End the workload ``seconds`` after it began; 0: when it likes."""
        self.ends_at = self.began + seconds if seconds else None

    def acknowledgement(self) -> tuple[int, ...] | None:
        """What tells one acknowledgement of a checkpoint from another, or None. It never follows a link."""
        folder = self.spec.get("checkpoint_dir")
        try:
            stat = os.lstat(os.path.join(folder, ACKNOWLEDGEMENT)) if folder else None
        except OSError:
            return None
        if stat is None or not S_ISREG(stat.st_mode):
            return None  # a link, a folder: nothing that the agent would take for one either
        return (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)

    def acknowledged(self) -> bool:
        now = self.acknowledgement()
        return self.noticed and now is not None and now != self.notice_seen

    def give_notice(self, notice: dict[str, Any]) -> None:
        """The file, then the signal. How the acknowledgement stood before decides what counts as an answer to it."""
        self.noticed, self.notice = True, notice
        self.notice_seen = self.acknowledgement()
        self.tell("in/notice", notice)
        if self.spec.get("signal_notice", True):
            for pid in self.workload_processes():
                if catches(pid, signal.SIGUSR1):
                    send(pid, signal.SIGUSR1)

    def tell(self, name: str, value: dict[str, Any]) -> None:
        """Write what is good to know but not worth dying for: on a full disk the workload goes on."""
        try:
            write_json(self.path(name), value, 0o640)  # the group of ``in`` is the workload's
        except OSError as problem:
            complain(f"{name}: {problem}")

    def remove(self, name: str) -> None:
        try:
            os.unlink(self.path(name))
        except FileNotFoundError:
            return

    def workload_processes(self) -> list[int]:
        """Pids of the workload itself: not the sandbox's own two processes, whose end would be everyone's."""
        sandboxed = self.spec.get("launcher") == "bubblewrap"
        return [pid for pid, depth, _ in descendants(os.getpid()) if not (sandboxed and depth <= 2)]

    def check_limits(self) -> None:
        now = boottime()
        if not self.cause:
            if self.ends_at is not None and now >= self.ends_at:
                self.stop("time_limit", self.spec["grace_seconds"])
            elif now >= self.lease():
                self.stop("lease_lost", self.spec["grace_seconds"])
        if self.kill_at is not None and now >= self.kill_at:
            self.kill()

    def stop(self, cause: str, grace: float) -> None:
        self.cause = cause
        self.kill_at = boottime() + grace
        self.tell("stopping.json", {"cause": cause})
        for pid in self.workload_processes() or [self.main]:  # a sandbox that is still being made has no workload yet
            send(pid, signal.SIGTERM)
            send(pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.main_status is None or self.leftovers():
            self.killed = self.killed or self.cause != "leftover"
            for pid in self.everyone():
                send(pid, signal.SIGKILL)

    def everyone(self) -> set[int]:
        """Pids of all there is of the workload: below this process, and in its control groups, whoever their parents are."""
        grouped = members(self.spec.get("cgroup_procs", []))
        living = {pid for pid in grouped if (process_stat(pid) or (0, 0, "X", ""))[2] not in "ZX"}
        return living | {pid for pid, _, _ in descendants(os.getpid())}

    def leftovers(self) -> bool:
        """Whether processes of the workload outlive its main process; asks them to go, then makes them."""
        if not self.everyone():
            return False
        if not self.cause:
            self.stop("leftover", LEFTOVER_GRACE_SECONDS)
        return True

    def outcome(self) -> tuple[str, int]:
        """(reason code, exit code in the shell's convention) of a workload that has ended."""
        status = self.main_status or 0
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if self.cause in ("lease_lost", "time_limit"):
            return self.cause, code
        if self.cause == "stop":
            if self.stop_whatever:
                return self.stop_outcome, code
            if self.killed:
                return "killed_at_grace", code
            return ("checkpointed" if self.acknowledged() else self.stop_outcome), code
        if self.acknowledged():
            return "checkpointed", code
        if code == 0:
            return "finished", code
        return ("out_of_memory" if self.ran_out_of_memory(code) else "failed"), code

    def ran_out_of_memory(self, code: int) -> bool:
        """Its own group's count tells it for sure, also where a child was killed and the workload only failed of it. Without a
        group the host's count must have grown and the workload itself been killed."""
        own = out_of_memory_kills(self.spec["memory_events"]) if self.spec.get("memory_events") else None
        if own is not None:
            return own > 0
        after = out_of_memory_kills()
        counted = self.oom_before is not None and after is not None and after > self.oom_before
        return code == 128 + signal.SIGKILL and counted

    # the operator's hooks

    def prolog(self, identity: dict[str, Any]) -> bool:
        """Run it where there is one. False when the workload is not to be started; its end is told then."""
        if not self.hooks.get("prolog"):
            return True
        write_json(self.path("shim.json"), {**identity, "step": "running the operator's prolog"})
        # With the run's mark, by which the agent ends it where this process is killed.
        hook = Hook(self, "prolog", {"GPUPOOL_MARK": self.spec["env"]["GPUPOOL_MARK"]})
        why = hook.run(self.called_off)
        if not why:
            return True
        self.prolog_failed = not self.cause
        self.finish_unbegun(why)
        return False

    def finish_unbegun(self, why: str) -> None:
        self.finish({"stop": self.stop_outcome, "lease_lost": "lease_lost"}.get(self.cause, "start_failed"), None, why)

    def called_off(self) -> bool:
        """Whether the workload is to be stopped before it has begun."""
        stop = (read_json(self.path("order.json")) or {}).get("stop")
        if stop:
            self.cause, self.stop_outcome = "stop", stop["outcome"]
        elif boottime() >= self.lease():
            self.cause = "lease_lost"
        return bool(self.cause)

    def epilog(self, ended: dict[str, Any]) -> str:
        """Run it where there is one, unless it was begun before: by this process or one that took its place. What went wrong."""
        if not self.hooks.get("epilog"):
            return ""
        self.tell("stopping.json", {"cause": self.cause or "epilog"})
        code = "" if ended["exit_code"] is None else str(ended["exit_code"])
        hook = Hook(self, "epilog", {"GPUPOOL_OUTCOME": ended["outcome"], "GPUPOOL_EXIT_CODE": code})
        return hook.run(lambda: False, ended)

    def only_epilog(self) -> None:
        """In the place of a shim that was killed: its agent has seen to it that nothing of the workload is left."""
        self.catch_signals()
        why = self.epilog({"outcome": "host_lost", "exit_code": None, "ended_at": time.time()})
        if why:
            complain(f"epilog: {why}")

    def finish(self, outcome: str, code: int | None, error: str) -> None:
        ended = {"outcome": outcome, "exit_code": code, "ended_at": time.time(), "error": error, "killed": self.killed}
        if self.prolog_failed:
            ended["prolog_failed"] = True
        trouble = self.epilog(ended)
        ended["error"] = error or trouble
        while True:
            try:
                write_json(self.path("exit.json"), ended)
                return
            except OSError as problem:
                if problem.errno != errno.ENOSPC:
                    raise
                if self.end_in_its_room(ended):
                    return
                time.sleep(TICK_SECONDS)  # a full disk: the end is told as soon as there is room

    def end_in_its_room(self, ended: dict[str, Any]) -> bool:
        """Write how it ended over the file that was made for it at the start, which takes no room on the disk."""
        room = self.path("exit.room")
        try:
            with open(room, "r+") as file:
                size = os.fstat(file.fileno()).st_size
                file.write(json.dumps({**ended, "error": ended["error"][: size // 8]}).ljust(size))
                file.flush()
                os.fsync(file.fileno())
            os.replace(room, self.path("exit.json"))
        except OSError as problem:
            complain(f"exit.json: {problem}")
            return False
        return True


def leave_parent() -> None:
    """A session of its own and no parent that waits: the end of the agent does not reach it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def main(run_dir: str, part: str = "") -> None:
    leave_parent()
    shim = Shim(run_dir)
    if part == "epilog":
        shim.only_epilog()
    else:
        shim.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
