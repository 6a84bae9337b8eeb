"""Test the network access of workloads.

A network namespace represents the networks outside the machine. It contains a server like a cloud's metadata
service, and other servers. The machine has routes to the namespace, as in a cloud.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.host.durable_files import read_json
from agent.isolation.listening_sockets import listening_sockets, ports_to_close
from agent.isolation.nft_rules import internet_rules
from agent.isolation.team_users import UidRange
from agent.isolation.workload_network import (
    IP_FORWARD_FILE,
    NetworkSetupError,
    WorkloadNetwork,
    network_key,
    open_network,
)
from tests.agent.conftest import AgentProcess, MakeAgent, forget_network, job
from tests.agent.fake_edge import FakeEdge
from tests.agent.test_isolation import output
from tests.agent.test_isolation_users import OF_BLUE, OF_RED

LICENCES = "192.168.77.7"  # a server in the organisation's private network
METADATA, ANYBODY = (
    "169.254.169.254",
    "198.51.100.7",
)  # the second address is from a documentation range, so no host has it
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
needs_tools = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft", path=PATH) or not shutil.which("ip", path=PATH),
    reason="network rules need root, ip (iproute2) and nft (nftables)",
)
pytestmark = [pytest.mark.sandbox, pytest.mark.xdist_group("network")]

SERVE = """
import socket, sys, threading
def serve(server, address):
    while True: server.accept()[0].sendall(b"reached " + address.encode())
servers = [(socket.create_server((address, 80)), address) for address in sys.argv[1:]]
for each in servers: threading.Thread(target=serve, args=each).start()
print("ready", flush=True)
"""
CONNECT_TO_EACH = """
cat > /tmp/try.py <<'END'
import socket, sys
for each in sys.argv[1:]:
    host, port = each.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 2) as line:
            line.recv(100)
            print("reached", each)
    except OSError:
        print("closed", each)
END
python3 -S /tmp/try.py {}
"""
PRINT_ADDRESS_AND_LISTEN = """
cat > /tmp/listen.py <<'END'
import socket
server, way_out = socket.create_server(("0.0.0.0", 7777)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
way_out.connect(("198.51.100.7", 9))
print(way_out.getsockname()[0], flush=True)
while True: server.accept()[0].sendall(b"hello")
END
python3 -S /tmp/listen.py
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, env={"PATH": PATH})


@dataclass
class Outside:
    """A network namespace to which the machine has routes; `here` is the machine's address on the link."""

    name: str
    here: str = "10.214.0.1"


@pytest.fixture
def outside() -> Iterator[Outside]:
    """Run servers on METADATA:80, ANYBODY:80 and LICENCES:80 outside the machine."""
    found = Outside(f"outside-{os.getpid()}")
    near, far = f"gpo{os.getpid() % 100000}a", f"gpo{os.getpid() % 100000}b"
    forwards = Path("/proc/sys/net/ipv4/ip_forward").read_text()
    ip("netns", "add", found.name)
    server = None
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", found.name)
        ip("addr", "add", f"{found.here}/30", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", found.name, "link", "set", "lo", "up")
        ip("-n", found.name, "addr", "add", "10.214.0.2/30", "dev", far)
        ip("-n", found.name, "link", "set", far, "up")
        for address in (METADATA, ANYBODY, LICENCES):
            ip("-n", found.name, "addr", "add", f"{address}/32", "dev", "lo")
            ip("route", "replace", f"{address}/32", "via", "10.214.0.2")
        server = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                found.name,
                sys.executable,
                "-S",
                "-c",
                SERVE,
                METADATA,
                ANYBODY,
                LICENCES,
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": PATH},
        )
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        yield found
    finally:
        if server is not None:
            server.kill()
            server.wait()
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "delete", near)
        ip("netns", "delete", found.name)
        Path("/proc/sys/net/ipv4/ip_forward").write_text(forwards)


def nft_table(agent: AgentProcess) -> str:
    """Return the name of the agent's nft table."""
    return f"gpupool_{network_key(agent.state)}"


