"""Test accesses that the sandbox forbids. Without a sandbox, each would succeed for the same user."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent.shim import workload_entry
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

pytestmark = pytest.mark.sandbox


@pytest.fixture
async def agent(make_agent: MakeAgent) -> AgentProcess:
    return await make_agent(launcher="bubblewrap")


async def output(edge: FakeEdge, command: str, generation: int = 1, **fields: object) -> str:
    """Return the output of the command in the sandbox."""
    wanted = job(f"{command}\necho the end", generation=generation, **fields)  # type: ignore[arg-type]
    await edge.want(wanted)
    await edge.until_state(wanted.run, "ended")
    await edge.until(lambda: edge.log(wanted.run).endswith("the end\n"))
    return edge.log(wanted.run).removesuffix("the end\n")


async def test_the_agents_state_and_credential_are_invisible(edge: FakeEdge, agent: AgentProcess) -> None:
    identity = agent.state / "identity.json"
    credential = json.loads(identity.read_text())["credential"]
    assert identity.stat().st_mode & 0o777 == 0o600
    search = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; grep -rs credential-[0-9] /run /home /tmp /etc"
    found = await output(edge, f"cat {identity}; ls {agent.state}; {search}")
    assert credential not in found
    assert f"cannot access '{agent.state}'" in found


async def test_homes_and_checkpoints_of_other_users_are_invisible(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await output(edge, "echo secret > ~/mine; echo secret > $GPUPOOL_CHECKPOINT_DIR/mine", owner="bob")
    found = await output(edge, "ls -A /home; find / -name mine 2>/dev/null", generation=2, owner="ada")
    assert found == "ada\n"
    assert (agent.state / "homes" / "bob" / "mine").read_text() == "secret\n"


async def test_a_home_survives_the_workload(edge: FakeEdge, agent: AgentProcess) -> None:
    await output(edge, "echo kept > ~/file")
    assert await output(edge, "cat ~/file", generation=2) == "kept\n"


async def test_other_workloads_cannot_be_seen_or_signalled(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job("sleep 300", generation=1))
    await edge.until_state("run-1", "running")
    seen = await output(edge, "ls -d /proc/[0-9]* | wc -l; kill -KILL -1 2>&1; echo $?", generation=2)
    assert int(seen.split()[0]) < 10
    assert (await edge.until_state("run-1", "running")).outcome == ""


async def test_only_harmless_device_nodes_exist_and_no_node_can_be_created(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    found = await output(edge, "ls /dev; mknod /tmp/sda b 8 0; ls /tmp/sda; cat /dev/mem")
    nodes = found.split("mknod")[0].split()
    assert set(nodes) <= {
        *(
            "console",
            "core",
            "fd",
            "full",
            "mqueue",
            "null",
            "ptmx",
            "pts",
            "random",
            "shm",
            "stderr",
            "stdin",
            "stdout",
        ),
        *("tty", "urandom", "zero"),
    }
    assert "Operation not permitted" in found


async def test_a_workload_has_no_capabilities_and_cannot_gain_any(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    found = await output(
        edge,
        (
            "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; unshare --user true; unshare --mount true;"
            " mount -t tmpfs x /mnt"
        ),
    )
    lines = dict(line.split(":\t") for line in found.splitlines() if ":\t" in line)
    assert int(lines["CapEff"], 16) == 0
    assert int(lines["CapBnd"], 16) == 0
    assert lines["NoNewPrivs"] == "1"
    assert found.count("unshare failed") == 2
    assert "mount:" in found


async def test_a_workload_can_write_only_to_its_own_folders(edge: FakeEdge, agent: AgentProcess) -> None:
    places = [
        "/",
        "/etc",
        "/usr",
        "/usr/bin",
        "/run",
        "/run/gpupool",
        "/run/gpupool/in",
        "/run/gpupool/tools/bin",
        "/home",
        "/var",
    ]
    tries = "\n".join(f"touch {place}/x 2>/dev/null && echo {place}" for place in places)
    assert await output(edge, tries) == ""
    assert (
        await output(
            edge, "touch ~/x /tmp/x $GPUPOOL_CHECKPOINT_DIR/x /run/gpupool/out/x && echo all", generation=2
        )
        == "all\n"
    )


LISTEN = """
cat > /tmp/listen.py <<'END'
import socket
port, name = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
name.bind("\\0gpupool-isolation-test"); name.listen()
print("listens at", port.getsockname()[1], flush=True)
while True: port.accept()[0].sendall(b"secret")
END
python3 -S /tmp/listen.py
"""
CONNECT = """
cat > /tmp/connect.py <<'END'
import socket
tcp, abstract = ("127.0.0.1", {port}), "\\0gpupool-isolation-test"
for family, address in ((socket.AF_INET, tcp), (socket.AF_UNIX, abstract)):
    try:
        socket.socket(family).connect(address)
        print("reached", address)
    except OSError as error:
        print(error.strerror)
