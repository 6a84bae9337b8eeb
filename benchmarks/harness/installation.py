"""Run a whole installation for fault injection: services and agents, as `./run up` and `./run demo` start
them.

Each agent reaches the edge through its own small TCP proxy (a gate). As root each host has its own network
namespace, connected by a veth pair, so that cutting off a host is like pulling its cable. Otherwise its gate
stops passing bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.protocol import SLOTS_PER_GPU
from tools.agents import agent_command
from tools.service_environment import agent_environment
from tools.supervisor import Service

ROOT = Path(__file__).resolve().parents[2]
MODEL = "H100-80GB"
GPUS = 2  # per host
LEASE_SECONDS = 5
GRACE_SECONDS = 2
NOTICE_SECONDS = 2
SERVICE_SECONDS = 15  # longest start of a service
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SMALL_DISK = "160m"  # disk of the first host, as root
DATABASE_DISK = "900m"


class ConditionTimeout(Exception):
    """Raised when an expected condition does not become true in time."""


def wait_until(condition: Callable[[], Any], seconds: float, description: str, every: float = 0.05) -> float:
    """Wait for a condition and return the seconds that it took. Raises ConditionTimeout."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise ConditionTimeout(f"{description}: not within {seconds:.0f} s")
        time.sleep(every)
    return time.monotonic() - began