@contextlib.contextmanager
def host_service(address: str, user: int | None = None) -> Iterator[int]:
    """Run a host service as `user` and yield its port."""
    program = (
        f"import socket\ns = socket.create_server(({address!r}, 0)); print(s.getsockname()[1], flush=True)\n"
        "while True: s.accept()[0].sendall(b'hello')"
    )
    with subprocess.Popen(
        ["/usr/bin/python3", "-S", "-c", program], stdout=subprocess.PIPE, text=True, user=user, cwd="/"
    ) as service:
        try:
            assert service.stdout is not None
            yield int(service.stdout.readline())
        finally:
            service.kill()


def edge_port(edge: FakeEdge) -> int:
    return int(edge.url.rsplit(":", 1)[1])


def reached_addresses(found: str) -> set[str]:
    return {line.split()[1] for line in found.splitlines() if line.startswith("reached")}


@needs_tools
def test_without_rules_the_machine_reaches_the_metadata_address(outside: Outside) -> None:
    """Check that the addresses are reachable without rules; otherwise the tests below would prove nothing."""
    for address in (METADATA, ANYBODY, LICENCES):
        with socket.create_connection((address, 80), 2) as line:
            assert line.recv(100).startswith(b"reached")


@needs_tools
async def test_a_run_in_a_private_network_reaches_no_address(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside
) -> None:
    await make_agent(launcher="bubblewrap")
    port = edge_port(edge)
    tries = CONNECT_TO_EACH.format(f"{METADATA}:80 {ANYBODY}:80 {outside.here}:{port} 127.0.0.1:{port}")
    assert reached_addresses(await output(edge, tries, **OF_BLUE)) == set()


@pytest.mark.long
@needs_tools
async def test_with_internet_a_run_reaches_the_outside_but_not_the_host(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside
) -> None:
    agent = await make_agent("--network", "internet", launcher="bubblewrap")
    with host_service("0.0.0.0") as port:
        route = 'bytes.fromhex(open("/proc/net/route").read().split()[13])[::-1]'
        gateway = f"$(python3 -S -c 'import socket; print(socket.inet_ntoa({route}))')"
        tries = CONNECT_TO_EACH.format(
            f"{ANYBODY}:80 {METADATA}:80 {outside.here}:{port} 127.0.0.1:{port} {gateway}:{port}"
        )
        found = await output(edge, tries, **OF_BLUE)
    assert reached_addresses(found) == {f"{ANYBODY}:80"}
    assert "closed 10.213." in found
    assert edge.observed[-1].inventory.network == "internet"
    mark = (read_json(agent.state / "runs" / "run-1" / "run.json") or {})["mark"]
    await edge.until(lambda: not Path(f"/run/netns/gpupool-{mark}").exists())


@needs_tools
@pytest.mark.parametrize("reach", [None, "192.168.77.0/24"])
async def test_a_run_with_internet_reaches_only_named_private_networks(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside, reach: str | None
) -> None:
    await make_agent("--network", "internet", *(["--reach", reach] if reach else []), launcher="bubblewrap")
    tries = CONNECT_TO_EACH.format(f"{ANYBODY}:80 {LICENCES}:80 {METADATA}:80 10.214.0.2:80")
    found = reached_addresses(await output(edge, tries, **OF_BLUE))
    assert found == ({f"{ANYBODY}:80", f"{LICENCES}:80"} if reach else {f"{ANYBODY}:80"})
    (note,) = (each for each in edge.observed[-1].inventory.notes if "the internet" in each)
    assert (reach or "no private network") in note


@contextlib.contextmanager
def routed_machine(outside: Outside) -> Iterator[Callable[[], bool]]:
    """Create a network namespace that represents a second machine whose traffic this machine routes.

    Yield a function that returns True if the second machine reaches the outside.
    """
    name, near, far = f"routed-{os.getpid()}", f"gpb{os.getpid() % 100000}a", f"gpb{os.getpid() % 100000}b"
    ip("netns", "add", name)
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        ip("addr", "add", "10.215.0.1/30", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", name, "addr", "add", "10.215.0.2/30", "dev", far)
        ip("-n", name, "link", "set", far, "up")
        ip("-n", name, "route", "add", "default", "via", "10.215.0.1")
        ip("-n", outside.name, "route", "add", "10.215.0.0/30", "via", outside.here)
        program = f"import socket; print(socket.create_connection(('{ANYBODY}', 80), 2).recv(9))"
        command = ["ip", "netns", "exec", name, sys.executable, "-S", "-c", program]
        yield lambda: subprocess.run(command, capture_output=True, env={"PATH": PATH}).returncode == 0
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "delete", near)
        ip("netns", "delete", name)


