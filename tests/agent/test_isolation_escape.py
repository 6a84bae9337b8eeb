"""Test known ways to escape from the sandbox, with real processes.

Each test runs as the agent's user and, if the tests run as root, also as a team's own user. Every test first
makes sure that the target of the attempt exists, because otherwise it would prove nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host import processes
from agent.isolation.bubblewrap import BubblewrapLauncher
from agent.isolation.launcher_choice import abstract_socket_note, shim_entry_spec, socket_family_note
from agent.isolation.launchers import PlainLauncher, SandboxRequest
from agent.shim import socket_filter, workload_entry
from tests.agent.command_lines import command_line
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge
from tests.agent.test_isolation import output

pytestmark = pytest.mark.sandbox
AS_TEAM = {"team_id": "1.1700000000", "team_user": 70_001}
AS_AGENT: dict[str, object] = {}
# The short part runs each escape as one user.
USERS = (
    [
        pytest.param(AS_TEAM, id="as the team's user"),
        pytest.param(AS_AGENT, id="as the agent's user", marks=pytest.mark.long),
    ]
    if os.geteuid() == 0
    else [pytest.param(AS_AGENT, id="as the agent's user")]
)


@pytest.fixture
async def agent(make_agent: MakeAgent) -> AgentProcess:
    return await make_agent(launcher="bubblewrap")


@pytest.mark.parametrize("user_fields", USERS)
async def test_only_harmless_devices_can_be_opened_and_no_device_can_be_created(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    disk = next((name for name in ("vda", "sda", "nvme0n1") if Path(f"/dev/{name}").exists()), "vda")
    kinds = {
        "kmsg": "c 1 11",
        "mem": "c 1 1",
        "nvidia0": "c 195 0",
        "nvidiactl": "c 195 255",
        "kvm": "c 10 232",
        disk: "b 8 0",
    }
    tries = "\n".join(
        f"head -c1 /dev/{name} >/dev/null 2>&1 && echo open {name}\n"
        "for d in /tmp ~ /dev /dev/shm /run/gpupool/out;"
        f" do mknod $d/{name} {kind} 2>/dev/null && echo made $d/{name}; done"
        for name, kind in kinds.items()
    )
    assert await output(edge, f"{tries}; touch /dev/x 2>/dev/null && echo wrote /dev", **user_fields) == ""


@pytest.mark.parametrize("user_fields", USERS)
async def test_no_kernel_setting_can_be_written(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    files = (
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/drop_caches",
        "/sys/kernel/uevent_helper",
        "/sys/power/state",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/1/oom_score_adj_",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/cgroup.procs",
    )
    tries = "\n".join(f"(echo h > {name}) 2>/dev/null && echo wrote {name}" for name in files)
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    try:
        assert await output(edge, f"{tries}\nls /sys 2>/dev/null", **user_fields) == ""
    finally:
        if Path("/proc/sys/kernel/core_pattern").read_text() != before:
            Path("/proc/sys/kernel/core_pattern").write_text(before)


@pytest.mark.parametrize("user_fields", USERS)
async def test_privileged_system_calls_fail(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    program = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\\n"
        "for name, call in dict(module=lambda: libc.syscall(175, b'x', 1, b''), reboot=lambda:"
        " libc.reboot(0x89abcdef),"
        " chroot=lambda: libc.chroot(b'/tmp'), swapon=lambda: libc.swapon(b'/tmp/x', 0),"
        " pivot=lambda: libc.syscall(155, b'/tmp', b'/tmp'),"
        " bpf=lambda: libc.syscall(321, 0, ctypes.create_string_buffer(128), 128),"
        " handle=lambda: libc.syscall(304, 3, ctypes.create_string_buffer(128), 0),"
        " iopl=lambda: libc.iopl(3)).items():\\n"
        "    if call() >= 0: print('worked', name)\\n"
    )
    found = await output(
        edge,
        (
            f'printf "{program}" > /tmp/p.py; python3 -S /tmp/p.py;'
            " date -s 1999-01-01 >/dev/null 2>&1 && echo worked clock"
        ),
        **user_fields,
    )
    assert "worked" not in found


@pytest.mark.parametrize("user_fields", USERS)
async def test_no_namespace_is_created_or_joined_and_nothing_is_mounted(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    tries = "\n".join(
        f"unshare {kind} true 2>/dev/null && echo made {kind}"
        for kind in (
            "--user",
            "--user --map-root-user",
            "--mount",
            "--net",
            "--pid --fork",
            "--uts",
            "--ipc",
            "--cgroup",
        )
    )
    tries += (
        "\nfor n in mnt pid net user ipc; do nsenter --$n=/proc/1/ns/$n true 2>/dev/null && echo joined $n;"
        " done"
    )
    tries += (
        "\nmount -t proc proc /tmp 2>/dev/null && echo mounted;"
        " mount --bind /etc /tmp 2>/dev/null && echo bound"
    )
    tries += (
        "\nmount -o remount,rw / 2>/dev/null && echo remounted;"
        " umount /etc/passwd 2>/dev/null && echo unmounted"
    )
    assert await output(edge, tries, **user_fields) == ""


@pytest.mark.parametrize("user_fields", USERS)
async def test_processes_outside_the_sandbox_cannot_be_seen_traced_or_signalled(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    assert agent.process is not None
    pids = f"{agent.process.pid} {os.getpid()}"
    tries = (
        f"for p in {pids}; do ls -d /proc/$p 2>/dev/null; kill -0 $p 2>/dev/null && echo signal $p; "
        "cat /proc/$p/environ 2>/dev/null && echo read; done; "
        "ls /proc/1/root/var/lib 2>/dev/null; cat /proc/*/cmdline | tr '\\0' ' ' | grep -c '[a]gent run'"
    )
    assert await output(edge, tries, **user_fields) == "0\n"


@pytest.mark.parametrize("user_fields", USERS)
async def test_setuid_programs_give_no_privileges(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object], tmp_path: Path
) -> None:
    """Start setuid programs of the system (su, mount), and a setuid program in the home."""
    await output(edge, "true", **user_fields)
    home = agent.state / "homes" / "ada"
    (home / "id").write_bytes(Path("/usr/bin/id").read_bytes())
    os.chown(home / "id", 0 if os.geteuid() == 0 else -1, -1)
    (home / "id").chmod(0o6755)
    found = await output(
        edge, "~/id -u; ~/id -ru; grep NoNewPrivs /proc/self/status", generation=2, **user_fields
    )
    numbers = found.split("NoNewPrivs")[0].split()
    assert numbers[0] == numbers[1] == "1000"
    assert found.split()[-1] == "1"


@pytest.mark.parametrize("user_fields", USERS)
async def test_the_locks_the_socket_and_the_folder_of_the_agent_are_unreachable(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    tries = (
        f"ls -a {agent.state} {agent.state}/runs 2>/dev/null; find / -xdev -name identity.json 2>/dev/null; "
        "for f in /proc/*/fd/*; do readlink $f; done | grep -v -e pipe: -e /dev/null -e eventfd -e /proc; "
        "for f in /proc/self/fd/*; do (echo x > $f) 2>/dev/null; done; ls /run/netns /var/run 2>/dev/null"
    )
    unit = agent.units[0]
    assert await output(edge, tries, units=[unit], **user_fields) in ("", "x\n" * 2, "x\n")
    for lock in (agent.state / "locks").iterdir():
        assert lock.read_bytes() == b"", "a workload must not write to a lock file"


# A workload sends file descriptors to another workload of its owner: its own descriptors, and descriptors
# that it can take from any visible process.
TAKE_ALL = """
import array, ctypes, os, socket, sys, time
libc, mine = ctypes.CDLL(None), []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        numbers = [int(each) for each in os.listdir("/proc/%s/fd" % pid)]
        process = os.pidfd_open(int(pid))
    except OSError:
        continue
    taken = [libc.syscall(438, process, number, 0) for number in numbers]  # pidfd_getfd
    mine += [each for each in taken if each >= 0]
