"""Run a whole installation for fault injection: the services of `./run up`, and agents as in `./run demo`.

Each agent reaches the edge through its own small TCP proxy (a "gate"). If the benchmark runs as root, each
host also has its own network namespace, connected by a veth pair. Such a host is cut off as if its cable were
pulled. Without root, a host is cut off by closing its gate, which then forwards no bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.protocol import SLOTS_PER_GPU
from benchmarks.harness.conditions import ConditionTimeout, rows, wait_until
from benchmarks.harness.edge_proxies import EdgeProxies
from benchmarks.harness.run_processes import kill_marked_processes
from benchmarks.harness.shifted_clocks import ShiftedClocks
from tools.processes import process_start
from tools.service_environment import agent_environment
from tools.site.agents import agent_command
from tools.site.supervisor import Service

ROOT = Path(__file__).resolve().parents[2]
MODEL = "H100-80GB"
GPUS = 2  # GPUs of each host
LEASE_SECONDS = 5
GRACE_SECONDS = 2
NOTICE_SECONDS = 2
SERVICE_SECONDS = 15  # longest time in which a service starts
START_SECONDS = 300  # longest time in which all services start on a busy machine
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SMALL_DISK = "160m"  # size of the first host's own disk, which exists only if the benchmark runs as root
DATABASE_DISK = "900m"


@dataclass
class LocalHost:
    """A simulated host of this machine: its agent, and the means to cut it off."""

    name: str
    number: int
    token: str
    state: Path
    address: str = "127.0.0.1"  # address of its gate
    namespace: str = ""
    edge: str = ""
    service: Any = None
    cut: bool = field(default=False)
    command: list[str] = field(default_factory=list)  # starts its agent, without the wrapping of ``inside``
    # True if the host can reboot. The agent of such a host reads the boot id from a bind-mounted file. Only
    # one host can reboot, because bubblewrap cannot run with this mount over /proc.
    reboots: bool = False

    @property
    def boot(self) -> Path:
        """Return the path of the file from which the agent reads its boot id if this host can reboot."""
        return self.state.parent / f"{self.name}.boot"

    def inside(self, command: list[str]) -> list[str]:
        """Return the command, wrapped so that it runs in this host's network namespace."""
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
    """An installation with ``hosts`` hosts of two simulated GPUs each.

    Leases last ``lease_seconds``. Notice and grace are 2 s each.
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
        self.messages: Any = None  # the hosts of ``message_faults``, while this fault runs
        self.notebooks: list[str] = []  # ids of notebooks that run during all rounds of a fault
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
        """Start all services and agents, and wait until every host is alive."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o711)
        site = self.folder / "site"
        site.mkdir(mode=0o711, exist_ok=True)
        if os.geteuid() == 0 and shutil.which("mount"):
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DATABASE_DISK},mode=711", "tmpfs", str(site)]
            subprocess.run(mount, capture_output=True)
        self.start_services()
        for name, value in self.environment.items():
            os.environ[name] = value
        os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
        import django

        django.setup()
        self._organise()
        self._keeping.set()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._keeper.start()
        wait_until(lambda: self.alive() == len(self.hosts), START_SECONDS, "every host is alive")

    def start_services(self) -> None:
        """Start the services with `./run up`, and wait until they are ready."""
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
        wait_until(lambda: self._said("is ready"), START_SECONDS, "the installation is ready")
        self.environment = json.loads((self.folder / "site" / "environment.json").read_text())

    def lose_services(self) -> None:
        """Kill all services at once and remove their state, as if their machine were lost.

        The agents and their workloads continue.
        """
        assert self.supervisor is not None
        state = self.folder / "site"
        services = json.loads((state / "services.json").read_text())["services"]
        running = [(entry["pid"], entry["began"]) for entry in services.values() if entry["pid"]]
        self.supervisor.kill()
        self.supervisor.wait()
        for pid, began in running:
            with contextlib.suppress(ProcessLookupError):
                if process_start(pid) == began:
                    os.kill(pid, signal.SIGKILL)
        for pid, began in running:
            wait_until(
                lambda pid=pid, began=began: process_start(pid) != began,  # type: ignore[misc]
                SERVICE_SECONDS,
                "all services have ended",
            )
        if os.path.ismount(state):
            subprocess.run(["umount", "-l", str(state)], check=True, capture_output=True)
        shutil.rmtree(state, ignore_errors=True)

    def _said(self, text: str) -> bool:
        assert self.supervisor is not None
        output = (self.folder / "up.out").read_text(errors="replace")
        if self.supervisor.poll() is not None:
            raise ConditionTimeout(f"the installation ended:\n{output[-2000:]}")
        return text in output

    def _organise(self) -> None:
        """Create the hosts, and a team with one member and a guarantee of all GPUs."""
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
        """Start the agents, restart them when they end, and stop them when the installation stops.

        The kernel ends an agent when the thread that started it ends. So this thread must run as long as the
        agents.
        """
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
        host.edge = self.edge_of(host)
        if host.namespace and host.number == 1:
            host.state.mkdir(mode=0o755, parents=True, exist_ok=True)
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK},mode=755", "tmpfs", str(host.state)],
                check=True,
            )
        agent = {"name": host.name, "join_token": host.token, "simulate": f"{GPUS}x{MODEL}"}
        command = agent_command(self.folder, host.state, host.edge, agent)
        command[command.index("--on-exit") + 1] = "keep"
        command += ["--launcher", self.launcher]
        host.command = command
        new_boot(host)
        host.service = Service(
            f"agent-{host.name}",
            host.inside(command),
            env=self.agent_environment(host),
            log=self.folder / f"{host.name}.log",
            keeps_children=True,
            stop_seconds=10,
        )
        host.service.start()

    def edge_of(self, host: LocalHost) -> str:
        """Connect the host, and return the address of the edge for its agent."""
        if os.geteuid() == 0 and shutil.which("ip"):
            self._lay_cable(host)
        return f"http://{host.address}:{self.gates.make(host.name, host.address)}"

    def agent_environment(self, host: LocalHost) -> dict[str, str]:
        """Return the environment of a host's agent.

        If the clock library was built, the clock of the agent can be set.
        """
        return {**agent_environment(), **self.clocks.environment(host.name)}

    def _lay_cable(self, host: LocalHost) -> None:
        """Create a network namespace for the host, and connect it by a veth pair."""
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
                return  # networks may not be created here: the host is cut off by its gate instead
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
        """Return the pid of a service of `./run up`.

        Wait until the service runs, because it may be restarting.
        """
        wait_until(lambda: self._pid(name), SERVICE_SECONDS, f"{name} runs")
        return self._pid(name)

    def _pid(self, name: str) -> int:
        """Return the pid of a service, or 0 if it does not run."""
        entries = json.loads((self.folder / "site" / "services.json").read_text())["services"]
        return int(entries[name]["pid"] or 0)

    def cut_off(self, host: LocalHost) -> None:
        """Cut the host's network. Bytes in transit are lost, but no connection is closed."""
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
        """Kill the host's agent on entry of this context, and start it again on exit.

        The workloads of the host keep running.
        """
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
        """Return the number of hosts whose lease is alive."""
        from scheduler.models import Host

        names = [host.name for host in self.hosts]
        return int(rows(lambda: Host.objects.filter(lease_state="alive", name__in=names).count()))

    def ask(self, method: str, path: str, body: Any = None, seconds: float = 5.0) -> Any:
        """Send a request to the API as the team's member, and return the JSON of the answer.

        Raises OSError if the API does not answer or answers with an error.
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