@needs_tools
@pytest.mark.parametrize("before", ["0", "1"])
async def test_a_host_does_not_start_to_forward_packets_of_others(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside, before: str
) -> None:
    IP_FORWARD_FILE.write_text(before)
    with routed_machine(outside) as reaches:
        assert reaches() is (before == "1")
        agent = await make_agent("--network", "internet", launcher="bubblewrap")
        assert IP_FORWARD_FILE.read_text() == "1\n"
        assert reaches() is (before == "1")
        await agent.kill()
        await agent.start()
        assert reaches() is (before == "1"), "a restarted agent remembers the earlier setting"
        assert reached_addresses(await output(edge, CONNECT_TO_EACH.format(f"{ANYBODY}:80"), **OF_BLUE)) == {
            f"{ANYBODY}:80"
        }


def test_runs_reach_private_name_servers_on_port_53_only() -> None:
    table_rules = internet_rules("abcd", ["10.0.0.2", "fd00::1"], ["10.1.0.0/16", "10.1.2.0/24"], alone=True)
    lines = [line.strip() for line in table_rules.splitlines()]
    dns_line = next(at for at, line in enumerate(lines) if line.endswith("th dport 53 accept"))
    assert "{ 10.0.0.2 }" in lines[dns_line]
    assert "{ 10.1.0.0/16 } accept" in lines[dns_line + 1], (
        "overlapping networks are merged: nft rejects overlaps"
    )
    assert "10.0.0.0/8" in lines[dns_line + 2] and lines[dns_line + 2].endswith("reject")
    assert "169.254.0.0/16" in lines[dns_line - 1], "the metadata rule comes first, so no --reach opens it"


@needs_tools
async def test_with_internet_runs_do_not_reach_each_other(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside
) -> None:
    await make_agent("--network", "internet", launcher="bubblewrap")
    await edge.want(job(PRINT_ADDRESS_AND_LISTEN, **OF_RED))
    await edge.until(lambda: edge.log("run-1").endswith("\n"))
    address = edge.log("run-1").strip()
    assert address.startswith("10.213.")
    tries = CONNECT_TO_EACH.format(f"{address}:7777 {ANYBODY}:80")
    assert reached_addresses(await output(edge, tries, generation=2, **OF_BLUE)) == {f"{ANYBODY}:80"}
    ip("-n", outside.name, "route", "add", "10.213.0.0/16", "via", outside.here)
    program = f"import socket; socket.create_connection(('{address}', 7777), 2).recv(9)"
    tried = subprocess.run(
        ["ip", "netns", "exec", outside.name, sys.executable, "-S", "-c", program],
        capture_output=True,
        env={"PATH": PATH},
    )
    assert b"timed out" in tried.stderr, "a run is unreachable from outside"


@needs_tools
async def test_a_run_in_the_hosts_network_cannot_reach_metadata_or_foreign_ports(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside
) -> None:
    await make_agent("--network", "host", launcher="bubblewrap")
    assert any("are closed to them" in note for note in edge.observed[-1].inventory.notes)
    with (
        host_service("127.0.0.1") as own,
        host_service("0.0.0.0") as everywhere,
        host_service("127.0.0.1", 70_002) as port_of_red,
    ):
        tries = CONNECT_TO_EACH.format(
            f"{ANYBODY}:80 {METADATA}:80 127.0.0.1:{own} {outside.here}:{everywhere} 127.0.0.1:{port_of_red} "
            f"127.0.0.1:{edge_port(edge)}"
        )
        assert reached_addresses(await output(edge, tries, **OF_BLUE)) == {f"{ANYBODY}:80"}
        tries = CONNECT_TO_EACH.format(f"127.0.0.1:{port_of_red} 127.0.0.1:{own}")
        assert reached_addresses(await output(edge, tries, generation=2, **OF_RED)) == {
            f"127.0.0.1:{port_of_red}"
        }