class EdgeProxies:
    """One TCP proxy (gate) per host, all in one thread. A closed gate passes no bytes on.

    While ``rng`` is set, whole WebSocket frames are dropped, duplicated, delayed or reordered in both
    directions.
    """

    def __init__(self, edge_port: int) -> None:
        self.edge_port = edge_port
        self.rng: random.Random | None = None
        self.frames = 0  # passed while rng was set
        self.disturbed = 0  # number of disturbed frames among them
        self._open: dict[str, asyncio.Event] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="gates", daemon=True).start()

    def make(self, host: str, address: str) -> int:
        """Start a gate that listens on ``address`` and return its port."""
        return asyncio.run_coroutine_threadsafe(self._make(host, address), self._loop).result(10)

    def set(self, host: str, is_open: bool) -> None:
        """Open or close a gate."""
        event = self._open[host]
        self._loop.call_soon_threadsafe(event.set if is_open else event.clear)

    async def _make(self, host: str, address: str) -> int:
        event = self._open[host] = asyncio.Event()
        event.set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                await self._serve(event, reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, address, 0)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(
        self, event: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await event.wait()
        down_reader, down_writer = await asyncio.open_connection("127.0.0.1", self.edge_port)
        # The edge accepts only its own name as Host, as behind any proxy.
        gate_host, edge_host = (
            "Host: {}:{}".format(*writer.get_extra_info("sockname")),
            f"Host: 127.0.0.1:{self.edge_port}",
        )
        up = asyncio.create_task(
            self._pass_on(event, reader, down_writer, gate_host.encode(), edge_host.encode())
        )
        down = asyncio.create_task(self._pass_on(event, down_reader, writer, b"", b""))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        finally:
            down_writer.close()

    async def _pass_on(
        self,
        event: asyncio.Event,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gate_host: bytes,
        edge_host: bytes,
    ) -> None:
        while True:
            # Head of a request or response; its body or WebSocket frames follow.
            head = await reader.readuntil(b"\r\n\r\n")
            lowered = head.lower()
            size = int(lowered.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            body = await reader.readexactly(size)
            await event.wait()
            writer.write((head.replace(gate_host, edge_host) if gate_host else head) + body)
            await writer.drain()
            if b"upgrade: websocket" in lowered:
                await self._pass_frames(event, reader, writer)

    async def _pass_frames(
        self, event: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        delayed: list[bytes] = []
        while True:
            frame, is_text = await read_frame(reader)
            await event.wait()
            for output_frame in (
                self._disturbed(frame, delayed) if is_text and self.rng else [*delayed, frame]
            ):
                writer.write(output_frame)
            if not self.rng:
                delayed.clear()
            await writer.drain()

    def _disturbed(self, frame: bytes, delayed: list[bytes]) -> list[bytes]:
        """Return the frames to send on, given a frame and the delayed frames; ``delayed`` is updated."""
        assert self.rng is not None
        self.frames += 1
        draw = self.rng.random()
        self.disturbed += draw < 0.5
        if draw < 0.15:
            return []
        if draw < 0.3:
            return [frame, frame]
        if draw < 0.5:
            delayed.append(frame)
            return []
        released, delayed[:] = [*delayed], []
        self.rng.shuffle(released)
        return [frame, *released]


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Return one WebSocket frame as it is on the wire, and True if it is a whole text message."""
    head = await reader.readexactly(2)
    size = head[1] & 127
    more = await reader.readexactly({126: 2, 127: 8}.get(size, 0))
    if more:
        size = int.from_bytes(more, "big")
    mask = await reader.readexactly(4 if head[1] & 128 else 0)
    return head + more + mask + await reader.readexactly(size), head[0] == 0x81


@dataclass
class LocalHost:
    """A host: its agent, and the means to cut it off."""

    name: str
    number: int
    token: str
    state: Path
    address: str = "127.0.0.1"  # address of its gate
    namespace: str = ""
    edge: str = ""
    service: Any = None
    cut: bool = field(default=False)
    command: list[str] = field(default_factory=list)  # of its agent, without namespace wrapper
    # True: it reads its boot id from a bind-mounted file. Bubblewrap does not run with mounts over /proc.
    reboots: bool = False

    @property
    def boot(self) -> Path:
        """Return the path of the file that replaces the boot id, if this host can reboot."""
        return self.state.parent / f"{self.name}.boot"

    def inside(self, command: list[str]) -> list[str]:
        """Return the command wrapped to run on this host."""
        if not self.namespace:
            return command
        if not self.reboots:
            return ["ip", "netns", "exec", self.namespace, *command]
        bind = f'mount --bind {self.boot} {BOOT_ID} && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", bind, "sh", *command]

    @property
    def pid(self) -> int:
        return int(self.service.process.pid)


class Installation:
    """The installation: ``hosts`` hosts of two simulated GPUs each.

    Leases are ``lease_seconds`` long; notice and grace are 2 s.
    """

    def __init__(
        self, folder: Path, hosts: int = 5, launcher: str = "auto", lease_seconds: int = LEASE_SECONDS
    ) -> None:
        self.folder = folder
        self.lease_seconds = lease_seconds
        self.port = self._free_pair()
        self.url = f"http://127.0.0.1:{self.port}"
        self.launcher = launcher
        self.hosts = [
            LocalHost(f"host-{n}", n, "", folder / "agents" / f"host-{n}") for n in range(1, hosts + 1)
        ]
        self.hosts[-1].reboots = True
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.gates = EdgeProxies(self.port + 1)
        self.clocks = ShiftedClocks(folder)
        self.environment: dict[str, str] = {}
        self.token = ""
        self.messages: Any = None  # light hosts, while their fault runs
        self.notebooks: list[str] = []  # notebooks that live through the rounds of one fault
        self._keeping = threading.Event()
        self._keeper: threading.Thread | None = None
        self._lock = threading.Lock()

    def _free_pair(self) -> int:
        for port in range(20_000 + os.getpid() % 4_000 * 2, 31_000, 2):
            with socket.socket() as first, socket.socket() as second:
                try:
                    first.bind(("127.0.0.1", port))
                    second.bind(("127.0.0.1", port + 1))
                except OSError:
                    continue
                return port
        raise ConditionTimeout("two free consecutive ports were not found")

    # -- starting and stopping --------------------------------------------------------------------

    def start(self) -> None:
        """Start everything and wait until every host is alive."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o711)
        site = self.folder / "site"
        site.mkdir(mode=0o711, exist_ok=True)
        if os.geteuid() == 0 and shutil.which("mount"):
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DATABASE_DISK},mode=711", "tmpfs", str(site)]
            subprocess.run(mount, capture_output=True)
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
        settings = {"GPUPOOL_LEASE_SECONDS": str(self.lease_seconds), "GPUPOOL_RECORDING_HOURS": "0"}
        with (self.folder / "up.out").open("wb") as out:
            self.supervisor = subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "run"),
                    "up",
                    "--state",
                    str(self.folder / "site"),
                    "--port",
                    str(self.port),
                ],
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**kept, **self.clocks.environment("servers"), **settings},
            )
        wait_until(lambda: self._said("is ready"), 120, "the installation is ready")
        self.environment = json.loads((self.folder / "site" / "environment.json").read_text())
        for name, value in self.environment.items():
            os.environ[name] = value
        os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
        import django

        django.setup()
        self._organise()
        self._keeping.set()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._keeper.start()
        wait_until(lambda: self.alive() == len(self.hosts), 60, "every host is alive")

    def _said(self, text: str) -> bool:
        assert self.supervisor is not None
        output = (self.folder / "up.out").read_text(errors="replace")
        if self.supervisor.poll() is not None:
            raise ConditionTimeout(f"the installation ended:\n{output[-2000:]}")
        return text in output

    def _organise(self) -> None:
        """Create a team with a guarantee of all GPUs, one member, and the hosts."""
        from datetime import UTC, datetime

        from portal.models import Membership, Organisation, User
        from portal.services.fleet import hosts
        from portal.services.people import api_tokens
        from scheduler.models import Leader, Pool, Project, Quota, Team

        now = datetime.now(UTC)
        Organisation.objects.get_or_create(id=1, defaults={"name": "Faults"})
        Leader.objects.get_or_create(id=1)
        team = Team.objects.create(slug="faults", name="Faults", tag="F", created_at=now)
        Project.objects.create(team=team, slug="faults", name="Faults", created_at=now)
        member, operator = (
            User.objects.create(username=n, operator=n == "operator") for n in ("member", "operator")
        )
        Membership.objects.create(user=member, team=team, created_at=now)
        pool = Pool.objects.create(
            slug="faults",
            name="Faults",
            kind="dynamic",
            created_at=now,
            notice_seconds=NOTICE_SECONDS,
            grace_seconds=GRACE_SECONDS,
            minimum_runtime_seconds=0,
        )
        slots = len(self.hosts) * GPUS * SLOTS_PER_GPU
        Quota.objects.create(team=team, pool=pool, model=MODEL, guaranteed_slots=slots, updated_at=now)
        _, self.token = api_tokens.create_token(actor=member, name="faults", now=now)
        for host in self.hosts:
            _, host.token = hosts.add_host(
                actor=operator, pool=pool, name=host.name, now=now, labels={"name": host.name}
            )

    def _keep(self) -> None:
        """Start the agents and restart them when they end, as `./run` does. They die with this thread."""
        for host in self.hosts:
            self._make_host(host)
        while self._keeping.is_set():
            for host in self.hosts:
                with self._lock:
                    if host.service is not None:
                        host.service.check(time.monotonic())
            time.sleep(0.05)
        for host in self.hosts:
            if host.service is not None:
                host.service.stop()
        for host in self.hosts:
            if host.service is not None:
                host.service.wait_stopped()

    def _make_host(self, host: LocalHost) -> None:
        if os.geteuid() == 0 and shutil.which("ip"):
            self._lay_cable(host)
        host.edge = f"http://{host.address}:{self.gates.make(host.name, host.address)}"
        agent = {"name": host.name, "join_token": host.token, "simulate": f"{GPUS}x{MODEL}"}
        command = agent_command(self.folder, host.state, host.edge, agent)
        command[command.index("--on-exit") + 1] = "keep"
        command += ["--launcher", self.launcher]
        host.command = command
        new_boot(host)
        if host.namespace and host.number == 1:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK},mode=755", "tmpfs", str(host.state)],
                check=True,
            )
        host.service = Service(
            f"agent-{host.name}",
            host.inside(command),
            env=self.agent_environment(host),
            log=self.folder / f"{host.name}.log",
            keeps_children=True,
            stop_seconds=10,
        )
        host.service.start()

    def agent_environment(self, host: LocalHost) -> dict[str, str]:
        """Return the environment of a host's agent; its clock can be set if the clock library was built."""
        return {**agent_environment(), **self.clocks.environment(host.name)}

    def _lay_cable(self, host: LocalHost) -> None:
        """Create a network namespace for the host, connected to this one by a veth pair."""
        name = f"gpf{os.getpid()}-{host.number}"
        outside, inside = (
            f"gf{os.getpid() % 100_000}o{host.number}",
            f"gf{os.getpid() % 100_000}i{host.number}",
        )
        net = f"10.{200 + os.getpid() // 250 % 50}.{os.getpid() % 250}"
        first = 4 * host.number
        for command in (
            f"netns add {name}",
            f"link add {outside} type veth peer name {inside} netns {name}",
            f"address add {net}.{first + 1}/30 dev {outside}",
            f"link set {outside} up",
            f"-n {name} address add {net}.{first + 2}/30 dev {inside}",
            f"-n {name} link set {inside} up",
            f"-n {name} link set lo up",
        ):
            result = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
            if result.returncode:
                subprocess.run(["ip", "netns", "delete", name], capture_output=True)
                return  # no permission to create networks: the gate is used instead
        host.namespace, host.address = name, f"{net}.{first + 1}"

    def stop(self) -> None:
        """End all processes and remove all mounts and namespaces of the installation."""
        for host in self.hosts:
            if host.cut:
                self.join_again(host)
        self._keeping.clear()
        if self._keeper is not None:
            self._keeper.join(30)
        kill_marked_processes(self.folder)
        if self.supervisor is not None and self.supervisor.poll() is None:
            self.supervisor.send_signal(signal.SIGINT)
            self.supervisor.wait(90)
        if os.path.ismount(self.folder / "site"):
            subprocess.run(["umount", "-l", str(self.folder / "site")], capture_output=True)
        for host in self.hosts:
            if host.namespace:
                subprocess.run(["umount", "-l", str(host.state)], capture_output=True)
                subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True)

    # -- actions ----------------------------------------------------------------------------------

    def pid(self, name: str) -> int:
        """Return the pid of a service of `./run up`; wait until it runs, because it may be restarting."""
        wait_until(lambda: self._pid(name), SERVICE_SECONDS, f"{name} runs")
        return self._pid(name)

    def _pid(self, name: str) -> int:
        """Return the pid of a service; 0 if it does not run."""
        entries = json.loads((self.folder / "site" / "services.json").read_text())["services"]
        return int(entries[name]["pid"] or 0)

    def cut_off(self, host: LocalHost) -> None:
        """Cut the host's network: bytes in transit are lost, and no connection is closed."""
        host.cut = True
        if host.namespace:
            self._cable(host, "down")
        else:
            self.gates.set(host.name, False)

    def join_again(self, host: LocalHost) -> None:
        """Restore the host's network."""
        host.cut = False
        if host.namespace:
            self._cable(host, "up")
        else:
            self.gates.set(host.name, True)

    def _cable(self, host: LocalHost, state: str) -> None:
        name = f"gf{os.getpid() % 100_000}o{host.number}"
        subprocess.run(["ip", "link", "set", name, state], check=True, capture_output=True)

    @contextlib.contextmanager
    def agent_down(self, host: LocalHost) -> Iterator[None]:
        """Kill the host's agent in this context and start it again afterwards; its workloads keep running."""
        with self._lock:
            service, host.service = host.service, None
            os.kill(service.process.pid, signal.SIGKILL)
            service.process.wait()
        try:
            yield
        finally:
            service.start()
            with self._lock:
                host.service = service

    # -- state ------------------------------------------------------------------------------------

    def alive(self) -> int:
        """Return the number of alive hosts."""
        from scheduler.models import Host

        names = [host.name for host in self.hosts]
        return int(rows(lambda: Host.objects.filter(lease_state="alive", name__in=names).count()))

    def ask(self, method: str, path: str, body: Any = None, seconds: float = 5.0) -> Any:
        """Send a request of the member to the API and return the answer. Raises OSError if it does not
        answer.
        """
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.loads(answer.read())

    @property
    def home(self) -> Path:
        return self.folder / "homes" / "member"


