"""Sets up the network of workloads, in one of three modes.

private    Each run has a private loopback device, which the sandbox creates. The run reaches nothing else.

internet   Each run has a network namespace, connected to the host's network by a veth pair. The run reaches
           the internet through the host's address. It reaches no metadata address of a cloud, no service of
           the host and no other run. It reaches only the private networks that the operator names. Nobody
           can connect to the run. This mode needs root, ip and nft. It switches on the forwarding of packets.
           If forwarding was off before, the rules drop all other forwarded traffic.

host       Runs use the host's network. Gangs (runs over several hosts) need this mode. With root, nft and a
           Unix user per team, rules block two kinds of targets for the users of teams: metadata addresses of
           clouds, and sockets of the host's other users. Otherwise a note says that both are open.

The rules are nftables rules (man nft). Each agent has one table, which it replaces as a whole at its start.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.host import processes
from agent.host.clock import boot_id
from agent.host.durable_files import read_json, write_json
from agent.isolation.listening_sockets import ListeningSocket, listening_sockets, ports_to_close
from agent.isolation.nft_rules import (
    METADATA_NETWORKS,
    WORKLOAD_NETWORK_PREFIX,
    host_rules,
    internet_rules,
    nft_element,
    nft_set_name,
)
from agent.isolation.team_users import UidRange

log = logging.getLogger("agent.isolation.workload_network")

NETWORK_MODES = ("private", "internet", "host")
IP_FORWARD_FILE = Path("/proc/sys/net/ipv4/ip_forward")
FORWARDING_RECORD = (
    # File in the state folder. It has the id of the boot in which an agent found forwarding switched off.
    "forwarding.json"
)
VETH_PAIR_COUNT = 1 << 14
RULE_CHECK_SECONDS = 1.0
COMMAND_TIMEOUT_SECONDS = 20
NETNS_FOLDER = Path("/run/netns")


class NetworkSetupError(OSError):
    """The network of a run could not be set up. The message gives the reason."""


@dataclass
class WorkloadNetwork:
    """The network of this host's workloads.

    ``mode``: private, internet or host. ``notes``: sentences that say which addresses workloads can reach.
    The parameter ``mark`` of the methods is a string that identifies a run.
    """

    mode: str
    key: str  # part of the names of this agent's table and interfaces
    notes: list[str] = field(default_factory=list)
    can_close_ports: bool = False  # True: sockets on the host are closed to team users
    _rules: str = ""  # the rules of the agent's table, without the elements of its sets
    _users: set[int] = field(default_factory=set)
    _closed: set[ListeningSocket] = field(default_factory=set)
    _changing: threading.Lock = field(default_factory=threading.Lock)
    _marks_to_remove: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    _remover: threading.Thread | None = None

    def enter(self, mark: str) -> str:
        """Create the run's network. Return the path of the namespace that the shim must enter; '' for none.

        Raises NetworkSetupError.
        """
        if self.mode != "internet":
            return ""
        name = self._space(mark)
        if not (NETNS_FOLDER / name).exists():
            self._join(name)
        return str(NETNS_FOLDER / name)

    def leave(self, mark: str) -> None:
        """Remove the run's network after all its processes have ended."""
        if self.mode == "internet" and (NETNS_FOLDER / self._space(mark)).exists():
            problem = _run_command("ip", "netns", "delete", self._space(mark))  # also deletes the interfaces
            if problem:
                log.warning("the network of a run could not be removed: %s", problem)

    def leave_in_background(self, mark: str) -> None:
        """Remove the run's network in a thread that handles one run after the other.

        If the agent ends before the network is removed, it removes the network after its next start.
        """
        if self.mode != "internet":
            return
        self._marks_to_remove.put(mark)
        if self._remover is None:
            remover = threading.Thread(target=self._leave_queued, daemon=True, name="networks of ended runs")
            try:
                remover.start()
            except RuntimeError as error:  # no thread available; the next run that ends tries again
                log.warning("the network of a run is not removed yet: %s", error)
                return
            self._remover = remover

    def _leave_queued(self) -> None:
        while True:
            self.leave(self._marks_to_remove.get())

    def admit_user(self, user: int | None) -> None:
        """Close the sockets of other users to this team's user.

        Call this method before the user's first process starts. Raises NetworkSetupError.
        """
        if user is None or not self.can_close_ports:
            return
        self._users.add(user)
        problem = self.close_ports()
        if problem:
            raise NetworkSetupError(0, f"ports of the host could not be closed to it: {problem}")

    def close_ports(self) -> str:
        """Close exactly the ports of the present sockets of other users. Return '' or the reason of a
        failure.

        The thread of ``watch`` closes the ports of later sockets within about a second.
        """
        with self._changing:
            closed = ports_to_close(self._users, list(listening_sockets()))
            commands = [
                f"{verb} element inet {self._table} {nft_set_name(port)} {{ {nft_element(port)} }}"
                for verb, ports in (("delete", self._closed - closed), ("add", closed - self._closed))
                for port in sorted(ports)
            ]
            if not commands:
                return ""
            if not _run_command("nft", "-f", "-", given="\n".join(commands) + "\n"):
                self._closed = closed
                return ""
            return self._install(closed)  # the state of the table is unknown, so replace the whole table

    def watch(self) -> None:
        """Start a thread that restores removed rules and updates the closed ports, about every second."""
        if self._rules:
            threading.Thread(target=self._watch, daemon=True, name="network").start()

    def _watch(self) -> None:
        while True:
            time.sleep(RULE_CHECK_SECONDS)
            try:
                problem = self._restore() or (self.close_ports() if self.can_close_ports else "")
            except Exception as error:  # noqa: BLE001 - if this thread ended, new ports would stay open
                problem = str(error)
            if problem:
                log.error("the network rules of workloads could not be updated: %s", problem)

    def _restore(self) -> str:
        """Install the rules again if they were removed, for example by a firewall that flushes all tables.

        Return '' or the reason of a failure.
        """
        if f"table inet {self._table}" in _command_output("nft", "list", "tables").splitlines():
            return ""
        with self._changing:
            problem = self._install(
                ports_to_close(self._users, list(listening_sockets())) if self.can_close_ports else set()
            )
        if not problem:
            log.warning("the network rules of workloads had been removed; they are installed again")
        return problem

    def install(self, rules: str, users: Iterable[int] = ()) -> str:
        """Replace the rules from before the agent's start by ``rules``. Return '' or the reason of a failure.

        ``users``: the uids whose workloads already run. Ports stay closed to these users.
        """
        self._rules, self._users = rules, set(users)
        problem = self._install(ports_to_close(self._users, list(listening_sockets())))
        if problem:
            self._rules = ""
        return problem

    def _install(self, closed: set[ListeningSocket]) -> str:
        """Replace the table in one transaction, so that there is no time without rules.

        Return '' or the reason of a failure.
        """
        table = f"inet {self._table}"
        elements = [
            f"add element {table} {nft_set_name(port)} {{ {nft_element(port)} }}" for port in sorted(closed)
        ]
        text = [f"table {table}", f"delete table {table}", f"table {table} {{\n{self._rules}\n}}", *elements]
        problem = _run_command("nft", "-f", "-", given="\n".join(text) + "\n")
        if not problem:
            self._closed = closed
        return problem

    @property
    def _table(self) -> str:
        return f"gpupool_{self.key}"

    def _space(self, mark: str) -> str:
        return f"gpupool-{mark}"

    def _join(self, name: str) -> None:
        outside, inside = f"gpn{self.key}{name[-6:]}", f"gpi{self.key}{name[-6:]}"
        taken = _command_output("ip", "-o", "-4", "addr", "show")
        number = next(
            candidate % VETH_PAIR_COUNT
            for candidate in range(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16), 1 << 62)
            if f" {_pair_address(candidate % VETH_PAIR_COUNT, 1)}/" not in taken
        )
        host_address, run_address = _pair_address(number, 1), _pair_address(number, 2)
        commands = (
            ("netns", "add", name),
            ("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name),
            ("addr", "add", f"{host_address}/30", "dev", outside),
            ("link", "set", outside, "up"),
            ("-n", name, "link", "set", "lo", "up"),
            ("-n", name, "link", "set", inside, "name", "eth0"),
            ("-n", name, "addr", "add", f"{run_address}/30", "dev", "eth0"),
            ("-n", name, "link", "set", "eth0", "up"),
            ("-n", name, "route", "add", "default", "via", host_address),
        )
        for command in commands:
            problem = _run_command("ip", *command)
            if problem:
                _run_command("ip", "netns", "delete", name)
                raise NetworkSetupError(0, f"no network for the run: {problem}")


def network_key(folder: Path) -> str:
    """Return a short key for the names of this agent's table and interfaces.

    Each agent of a host has its own key.
    """
    return hashlib.sha256(str(folder).encode()).hexdigest()[:4]


def open_network(
    wanted: str, folder: Path, numbers: UidRange | None, reach: Sequence[str] = ()
) -> WorkloadNetwork:
    """Set up the workloads' network in mode ``wanted``.

    ``folder``: the agent's state folder. ``numbers``: the uids of team users; None: no user per team.
    ``reach``: private networks that runs in mode internet may reach, as ``checked_private_network`` returns
    them.

    If mode host lacks a protection, ``notes`` says so. Raises RuntimeError if mode internet is not possible.
    Another mode is never used instead, because it would open or close more than the operator asked for.
    """
    network = WorkloadNetwork(wanted, network_key(folder))
    if wanted == "private":
        return network
    missing = _missing_requirement()
    if wanted == "internet":
        problem = missing or _enable_forwarding_rules(network, folder, reach)
        if problem:
            raise RuntimeError(
                f"--network: internet needs root, ip and nft, and does not work here: {problem}"
            )
        network.notes.append(
            "Workloads reach the internet, but no service of this host, no other workload, "
            "no metadata address, and "
            f"{'of private networks ' + ', '.join(reach) + ' alone' if reach else 'no private network'}."
        )
        network.notes += _resolver_notes()
        return network
    reach = (
        "Workloads use the host's network, as --network says: "
        "they reach the internet, and other hosts reach them"
    )
    problem = missing or (
        "there is no user id per team"
        if numbers is None
        else network.install(host_rules(numbers), filter(numbers.__contains__, processes.user_ids()))
    )
    if problem:
        network.notes.append(
            f"{reach}. They also reach the cloud's metadata address, services of the host "
            f"and other workloads ({problem})."
        )
        return network
    network.can_close_ports = True
    network.notes.append(
        f"{reach}. Metadata addresses, and ports on which others of this host listen, are closed to them."
    )
    return network


def _missing_requirement() -> str:
    if os.geteuid() != 0:
        return "the agent is not root"
    missing = [name for name in ("ip", "nft") if shutil.which(name, path=_search_path()) is None]
    return f"{' and '.join(missing)} not installed" if missing else ""


def checked_private_network(text: str) -> str:
    """Return ``text`` as an IPv4 network in normal form, such as "10.1.2.0/24". Raises ValueError."""
    return str(ipaddress.IPv4Network(text))


def _enable_forwarding_rules(network: WorkloadNetwork, folder: Path, reach: Sequence[str]) -> str:
    """Install the rules and switch forwarding on. Return '' or the reason of a failure."""
    try:
        alone = not _was_forwarding_before(folder)
        return (
            network.install(internet_rules(network.key, _name_servers(), reach, alone=alone))
            or _enable_ip_forward()
        )
    except OSError as error:
        return str(error)


def _was_forwarding_before(folder: Path) -> bool:
    """Return True if the host forwarded packets before the agent's first start in this boot.

    The answer is stored until the next boot. A restarted agent could not find it out, because the agent
    itself has switched forwarding on.
    """
    record = folder / FORWARDING_RECORD
    if IP_FORWARD_FILE.read_text().strip() == "0":
        write_json(record, {"boot_id": boot_id()})
    return (read_json(record) or {}).get("boot_id") != boot_id()


def _enable_ip_forward() -> str:
    try:
        IP_FORWARD_FILE.write_text("1")
    except OSError as error:
        return f"forwarding can't be switched on: {error.strerror}"
    return ""


def _name_servers() -> list[str]:
    """Return the valid addresses of the host's name servers."""
    try:
        lines = Path("/etc/resolv.conf").read_text().splitlines()
    except OSError:
        return []
    texts = [line.split()[1] for line in lines if line.startswith("nameserver") and len(line.split()) > 1]
    found = []
    for text in texts:
        with contextlib.suppress(ValueError):
            found.append(str(ipaddress.ip_address(text)))
    return list(dict.fromkeys(found))


def _resolver_notes() -> list[str]:
    closed = [ipaddress.ip_network(text) for text in ("127.0.0.0/8", *METADATA_NETWORKS)]
    servers = [ipaddress.ip_address(address) for address in _name_servers()]
    if servers and all(
        server.version == 6 or any(server in network for network in closed) for server in servers
    ):
        return [
            "Names can't be looked up by workloads: they reach none of this host's name servers "
            "(on its loopback, at a metadata address, or over IPv6)."
        ]
    return []


def _pair_address(number: int, which: int) -> str:
    value = number * 4 + which
    return f"{WORKLOAD_NETWORK_PREFIX}.{value >> 8}.{value & 255}"


def _run_command(*command: str, given: str = "") -> str:
    """Run a system program. Return '' or its error message."""
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_SECONDS,
            check=False,
            env={"PATH": _search_path()},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        ""
        if done.returncode == 0
        else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
    )


def _command_output(*command: str) -> str:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
        check=False,
        env={"PATH": _search_path()},
    ).stdout


def _search_path() -> str:
    return "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