@needs_tools
async def test_runs_of_a_team_in_the_hosts_network_reach_each_other(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside
) -> None:
    """Check that the ranks of a gang can connect to each other."""
    await make_agent("--network", "host", launcher="bubblewrap")
    with host_service("0.0.0.0", 70_001) as rank_0:
        tries = CONNECT_TO_EACH.format(f"{outside.here}:{rank_0} 127.0.0.1:{rank_0}")
        assert len(reached_addresses(await output(edge, tries, **OF_BLUE))) == 2


def table_rules(agent: AgentProcess) -> str:
    """Return the current rules of the agent's nft table, or '' if there is none."""
    words = ["nft", "list", "table", "inet", nft_table(agent)]
    return subprocess.run(words, capture_output=True, text=True, env={"PATH": PATH}).stdout


async def wait_for_rule(agent: AgentProcess, port: int) -> None:
    """Wait for the rule that closes the port."""
    await agent.edge.until(lambda: str(port) in table_rules(agent))


async def start_connector(edge: FakeEdge, agent: AgentProcess) -> Callable[[str], Awaitable[str]]:
    """Start a run of team blue that connects to an address.

    Return a function that gives the run its address and returns the result ('reached' or 'closed').
    """
    await edge.want(
        job(
            f"until [ -e ~/go ]; do sleep 0.1; done\n{CONNECT_TO_EACH.format('$(cat ~/go)')}echo end",
            **OF_BLUE,
        )
    )
    await edge.until_state("run-1", "running")

    async def tries(address: str) -> str:
        (agent.state / "homes" / "ada" / "go.tmp").write_text(address)
        (agent.state / "homes" / "ada" / "go.tmp").chmod(0o644)
        (agent.state / "homes" / "ada" / "go.tmp").rename(agent.state / "homes" / "ada" / "go")
        await edge.until(lambda: edge.log("run-1").endswith("end\n"))
        return edge.log("run-1").split()[0]

    return tries


@needs_tools
async def test_a_port_opened_later_is_closed_to_runs_within_seconds(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside
) -> None:
    agent = await make_agent("--network", "host", launcher="bubblewrap")
    tries = await start_connector(edge, agent)
    with host_service("127.0.0.1") as late:
        await wait_for_rule(agent, late)
        assert await tries(f"127.0.0.1:{late}") == "closed"


@needs_tools
async def test_deleted_rules_are_restored(edge: FakeEdge, make_agent: MakeAgent, outside: Outside) -> None:
    """Delete all rules, as `systemctl reload nftables` does."""
    agent = await make_agent("--network", "host", launcher="bubblewrap")
    tries = await start_connector(edge, agent)
    with host_service("127.0.0.1") as port:
        await wait_for_rule(agent, port)
        subprocess.run(["nft", "delete", "table", "inet", nft_table(agent)], check=True, env={"PATH": PATH})
        assert str(port) not in table_rules(agent)
        await wait_for_rule(agent, port)
        assert await tries(f"127.0.0.1:{port}") == "closed"


@needs_tools
async def test_deleted_rules_are_restored_for_the_internet_network(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside
) -> None:
    agent = await make_agent("--network", "internet", launcher="bubblewrap")
    subprocess.run(["nft", "delete", "table", "inet", nft_table(agent)], check=True, env={"PATH": PATH})
    await wait_for_rule(agent, 127)  # the rule of 127.0.0.0/8
    assert reached_addresses(
        await output(edge, CONNECT_TO_EACH.format(f"{ANYBODY}:80 {METADATA}:80"), **OF_BLUE)
    ) == {f"{ANYBODY}:80"}