def new_boot(host: LocalHost) -> None:
    """Give the host a new boot id, as after a reboot."""
    host.boot.write_text(f"{uuid.uuid4()}\n")


class ShiftedClocks:
    """Wall clocks that can be set, one for the servers and one for each host.

    A small library loaded before the C library (LD_PRELOAD) adds an offset from a file to the wall clock
    only. (libfaketime does the same, but is not installed everywhere.)
    """

    SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
static int (*real)(clockid_t, struct timespec *);
__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("SHIFTED_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    real = dlsym(RTLD_NEXT, "clock_gettime");
    if (file < 0) return;
    void *page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
    close(file);
}
int clock_gettime(clockid_t clock, struct timespec *at) {
    int done = real(clock, at);
    if (!done && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset;
    return done;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void) zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clocks"
        self.library = self.folder / "clock.so"
        self.folder.mkdir(parents=True, exist_ok=True)
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler:
            (self.folder / "clock.c").write_text(self.SOURCE)
            command = [
                compiler,
                "-shared",
                "-fPIC",
                "-O1",
                "-o",
                str(self.library),
                str(self.folder / "clock.c"),
                "-ldl",
            ]
            subprocess.run(command, check=True, capture_output=True)

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of programs with the clock ``name``; empty without a compiler."""
        if not self.library.exists():
            return {}
        self.set(name, 0)
        return {"LD_PRELOAD": str(self.library), "SHIFTED_CLOCK": str(self.folder / name)}

    def set(self, name: str, seconds: int) -> None:
        """Set the offset in seconds of every program with this clock."""
        if not self.library.exists():
            raise ConditionTimeout("a clock is set: needs a C compiler")
        file = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, seconds.to_bytes(8, sys.byteorder, signed=True), 0)
        finally:
            os.close(file)


def rows(read: Callable[[], Any], seconds: float = 40) -> Any:
    """Return the result of a query; retry while the database is unavailable."""
    from django.db import InterfaceError, OperationalError, connection

    ends = time.monotonic() + seconds
    while True:
        try:
            return read()
        except (OperationalError, InterfaceError):
            connection.close()
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)


def processes_of_runs(folder: Path, run: str = "") -> dict[int, str]:
    """Return the runs of workload processes below ``folder`` by pid; only those of ``run`` if given."""
    run_by_pid: dict[int, str] = {}
    agents_folder = f"{folder}/agents/".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
            command = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        name = next((v[12:].decode() for v in environment.split(b"\0") if v.startswith(b"GPUPOOL_RUN=")), "")
        if name and (agents_folder in command or _of_site(int(entry), folder)) and run in ("", name):
            run_by_pid[int(entry)] = name
    return run_by_pid


def _of_site(pid: int, folder: Path) -> bool:
    """Return True if a sandboxed process descends from a shim below ``folder``."""
    for _ in range(8):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            command = Path(f"/proc/{parent}/cmdline").read_bytes()
        except (OSError, ValueError):
            return False
        if f"{folder}/agents/".encode() in command:
            return True
        if parent <= 1:
            return False
        pid = parent
    return False


def shims(folder: Path) -> dict[str, int]:
    """Return the pid of each living shim by run."""
    pid_by_run: dict[str, int] = {}
    for path in folder.glob("agents/*/runs/*/shim.json"):
        try:
            shim = json.loads(path.read_text())
            fields = Path(f"/proc/{shim['pid']}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(fields[19]) == shim["start_ticks"] and fields[0] not in "ZX":
            pid_by_run[path.parent.name] = int(shim["pid"])
    return pid_by_run


def kill_marked_processes(folder: Path) -> None:
    """Kill every shim and workload below ``folder``."""
    for pid in [*processes_of_runs(folder), *shims(folder).values()]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
