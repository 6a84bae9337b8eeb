"""Forks a workload and prepares its process before exec: user, network, mounts and restrictions."""

from __future__ import annotations

import array
import ctypes
import os
import signal

from agent.shim.libc import CLONE_NEWNET, raise_on_error
from agent.shim.socket_filter import restrict_socket_families

TYPE_CHECKING = False  # not imported from typing, because the import would double this process's memory
if TYPE_CHECKING:
    from typing import Any

# Numbers of the Landlock system calls, equal on all architectures, and their arguments. See landlock(7).
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET = 1
SCOPES_SINCE_ABI = 6  # Landlock ABI of Linux 6.12
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWNS = 0x20000
MFD_NOEXEC_SEAL = 8
OOM_SCORE_FILE = "/proc/self/oom_score_adj"
# The kernel ends processes with a higher value first. Services of the host have 0, the agent has less.
WORKLOAD_OOM_SCORE = 300
MS_BIND, MS_REC, MS_SLAVE, MS_NOSUID, MS_NODEV = 0x1000, 0x4000, 0x80000, 0x2, 0x4
KEYCTL_JOIN_SESSION_KEYRING = 1
# Numbers of the system call keyctl, for which the C library has no function.
KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219}


def fork_workload(spec: dict[str, Any]) -> tuple[int, int, str]:
    """Start the workload with fork and exec.

    Return the pid of the workload, the read end of its output pipe, and an error text. The error text is ''
    if the workload was started.
    """
    pipe, output = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(pipe, False)
    failed, failed_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            _become_workload(spec, output)
        except (OSError, ValueError, TypeError) as problem:
            os.write(failed_write, str(problem).encode()[:4000])
        finally:
            os._exit(127)
    os.close(output)
    os.close(failed_write)
    message = os.read(failed, 4096).decode("utf-8", "replace")
    os.close(failed)
    if message:
        os.waitpid(pid, 0)
    return pid, pipe, message


def _become_workload(spec: dict[str, Any], output: int) -> None:
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
    enter_workload(spec)
    os.chdir(spec.get("cwd") or "/")
    argv, env = spec["argv"], spec["env"]
    if spec.get("launcher") == "bubblewrap":
        argv, _ = argv_with_environment(argv, env)
        env = {"GPUPOOL_MARK": env["GPUPOOL_MARK"]}  # the agent finds the processes of the run by this mark
    os.execvpe(argv[0], argv, env)


