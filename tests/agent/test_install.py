"""Test the installation on a GPU host: a wheel without the server, and an upgrade with running jobs."""

from __future__ import annotations

import asyncio
import configparser
import json
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import AGENT_VERSION
from agent.host import processes
from tests.agent.conftest import AgentProcess, job
from tests.agent.fake_edge import TOKEN, FakeEdge
from tests.agent.installed import ROOT, build, install, locked, source_of

UNIT = ROOT / "deploy" / "systemd" / "gpupool-agent.service"
COUNT = "n=0; while true; do n=$((n+1)); echo line $n; sleep 0.1; done"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Return the folders of the programs of two installed versions."""
    folder = tmp_path_factory.mktemp("installed")
    other = source_of(folder / "source", "0.2.0.dev1")
    yield {
        AGENT_VERSION: install(build(folder / "dist-a"), folder / "a"),
        "0.2.0.dev1": install(build(folder / "dist-b", other), folder / "b"),
    }
    shutil.rmtree(folder, ignore_errors=True)


def run_python(programs: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / "python", "-c", code], cwd="/", capture_output=True, text=True, check=False
    )


def use_program(agent: AgentProcess, programs: Path) -> None:
    """Make the next start of ``agent`` use the installed program."""
    agent.program, agent.cwd = [str(programs / "gpupool-agent")], Path("/")


def test_the_wheel_contains_the_agent_and_no_server_code(tmp_path: Path) -> None:
    wheel = build(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        "agent/shim/supervisor.py",
        "agent/workload/gpupool.sh",
        "agent/workload/contract.py",
        "agent/notebook/jupyterlab.py",
    } <= set(names)
    assert {name.partition("/")[0] for name in names} == {"agent", f"gpupool_agent-{AGENT_VERSION}.dist-info"}
    assert not [name for name in names if name.endswith(".pyc")]
    assert {path.name for path in tmp_path.iterdir()} == {wheel.name, "agent.txt", "notebooks.txt", UNIT.name}
    first = wheel.read_bytes()
    assert build(tmp_path).read_bytes() == first, "builds of the same tree are identical"


@pytest.mark.parametrize("name", ["agent", "notebooks"])
def test_a_host_installs_the_tested_versions(name: str) -> None:
    base_versions = locked(ROOT / "requirements" / "base.txt")
    pins = locked(ROOT / "requirements" / f"{name}.txt")
    assert (
        pins
        and {package: version for package, version in pins.items() if base_versions.get(package) != version}
        == {}
    )
    assert "django" not in {package.lower() for package in pins}


def test_the_installed_agent_runs_without_server_packages(
    programs: dict[str, Path],
) -> None:
    installed = programs[AGENT_VERSION]
    for package in ("django", "celery", "scheduler", "portal", "config"):
        assert "No module named" in run_python(installed, f"import {package}").stderr
    assert run_python(installed, "import agent.cli, sys; print('django' in sys.modules)").stdout == "False\n"
    command = [installed / "gpupool-agent", "probe", "--simulate", "2xH100-80GB"]
    inventory = json.loads(
        subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout
    )
    assert inventory["simulated"] and len(inventory["hardware"]["gpus"]) == 2


@pytest.mark.parametrize(
    "launcher",
    [pytest.param("plain", marks=pytest.mark.long), pytest.param("bubblewrap", marks=pytest.mark.sandbox)],
)
async def test_the_installed_agent_joins_once_and_runs_a_job(
    edge: FakeEdge, programs: dict[str, Path], tmp_path: Path, launcher: str
) -> None:
    installed, state = programs[AGENT_VERSION], tmp_path / "state"
    program = str(installed / "gpupool-agent")
    join = [program, "join", "--state", str(state), "--edge", edge.url, "--host", "h1", "--join-token", TOKEN]
    process = await asyncio.create_subprocess_exec(
        *join, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0 and out.decode().startswith("joined as h1"), err
    assert len(edge.joins) == 1 and edge.joins[0].public_key

    # Like the systemd unit, pass no --edge and no --host: the agent reads both from the state folder.
    run = [program, "run", "--state", str(state), "--simulate", "1xH100-80GB", "--launcher", launcher]
    agent = AgentProcess(edge, state, launcher, process=await asyncio.create_subprocess_exec(*run, cwd="/"))
    try:
        await edge.until(lambda: edge.observed)
        await edge.want(
            job(
                "echo it runs; python3 -c 'import gpupool_contract' && gpupool checkpoint done",
                units=agent.units,
            )
        )
        ended = await edge.until_state("run-1", "ended")
        assert ended.outcome == "finished"
        await edge.until(lambda: "it runs" in edge.log("run-1"))
        assert edge.observed[-1].agent_version == AGENT_VERSION and len(edge.joins) == 1
    finally:
        agent.clean_up()
        assert agent.process is not None
        await agent.process.wait()


@pytest.mark.parametrize(
    ("token", "edge_url", "words"),
    [
        ("another", "", "--join-token: the server refused it"),
        (TOKEN, "http://127.0.0.1:9", "does not answer"),
    ],
)
async def test_a_failed_join_reports_the_reason_and_stores_no_credential(
    edge: FakeEdge, programs: dict[str, Path], tmp_path: Path, token: str, edge_url: str, words: str
) -> None:
    program, state = str(programs[AGENT_VERSION] / "gpupool-agent"), str(tmp_path / "state")
    join = [
        program,
        "join",
        "--state",
        state,
        "--edge",
        edge_url or edge.url,
        "--host",
        "h1",
        "--join-token",
        token,
    ]
    process = await asyncio.create_subprocess_exec(*join, cwd="/", stderr=subprocess.PIPE)
    _, err = await process.communicate()
    assert process.returncode == 1 and words in err.decode() and err.count(b"\n") == 1
    run = [program, "run", "--state", state, "--edge", edge.url, "--simulate", "1xH100-80GB"]
    refused = await asyncio.create_subprocess_exec(*run, cwd="/", stderr=subprocess.PIPE)
    _, err = await refused.communicate()
    assert refused.returncode == 2 and b"--join-token-file: needed" in err


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL])
async def test_jobs_continue_during_an_upgrade(
    edge: FakeEdge, programs: dict[str, Path], tmp_path: Path, number: int
) -> None:
    old, new = programs[AGENT_VERSION], programs["0.2.0.dev1"]
    agent = AgentProcess(edge, tmp_path / "state", "plain")
    use_program(agent, old)
    try:
        await agent.start()
        assert edge.observed[-1].agent_version == AGENT_VERSION
        await edge.want(job(COUNT, units=agent.units[:1]))
        await edge.until(lambda: edge.log("run-1").count("\n") > 3)
        before = agent.shim("run-1")
        main = processes.scan()[before["main_pid"]]

        if number == signal.SIGTERM:
            assert await agent.end() == 0
        else:
            await agent.kill()
        use_program(agent, new)
        await agent.start()
        assert edge.observed[-1].agent_version == "0.2.0.dev1"

        seen = await edge.until_state("run-1", "running")
        assert seen.started_at is not None and agent.shim("run-1") == before
        assert processes.is_alive(main.pid, main.start_ticks), "the process must not be replaced"
        heard = edge.log("run-1").count("\n")
        await edge.until(lambda: edge.log("run-1").count("\n") > heard + 3)
        await edge.change("run-1", verb="stop", code="cancelled")
        ended = await edge.until_state("run-1", "ended")
        assert ended.outcome == "cancelled"
        assert not processes.is_alive(main.pid, main.start_ticks)
        kept = (agent.state / "runs" / "run-1" / "log").glob("*")
        written = "".join(path.read_text() for path in sorted(kept))
        await edge.until(lambda: edge.log("run-1") == written)
        numbers = [int(line.split()[1]) for line in written.splitlines()]
        assert numbers == list(range(1, len(numbers) + 1)), "the job started once and no line is lost"
    finally:
        agent.clean_up()
        if agent.process is not None:
            await agent.process.wait()


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not here")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/gpupool-agent/current/bin/gpupool-agent", sys.executable))
    checked = subprocess.run(
        [program, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_unit_keeps_workloads_alive_and_does_not_restrict_them() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False, comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    service = dict(unit["Service"])
    expected = {
        "KillMode": "process",  # systemd ends only the agent, and its workloads continue
        "Restart": "always",
        "OOMPolicy": "continue",
        "TasksMax": "infinity",
        "Delegate": "yes",
        "StateDirectory": "gpupool-agent",
        "StateDirectoryMode": "0700",
    }
    assert {name: service.get(name) for name in expected} == expected
    assert unit["Unit"]["StartLimitIntervalSec"] == "0", "the service is restarted without limit"
    # The unit must not set these options, because workloads inherit the restrictions of the service.
    inherited = (
        "Private",
        "Protect",
        "Restrict",
        "SystemCall",
        "Device",
        "ReadOnly",
        "Inaccessible",
        "NoNewPrivileges",
        "Memory",
    )
    assert not [name for name in service if name.startswith(inherited)]
    assert service["ExecStart"].split()[:4] == [
        "/opt/gpupool-agent/current/bin/gpupool-agent",
        "run",
        "--state",
        "/var/lib/gpupool-agent",
    ]


def test_the_documented_installation_matches_build_and_unit(
    tmp_path: Path,
) -> None:
    documented = (ROOT / "docs" / "agent.md").read_text()
    wheel = build(tmp_path)
    for path in tmp_path.iterdir():
        assert (path.name if path != wheel else "gpupool_agent-*.whl") in documented
    for path in ("/opt/gpupool-agent/current", "/etc/systemd/system", "gpupool-agent join"):
        assert path in documented


@pytest.mark.sandbox
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not here")
def test_the_sandbox_works_with_the_capabilities_of_the_unit() -> None:
    unit = UNIT.read_text()
    dropped = unit.partition("CapabilityBoundingSet=~")[2].splitlines()[0].lower().split()
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not here")
    sandbox = (
        "bwrap --unshare-user --uid 1000 --gid 1000 --unshare-net --unshare-pid --ro-bind / / --proc /proc"
        " --dev /dev true"
    )
    names = ",".join(f"-{name.removeprefix('cap_')}" for name in dropped)
    done = subprocess.run(
        ["setpriv", "--bounding-set", names, *sandbox.split()], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