@needs_tools
async def test_ports_stay_closed_to_a_workload_while_its_agent_restarts(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside
) -> None:
    agent = await make_agent("--network", "host", launcher="bubblewrap")
    tries = await start_connector(edge, agent)
    with host_service("127.0.0.1") as port:
        await wait_for_rule(agent, port)
        await agent.kill()
        await agent.start()
        assert str(port) in table_rules(agent)
        assert await tries(f"127.0.0.1:{port}") == "closed"


@needs_tools
def test_a_run_is_rejected_if_ports_cannot_be_closed_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_network("host", tmp_path, UidRange())
    try:
        with host_service("127.0.0.1"):
            monkeypatch.setattr("agent.isolation.workload_network._search_path", lambda: str(tmp_path))
            with pytest.raises(NetworkSetupError, match="could not be closed to it"):
                network.admit_user(70_001)
    finally:
        monkeypatch.undo()
        forget_network(tmp_path)


@needs_tools
async def test_listening_on_another_address_does_not_open_a_port(
    edge: FakeEdge, make_agent: MakeAgent, outside: Outside
) -> None:
    await make_agent("--network", "host", launcher="bubblewrap")
    with host_service("127.0.0.1") as hosts:
        own = (
            f"import socket, time; s = socket.create_server(('127.0.0.2', {hosts})); print('own',"
            " flush=True); time.sleep(60)"
        )
        tries = f'python3 -S -c "{own}" & sleep 2.5\n{CONNECT_TO_EACH.format(f"127.0.0.1:{hosts}")}kill %1'
        assert (await output(edge, tries, **OF_BLUE)).splitlines()[:2] == ["own", f"closed 127.0.0.1:{hosts}"]


def test_a_teams_own_address_stays_open_on_a_shared_port() -> None:
    found = [
        (0, "tcp", "127.0.0.1", 22),
        (70_001, "tcp", "127.0.0.1", 9),
        (70_002, "tcp", "127.0.0.2", 9),
        (70_002, "udp", "::1", 53),
    ]
    assert ports_to_close([70_001, 70_002], found) == {
        (70_001, "tcp", "127.0.0.1", 22),
        (70_002, "tcp", "127.0.0.1", 22),
        (70_001, "tcp", "127.0.0.2", 9),
        (70_002, "tcp", "127.0.0.1", 9),
        (70_001, "udp", "::1", 53),
    }


def test_a_wildcard_listener_is_closed_to_another_user_whose_own_listener_on_the_port_stays_open() -> None:
    everywhere = (70_002, "tcp", "::", 9)
    assert ports_to_close([70_001], [everywhere]) == {(70_001, "tcp", "::", 9), (70_001, "tcp", "0.0.0.0", 9)}
    # User 70001 listens on this port on IPv4 itself. Only IPv6 connections reach the other user's socket.
    own = (70_001, "tcp", "127.0.0.1", 9)
    assert ports_to_close([70_001], [everywhere, own]) == {(70_001, "tcp", "::", 9)}
    of_the_host = (0, "tcp", "0.0.0.0", 9)
    assert ports_to_close([70_001], [of_the_host, (70_001, "tcp", "::1", 9)]) == {
        (70_001, "tcp", "0.0.0.0", 9)
    }


def test_listening_sockets_are_found() -> None:
    with host_service("127.0.0.1") as port:
        until = time.monotonic() + 5
        while (os.geteuid(), "tcp", "127.0.0.1", port) not in set(listening_sockets()):
            assert time.monotonic() < until


def test_the_host_reports_addresses_that_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_network("private", tmp_path, None).notes == []
    open_host = open_network("host", tmp_path, None)
    assert not open_host.can_close_ports
    assert any("metadata address" in note for note in open_host.notes)
    monkeypatch.setattr("agent.isolation.workload_network._search_path", lambda: str(tmp_path))
    with pytest.raises(RuntimeError, match="internet needs root, ip and nft"):
        open_network("internet", tmp_path, UidRange())
    assert (
        "They also reach the cloud's metadata address" in open_network("host", tmp_path, UidRange()).notes[0]
    )
    assert WorkloadNetwork("private", "").enter("mark") == ""