def enter_workload(spec: dict[str, Any]) -> None:
    """Apply ``spec`` to the calling process, between fork and exec.

    Raises OSError. After an error the caller must not start the workload.

    - ``cgroup_procs``: the files of control groups into which the process writes its pid.
    - ``network``: the path of the network namespace to enter.
    - ``stage``: the files and folders to mount below ``stage_at``. Only this process and its children see
      them there.
    - ``user``: the uid to switch to permanently; ``group``: its gid, which is the uid if it is absent;
      ``groups``: its supplementary groups, none if it is absent.
    - ``own_sockets``: True to block abstract sockets of processes other than this one and its children.
    - ``known_families``: True to apply the filter of ``agent.shim.socket_filter``.
    - ``perf_events``: True if this filter allows perf_event_open.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    prefer_for_oom_killer()
    for name in spec.get("cgroup_procs", ()):
        with open(name, "w") as file:
            file.write(str(os.getpid()))
    keyctl = KEYCTL_NUMBERS.get(os.uname().machine)
    if keyctl:  # the workload must not have the session keyring of the agent
        libc.syscall(keyctl, KEYCTL_JOIN_SESSION_KEYRING, None)
    if spec.get("network"):
        space = os.open(spec["network"], os.O_RDONLY | os.O_CLOEXEC)
        raise_on_error(libc.setns(space, CLONE_NEWNET), f"network {spec['network']}")
        os.close(space)
    if spec.get("stage"):
        mount_stage(libc, spec["stage_at"], spec["stage"])
    user = spec.get("user")
    if user is not None:
        become_user(user, spec.get("group"), spec.get("groups"))
    own_sockets, known_families = spec.get("own_sockets"), spec.get("known_families")
    if user is not None or spec.get("launcher") == "plain" or own_sockets or known_families:
        raise_on_error(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    if own_sockets:
        restrict_abstract_sockets(libc)
    if known_families:
        restrict_socket_families(libc, perf_events=bool(spec.get("perf_events")))


def become_user(user: int, group: int | None, groups: list[int] | None) -> None:
    """Switch this process permanently to a user. A ``group`` of None means the number of the user."""
    group = user if group is None else group
    os.setgroups(groups or [])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def prefer_for_oom_killer() -> None:
    """Let the kernel end this process and its children before the agent and the services of the host.

    The process inherits the protection of the agent. Raises OSError if it can't give up this protection.
    """
    with open(OOM_SCORE_FILE) as file:
        score = int(file.read())
    if score < WORKLOAD_OOM_SCORE:
        try:
            with open(OOM_SCORE_FILE, "w") as file:
                file.write(str(WORKLOAD_OOM_SCORE))
        except OSError:
            if score < 0:
                raise


def argv_with_environment(argv: list[str], env: dict[str, str]) -> tuple[list[str], int]:
    """Return an argv for bwrap that passes ``env`` to the workload, and the descriptor from which bwrap reads
    it.

    bwrap itself runs outside the sandbox. It must not get the environment ``env``, because ``env`` may
    contain LD_PRELOAD. Command-line arguments are no alternative, because every user of the host can read
    them. Raises ValueError for an invalid name or value.
    """
    words: list[bytes] = []
    for name, value in env.items():
        # bwrap would take the text after a NUL as a new option.
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"{name!r} can't be in an environment")
        words += [b"--setenv", os.fsencode(name), os.fsencode(value)]
    try:
        descriptor = os.memfd_create("environment", MFD_NOEXEC_SEAL)  # some hosts require this flag
    except OSError:  # Linux before 6.3
        descriptor = os.memfd_create("environment", 0)
    with open(os.dup(descriptor), "wb") as file:
        file.write(b"".join(word + b"\0" for word in words))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return [argv[0], "--args", str(descriptor), *argv[1:]], descriptor


def landlock_version() -> int:
    """Return the Landlock ABI version of the kernel; 0 without Landlock."""
    version = ctypes.CDLL(None).syscall(
        LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_CREATE_RULESET_VERSION
    )
    return max(0, int(version))


def restrict_abstract_sockets(libc: ctypes.CDLL) -> None:
    """Block connections of this process and its children to abstract unix sockets of other processes.

    Abstract sockets have no file permissions. A workload in the network of the host could otherwise reach
    even the sockets of root.
    """
    # The fields of struct landlock_ruleset_attr: handled_access_fs, handled_access_net, scoped. The two zeros
    # mean that access to files and to the network is not restricted.
    attributes = array.array("Q", [0, 0, LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET])
    address, size = attributes.buffer_info()
    rules = libc.syscall(
        LANDLOCK_CREATE_RULESET, ctypes.c_void_p(address), ctypes.c_size_t(size * attributes.itemsize), 0
    )
    raise_on_error(0 if rules >= 0 else rules, "abstract sockets")
    raise_on_error(libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0), "abstract sockets")
    os.close(rules)


def mount_stage(libc: ctypes.CDLL, place: str, mounts: list[list[str]]) -> None:
    """Mount each path at its target below ``place``, in a new mount namespace. The host does not see them."""
    raise_on_error(libc.unshare(CLONE_NEWNS), "mount name space")
    raise_on_error(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "mount name space")
    # Open the sources before a mount hides them.
    sources = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path, _ in mounts]
    flags = MS_NOSUID | MS_NODEV
    raise_on_error(libc.mount(b"gpupool", place.encode(), b"tmpfs", flags, b"mode=0755,size=1m"), place)
    for source, (_, target) in zip(sources, mounts, strict=True):
        if os.path.isdir(f"/proc/self/fd/{source}"):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
        path = f"/proc/self/fd/{source}"
        raise_on_error(libc.mount(path.encode(), target.encode(), None, MS_BIND | MS_REC, None), target)
        os.close(source)