names = [os.readlink("/proc/self/fd/%d" % each) for each in mine]
print("sends", len(mine), "locks", sum("GPU-" in name for name in names), flush=True)
other = socket.socket(socket.AF_UNIX)
while other.connect_ex(os.path.expanduser("~/to")) != 0:
    time.sleep(0.05)
for each in mine:
    other.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [each]))])
other.shutdown(socket.SHUT_WR)
print(other.recv(10).decode(), flush=True)
"""
KEEP_ALL = """
import os, socket, time
here = socket.socket(socket.AF_UNIX)
here.bind(os.path.expanduser("~/to"))
here.listen()
other = here.accept()[0]
while other.recvmsg(1, 1000)[0]:
    pass
other.send(b"kept")
time.sleep(300)
"""


@pytest.mark.parametrize("user_fields", USERS)
@pytest.mark.parametrize("launcher", ["bubblewrap", "plain"])
async def test_descriptors_passed_to_another_workload_keep_no_gpu_locked(
    edge: FakeEdge, make_agent: MakeAgent, user_fields: dict[str, object], launcher: str
) -> None:
    if launcher == "plain" and not user_fields:
        pytest.skip(
            "a plain process of the agent's own user can change the agent itself; the host reports this"
        )
    agent = await make_agent(launcher=launcher)
    await edge.want(
        job(f"rm -f ~/to; exec python3 -S -c '{KEEP_ALL}'", units=[agent.units[1]], **user_fields)
    )
    await edge.until_state("run-1", "running")
    found = await output(
        edge, f"python3 -S -c '{TAKE_ALL}'", generation=2, units=[agent.units[0]], **user_fields
    )
    assert found.splitlines()[1:] == ["kept"] and found.split()[2:4] == ["locks", "0"]
    assert await output(edge, "echo next", generation=3, units=[agent.units[0]], **user_fields) == "next\n"
    keeper = edge.seen("run-1")
    assert keeper is not None and keeper.state == "running"


@contextlib.contextmanager
def abstract_socket(name: str) -> Iterator[None]:
    """Run a host service on an abstract socket. Only the network namespace protects such a socket."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        yield