END
python3 -S /tmp/connect.py
"""


async def start_listener(edge: FakeEdge) -> int:
    """Start a workload of bob that listens on a port. Return the port."""
    await edge.want(job(LISTEN, generation=1, owner="bob"))
    await edge.until(lambda: edge.log("run-1").endswith("\n"))
    return int(edge.log("run-1").split()[-1])


async def test_sockets_of_another_workload_are_unreachable(edge: FakeEdge, agent: AgentProcess) -> None:
    found = await output(edge, CONNECT.format(port=await start_listener(edge)), generation=2, owner="ada")
    assert found == "Connection refused\nConnection refused\n"


async def test_a_private_network_has_only_the_loopback_interface(edge: FakeEdge, agent: AgentProcess) -> None:
    assert (
        await output(edge, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; tail -n +2 /proc/net/route")
        == "lo\n"
    )


async def test_the_hosts_network_is_used_and_reported_if_the_operator_chose_it(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    await make_agent("--network", "host", launcher="bubblewrap")
    found = await output(edge, CONNECT.format(port=await start_listener(edge)), generation=2, owner="ada")
    scoped = (
        workload_entry.landlock_version() >= workload_entry.SCOPES_SINCE_ABI
    )  # the Landlock scope closes abstract sockets; TCP ports stay open
    assert (found.count("reached"), found.count("not permitted")) == ((1, 1) if scoped else (2, 0))
    assert scoped is not any("abstract sockets" in note for note in edge.observed[-1].inventory.notes)
    await edge.until(
        lambda: any("use the host's network" in note for note in edge.observed[-1].inventory.notes)
    )


async def test_secret_files_of_the_host_are_invisible(edge: FakeEdge, agent: AgentProcess) -> None:
    assert (
        await output(edge, "cat /etc/shadow /etc/sudoers 2>/dev/null; ls /root/.ssh /etc/ssh 2>/dev/null")
        == ""
    )


async def test_a_workload_gets_no_environment_variable_of_the_agent(
    edge: FakeEdge, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_HOST", "hush")
    await make_agent(launcher="bubblewrap")
    assert "hush" not in await output(edge, "env; cat /proc/1/environ | tr '\\0' '\\n'")


async def test_the_requested_environment_cannot_override_the_contract(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    wrong = {"CUDA_VISIBLE_DEVICES": "GPU-somebody-elses", "GPUPOOL_WORKLOAD": "other"}
    unit = agent.units[0]
    found = await output(
        edge, "echo $CUDA_VISIBLE_DEVICES $GPUPOOL_WORKLOAD", environment=wrong, units=[unit]
    )
    assert found == f"{unit} workload-1\n"


async def test_an_exposed_path_is_read_only(edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "set").write_text("numbers\n")
    await make_agent("--expose", str(data), launcher="bubblewrap")
    assert (
        await output(edge, f"cat {data}/set; touch {data}/x 2>/dev/null && echo written; ls {tmp_path}")
        == "numbers\ndata\n"
    )


async def test_the_agent_follows_no_links_in_the_workloads_folders(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    target = agent.state / "identity.json"
    before = target.read_text()
    await output(
        edge,
        (
            f"ln -s {target} /run/gpupool/out/load; ln -s {target} $GPUPOOL_CHECKPOINT_DIR/.done;"
            " rm -rf ~/.x; ln -s / ~/.x; sleep 1"
        ),
        workload="same",
        units=[agent.units[0]],
    )
    seen = edge.seen("run-1")
    assert seen is not None and seen.checkpoint_at is None
    await output(edge, "true", generation=2, workload="same")
    assert target.read_text() == before


@pytest.mark.parametrize(
    "left", ["mkdir -p $GPUPOOL_CHECKPOINT_DIR/.done/x", "chmod 500 $GPUPOOL_CHECKPOINT_DIR"]
)
async def test_a_broken_acknowledgement_does_not_fail_the_next_start(
    edge: FakeEdge, agent: AgentProcess, left: str
) -> None:
    """Check that the next run starts, because several failed starts would close the host."""
    await output(edge, f"touch $GPUPOOL_CHECKPOINT_DIR/.done.x; {left}", workload="same")
    assert await output(edge, "echo started", generation=2, workload="same") == "started\n"
    seen = edge.seen("run-2")
    assert seen is not None and seen.checkpoint_at is None


async def test_the_sandbox_ends_with_a_killed_shim(edge: FakeEdge, agent: AgentProcess) -> None:
    from agent.host import processes

    await edge.want(job("setsid sleep 300 & sleep 300", units=[agent.units[0]]))
    await edge.until_state("run-1", "running")
    shim = agent.shim("run-1")
    await edge.until(lambda: len(processes.descendants(processes.scan(), shim["pid"])) >= 4)
    tree = processes.descendants(processes.scan(), shim["pid"])
    os.kill(shim["pid"], 9)
    assert (await edge.until_state("run-1", "ended")).outcome == "host_lost"
    await edge.until(
        lambda: not any(processes.is_alive(process.pid, process.start_ticks) for process in tree), 5
    )


async def test_sandboxed_jobs_receive_notices_and_are_stopped_with_term_first(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    command = (
        "trap 'echo notice; cat $GPUPOOL_NOTICE; gpupool checkpoint done' USR1; trap 'echo term;"
        " exit 0' TERM;"
        " echo begun; while :; do sleep 0.1; done"
    )
    await edge.want(job(command))
    await edge.until(lambda: "begun" in edge.log("run-1"))
    await edge.change("run-1", verb="notice", code="evicted_for_guarantee")
    await edge.until(lambda: "notice" in edge.log("run-1"))
    seen = edge.seen("run-1")
    await edge.until(lambda: edge.seen("run-1").checkpoint_at is not None)  # type: ignore[union-attr]
    assert seen is not None
    await edge.change("run-1", verb="stop", code="evicted_for_guarantee")
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "checkpointed"
    await edge.until(lambda: "term" in edge.log("run-1"))


async def test_the_host_reports_its_isolation(edge: FakeEdge, agent: AgentProcess) -> None:
    inventory = edge.observed[-1].inventory
    assert inventory.isolation == "bubblewrap" and inventory.simulated
    assert inventory.network == "private"
    assert inventory.users_per_team == (os.geteuid() == 0)
    assert inventory.users_per_team != any("no user id per team" in note for note in inventory.notes)