@pytest.mark.parametrize("user_fields", USERS)
async def test_abstract_sockets_of_the_host_are_unreachable(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    name = f"gpupool-host-service-{os.getpid()}"
    program = f"import socket; socket.socket(socket.AF_UNIX).connect('\\\\0{name}')"
    with abstract_socket(name):
        assert (
            subprocess.run(["python3", "-c", program.replace("\\\\", "\\")], capture_output=True).returncode
            == 0
        )
        assert "refused" in await output(edge, f'python3 -S -c "{program}" 2>&1', **user_fields)


needs_scopes = pytest.mark.skipif(
    workload_entry.landlock_version() < workload_entry.SCOPES_SINCE_ABI, reason="needs Landlock of Linux 6.12"
)


@needs_scopes
@pytest.mark.parametrize("user_fields", USERS)
@pytest.mark.parametrize("launcher", ["bubblewrap", "plain"])
async def test_a_run_in_the_hosts_network_reaches_only_its_own_abstract_sockets(
    edge: FakeEdge, make_agent: MakeAgent, user_fields: dict[str, object], launcher: str
) -> None:
    await make_agent("--network", "host", launcher=launcher)
    assert not any("abstract sockets" in note for note in edge.observed[-1].inventory.notes)
    name = f"gpupool-other-service-{os.getpid()}"
    reach = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
    offer = (
        f"import os, socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0{name}-own'); s.listen(); "
        f"p = os.fork(); p or socket.socket(socket.AF_UNIX).connect('\\0{name}-own'); p and os.wait();"
        " p and print('reached own')"
    )
    with abstract_socket(name):
        found = await output(
            edge, f'python3 -S -c "{reach}" 2>&1 && echo reached; python3 -S -c "{offer}" 2>&1', **user_fields
        )
    assert "not permitted" in found and found.splitlines()[-1] == "reached own" and "reached\n" not in found


def test_the_host_reports_if_abstract_sockets_stay_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    program.touch(mode=0o755)
    bubblewrap, open_bubblewrap = (
        BubblewrapLauncher(str(program)),
        BubblewrapLauncher(str(program), network="host"),
    )
    monkeypatch.setattr(workload_entry, "landlock_version", lambda: 5)
    for launcher, network, expected in (
        (bubblewrap, "private", False),
        (open_bubblewrap, "private", True),
        (open_bubblewrap, "host", True),
        (PlainLauncher(), "private", True),
        (open_bubblewrap, "internet", False),
    ):
        assert bool(abstract_socket_note(launcher, network)) is expected, (launcher, network)
        assert shim_entry_spec(launcher, launcher.launch(make_request(tmp_path)))["own_sockets"] is False
    monkeypatch.setattr(workload_entry, "landlock_version", lambda: 6)
    assert (
        abstract_socket_note(open_bubblewrap, "host") == abstract_socket_note(PlainLauncher(), "host") == []
    )
    program.chmod(0o4755)
    assert "can't close them" in abstract_socket_note(open_bubblewrap, "host")[0]


needs_filters = pytest.mark.skipif(
    not socket_filter.supports_seccomp_filters(), reason="needs seccomp, and x86-64 or aarch64"
)
SOCKETS = """
cat > $TMPDIR/sockets.py <<'END'
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
def family(number):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            return socket.socket(number, kind).close() or "made"
        except OSError as error:
            said = errno.errorcode[error.errno]
    return said
def called(result):
    return "made" if result >= 0 else errno.errorcode[ctypes.get_errno()]
print(*(family(number) for number in (1, 2, 10, 16)))
print(*(family(number) for number in (17, 38, 40, 42)))  # packet, kernel ciphers, vsock, modem
pair, ring = (ctypes.c_int * 2)(), ctypes.create_string_buffer(200)
print(called(libc.socketpair(40, 1, 0, pair)), called(libc.syscall(425, 1, ring)))
END
python3 -S $TMPDIR/sockets.py
"""


@needs_filters
@pytest.mark.parametrize("user_fields", USERS)
@pytest.mark.parametrize("launcher", ["bubblewrap", "plain"])
async def test_sockets_that_bypass_network_namespaces_cannot_be_created(
    edge: FakeEdge, make_agent: MakeAgent, user_fields: dict[str, object], launcher: str, tmp_path: Path
) -> None:
    """Check vsock and other families. Vsock reaches the hypervisor from every network namespace."""
    await make_agent(launcher=launcher)
    assert not any("AF_VSOCK" in note for note in edge.observed[-1].inventory.notes)
    here = subprocess.run(
        ["/bin/sh", "-c", SOCKETS],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert here.stdout.count("made") >= 4, here.stderr  # the number of other families depends on the kernel
    assert (await output(edge, SOCKETS, **user_fields)).splitlines() == [
        "made made made made",
        "EAFNOSUPPORT EAFNOSUPPORT EAFNOSUPPORT EAFNOSUPPORT",
        "EAFNOSUPPORT ENOSYS",
    ]


# A 64-bit program can enter the kernel with 32-bit calls (int 0x80) and with x32 call numbers.
OLD_CALLS = """
cat > $TMPDIR/old.py <<'END'
import ctypes, errno, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
place = libc.mmap(None, 4096, 7, 0x22 | 0x40, -1, 0)  # private, of no file, below 4 GiB
def old(number, first, second, third):
    code = bytes([0x53, 0xB8]) + struct.pack("<I", number) + bytes([0xBB]) + struct.pack("<I", first)
    code += bytes([0xB9]) + struct.pack("<I", second) + bytes([0xBA]) + struct.pack("<I", third)
    code += bytes([0xCD, 0x80, 0x5B, 0xC3])
    ctypes.memmove(place, code, len(code))
    got = ctypes.CFUNCTYPE(ctypes.c_int)(place)()
    return "made" if got >= 0 else errno.errorcode[-got]
def asked(family):
    ctypes.memmove(place + 2048, struct.pack("<IIII", family, 1, 0, place + 3072), 16)
    return place + 2048
def new(number):
    return "made" if libc.syscall(0x40000000 + number, 40, 1, 0) >= 0 else errno.errorcode[ctypes.get_errno()]
print(old(359, 1, 1, 0), old(359, 40, 1, 0), old(102, 1, asked(40), 0), old(102, 8, asked(40), 0), new(41))
END
python3 -S $TMPDIR/old.py
"""


@needs_filters
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="has no such ways into the kernel")
async def test_old_system_call_interfaces_cannot_create_such_sockets(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    found = (await output(edge, f"{OLD_CALLS} 2>/dev/null")).split()
    assert found in (
        ["made", *["EAFNOSUPPORT"] * 4],
        [],
    )  # empty output: the kernel lacks these call interfaces and has killed the program


def filter_verdict(architecture: int, number: int, first: int = 0) -> int:
    """Interpret the filter program like the kernel and return its verdict on a call."""
    at, held, steps = 0, 0, socket_filter.socket_family_filter()
    while True:
        code, yes, no, value = (
            steps[at] & 0xFFFF,
            steps[at] >> 16 & 0xFF,
            steps[at] >> 24 & 0xFF,
            steps[at] >> 32,
        )
        at += 1
        if code == socket_filter.BPF_LOAD:
            held = {0: number, 4: architecture, 16: first & 0xFFFFFFFF}[value]
        elif code == socket_filter.BPF_AND:
            held &= value
        elif code == socket_filter.BPF_IF_EQUAL:
            at += yes if held == value else no
        else:
            assert code == socket_filter.BPF_RETURN
            return value


KERNEL_CALLS = """
cat > $TMPDIR/calls.py <<'END'
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def called(number, *arguments):
    result = libc.syscall(number, *arguments)
    return "made" if result >= 0 else errno.errorcode[ctypes.get_errno()]
numbers = {"x86_64": (248, 249, 250, 321, 323, 298), "aarch64": (217, 218, 219, 280, 282, 241)}
print(*(called(number, 0, 0, 0, 0, 0) for number in numbers[os.uname().machine]))
END
python3 -S $TMPDIR/calls.py
"""


@needs_filters
@pytest.mark.parametrize("launcher", ["bubblewrap", "plain"])
async def test_keys_bpf_userfaultfd_and_perf_events_are_not_permitted(
    edge: FakeEdge, make_agent: MakeAgent, launcher: str
) -> None:
    await make_agent(launcher=launcher)
    assert (await output(edge, KERNEL_CALLS)).split() == ["EPERM"] * 6


@needs_filters
@pytest.mark.parametrize("launcher", ["bubblewrap", "plain"])
async def test_a_pool_can_allow_perf_events_and_nothing_else(
    edge: FakeEdge, make_agent: MakeAgent, launcher: str
) -> None:
    """Call perf_event_open with a null pointer. The kernel reads it only if the filter lets the call pass."""
    await make_agent(launcher=launcher)
    *others, perf_event_open = (await output(edge, KERNEL_CALLS, perf_events=True)).split()
    assert others == ["EPERM"] * 5
    assert perf_event_open in ("EFAULT", "EACCES")


@pytest.mark.parametrize(
    ("architecture", "calls"),
    [
        (0xC000003E, (248, 249, 250, 298, 321, 323, 0x400000F8)),
        (0x40000003, (286, 287, 288, 336, 357, 374)),
        (0xC00000B7, (217, 218, 219, 241, 280, 282)),
        (0x40000028, (309, 310, 311, 364, 386, 388)),
    ],
    ids=["x86-64 and x32", "i386", "aarch64", "arm"],
)
def test_the_filter_blocks_the_same_kernel_calls_for_every_architecture(
    architecture: int, calls: tuple[int, ...]
) -> None:
    for call in calls:
        assert filter_verdict(architecture, call) == 0x50000 | 1, call
        assert filter_verdict(architecture, call - 4) in (0x7FFF0000, 0x50000 | 1), call


@pytest.mark.parametrize(
    ("architecture", "calls"),
    [
        (0xC000003E, (41, 53, 0x40000029)),
        (0x40000003, (359, 360)),
        (0xC00000B7, (198, 199)),
        (0x40000028, (281, 288)),
    ],
    ids=["x86-64 and x32", "i386", "aarch64", "arm"],
)
def test_the_filter_closes_the_same_families_for_every_architecture(
    architecture: int, calls: tuple[int, ...]
) -> None:
    allowed, refused, no_such_call = 0x7FFF0000, 0x50000 | 97, 0x50000 | 38
    for call in calls:
        for family in range(64):
            assert filter_verdict(architecture, call, family) == (
                allowed if family in (1, 2, 10, 16) else refused
            ), (
                call,
                family,
            )
    assert filter_verdict(architecture, 425) == no_such_call
    assert filter_verdict(architecture, 3, 40) == filter_verdict(architecture, 64, 40) == allowed
    assert (
        filter_verdict(architecture, 102, 1)
        == filter_verdict(architecture, 102, 8)
        == (refused if architecture == 0x40000003 else allowed)
    )
    assert filter_verdict(architecture, 102, 3) == allowed  # connect
    # This is the number of the PowerPC architecture, which these kernels do not accept.
    assert filter_verdict(0xC0000015, 3) == no_such_call


def test_the_host_reports_if_all_socket_families_stay_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    program.touch(mode=0o755)
    launcher = BubblewrapLauncher(str(program))
    monkeypatch.setattr(socket_filter, "supports_seccomp_filters", lambda: True)
    assert socket_family_note(launcher) == socket_family_note(PlainLauncher()) == []
    assert shim_entry_spec(launcher, launcher.launch(make_request(tmp_path)))["known_families"] is True
    program.chmod(0o4755)
    assert "can't close them" in socket_family_note(launcher)[0]
    assert shim_entry_spec(launcher, launcher.launch(make_request(tmp_path)))["known_families"] is False
    monkeypatch.setattr(socket_filter, "supports_seccomp_filters", lambda: False)
    assert "can't close them" in socket_family_note(PlainLauncher())[0]


def make_request(folder: Path) -> SandboxRequest:
    return SandboxRequest(["true"], "ada", folder, folder, folder, folder, folder, folder)


@pytest.mark.parametrize("user_fields", USERS)
async def test_loader_variables_take_effect_only_inside_the_sandbox(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    """Check which processes obey loader variables. bwrap itself must not obey them.

    bwrap runs outside of the sandbox as the agent's or the team's user. LD_PRELOAD in its environment would
    run the owner's code on the host. The test uses the loader's debug output, which shows each process that
    obeys the environment.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as outside:
        Path(outside).chmod(0o1777)
        loader = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": f"{outside}/loader"}
        subprocess.run(["true"], env=loader, check=True)
        assert [path.unlink() for path in Path(outside).iterdir()], (
            "the loader of this machine does not write debug output"
        )
        await edge.want(job("echo hears $LD_DEBUG", environment=loader, **user_fields))  # type: ignore[arg-type]
        await edge.until_state("run-1", "ended")
        await edge.until(lambda: "hears files" in edge.log("run-1") and "calling init" in edge.log("run-1"))
        assert not list(Path(outside).iterdir())


async def test_command_lines_do_not_expose_the_environment(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job("echo $TOKEN; sleep 300", environment={"TOKEN": "a-token-of-ada"}))
    await edge.until(lambda: edge.log("run-1") == "a-token-of-ada\n")
    tree = processes.descendants(processes.scan(), agent.shim("run-1")["pid"])
    command_lines = [command_line(each.pid) for each in tree]
    assert any(b"--args" in words for words in command_lines) and not any(
        b"a-token-of-ada" in word for words in command_lines for word in words
    )


@pytest.mark.parametrize("wrong", [{"A": "x\0--bind\0/\0/mnt"}, {"A\0--bind": "x"}, {"A=B": "x"}, {"": "x"}])
def test_an_environment_cannot_inject_sandbox_options(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="can't be in an environment"):
        workload_entry.argv_with_environment(["bwrap", "true"], wrong)


@pytest.mark.parametrize("user_fields", USERS)
async def test_a_workload_cannot_read_kernel_keyrings_of_the_host(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    """Try to read keys through the keyrings, which belong to users and sessions and not to namespaces."""
    read = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\\n"
        "for ring in (-1, -2, -3, -4, -5): print(libc.syscall(250, 10, ring, b'user', b'gpupool-escape',"
        " 0))\\n"
    )
    libc = __import__("ctypes").CDLL(None)
    # adds a key to the user keyring of this user
    libc.syscall(248, b"user", b"gpupool-escape", b"hush", 4, -4)
    found = await output(edge, f'printf "{read}" > /tmp/k.py; python3 -S /tmp/k.py', **user_fields)
    assert found.split() == ["-1"] * 5


@pytest.mark.parametrize("user_fields", USERS)
async def test_agent_and_shim_follow_no_links_of_a_workload(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object], tmp_path: Path
) -> None:
    """Create a link at each path that the agent or the shim later writes, reads or removes."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "kept").write_text("kept")
    victim = tmp_path / "victim"
    victim.write_text("kept")
    tries = (
        f"ln -sf {victim} /run/gpupool/out/load; ln -sf {victim} /run/gpupool/out/notebook.sock; "
        f"ln -sf {victim} $GPUPOOL_CHECKPOINT_DIR/.done; ln -s {target} /tmp/link; ln -s {target} ~/link; "
        f"ln -s / ~/root; rm -rf /tmp/* 2>/dev/null; ln -s {target} /tmp/again"
    )
    await output(edge, tries, workload="same", units=[agent.units[0]], **user_fields)
    await output(edge, "echo next", generation=2, workload="same", units=[agent.units[0]], **user_fields)
    assert victim.read_text() == (target / "kept").read_text() == "kept"
    if user_fields:
        assert victim.stat().st_uid == target.stat().st_uid == 0


@pytest.mark.parametrize("user_fields", USERS)
async def test_system_files_cannot_be_hard_linked_into_a_home(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    tries = (
        "ln /etc/passwd ~/stolen 2>/dev/null && echo linked; ln /usr/bin/su ~/su 2>/dev/null && echo linked"
    )
    assert (
        await output(
            edge, f"{tries}; ln /run/gpupool/in/passwd ~/in 2>/dev/null && echo linked", **user_fields
        )
        == ""
    )


@pytest.mark.parametrize("user_fields", USERS)
async def test_files_in_memory_are_limited(
    edge: FakeEdge, agent: AgentProcess, user_fields: dict[str, object]
) -> None:
    """Check that /dev/shm has a size limit and that other folders in memory are read-only."""
    found = await output(
        edge,
        "df --output=size -m /dev/shm | tail -1; for d in / /run /dev /home /run/gpupool /etc /var; do "
        "touch $d/x 2>/dev/null && echo wrote $d; done",
        **user_fields,
    )
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 >> 20
    assert [int(found.split()[0])] == pytest.approx([half], abs=2) and found.count("wrote") == 0


async def test_a_notice_is_not_written_through_a_link_of_a_plain_workload(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path
) -> None:
    """Place a link in the shim's folder, which the workload can write outside a sandbox."""
    agent = await make_agent(launcher="plain")
    victim = tmp_path / "victim"
    victim.write_text("kept")
    folder = agent.state / "runs" / "run-1" / "in"
    await edge.want(
        job(f"ln -s {victim} {folder}/notice.new; ln -s {victim} {folder}/notice; echo linked; sleep 300")
    )
    await edge.until(lambda: "linked" in edge.log("run-1"))
    await edge.change("run-1", verb="notice", code="drained")
    await edge.until(lambda: "notice" in (agent.state / "runs/run-1/order.json").read_text())
    await edge.change("run-1", verb="stop", code="drained")
    await edge.until_state("run-1", "ended")
    assert victim.read_text() == "kept"
