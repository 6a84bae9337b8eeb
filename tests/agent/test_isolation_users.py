"""Test that the workloads of each team run as the team's own user if the agent is root."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.host import processes
from agent.isolation.launchers import PlainLauncher
from agent.isolation.team_users import TeamUserError, TeamUsers, UidRange
from agent.protocol import RunWanted
from agent.shim import workload_entry
from agent.storage import file_trees
from tests.agent.command_lines import command_line
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge
from tests.agent.test_isolation import output
from tests.seeds import first_cases

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each team a user"),
]
BLUE, RED = 70_001, 70_002


def of_blue(generation: int = 1, command: str = "true", **fields: object) -> RunWanted:
    """Return a job of team blue with the user that the server assigned."""
    values: dict[str, object] = {"team_id": "1.1700000000", "team_user": BLUE, **fields}
    return job(command, generation=generation, **values)  # type: ignore[arg-type]


OF_RED: dict[str, Any] = {"team": "red", "team_id": "2.1700000000", "team_user": RED}
OF_BLUE: dict[str, Any] = {"team_id": "1.1700000000", "team_user": BLUE}


@pytest.fixture
async def agent(make_agent: MakeAgent) -> AgentProcess:
    return await make_agent(launcher="bubblewrap")


# In the sandbox


async def test_a_workload_runs_as_its_teams_user_with_no_other_group(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await edge.want(of_blue(command="sleep 300"))
    await edge.until_state("run-1", "running")
    below = await wait_for_process(agent, b"sleep")
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{below}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert status["Uid"].split() == [str(BLUE)] * 4
    assert status["Gid"].split() == [str(BLUE)] * 4
    assert set(status["Groups"].split()) <= {str(BLUE)}
    assert status["NoNewPrivs"] == "1"


async def wait_for_process(agent: AgentProcess, name: bytes) -> int:
    """Wait for the process of the first run with this name. Return its pid on the host."""

    def pids() -> list[int]:
        return [
            process.pid
            for process in processes.descendants(processes.scan(), agent.shim("run-1")["pid"])
            if name in command_line(process.pid)
        ]

    await agent.edge.until(pids)
    return pids()[0]


async def test_home_checkpoints_and_files_of_a_run_are_owned_by_the_team(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    command = "echo 1 > ~/f; echo 1 > $GPUPOOL_CHECKPOINT_DIR/f; cat $GPUPOOL_NOTICE; id -un"
    assert "ada" in await output(edge, command, **OF_BLUE)
    homes = agent.state / "homes"
    for path in (homes / "ada", homes / "ada" / "f", homes / ".checkpoints" / "workload-1" / "f"):
        assert path.stat().st_uid == path.stat().st_gid == BLUE
    assert (agent.state / "runs" / "run-1" / "in").stat().st_uid == 0
    await edge.want(job("echo 1 > /run/gpupool/out/f; echo begun; sleep 300", generation=2, **OF_BLUE))
    await edge.until(lambda: "begun" in edge.log("run-2"))
    assert (agent.state / "runs" / "run-2" / "out" / "f").stat().st_uid == BLUE


async def test_a_run_can_read_its_in_folder_but_not_write_to_it(edge: FakeEdge, agent: AgentProcess) -> None:
    """Try to write to the folder. The shim writes to it as root, and a link could misdirect these writes."""
    command = (
        "touch /run/gpupool/in/x && echo written; trap 'cat $GPUPOOL_NOTICE; exit 0' USR1; echo begun;"
        " while :; do sleep 0.1; done"
    )
    await edge.want(of_blue(command=command))
    await edge.until(lambda: "begun" in edge.log("run-1"))
    await edge.change("run-1", verb="notice", code="evicted_for_guarantee")
    await edge.until_state("run-1", "ended")
    await edge.until(lambda: "evicted_for_guarantee" in edge.log("run-1"))
    assert "written" not in edge.log("run-1")


async def test_a_person_in_two_teams_has_a_separate_home_per_team(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await output(edge, "echo secret of blue > ~/file", **OF_BLUE)
    assert await output(edge, "ls -A ~; echo mine > ~/file", generation=2, **OF_RED) == ""
    assert await output(edge, "cat ~/file", generation=3, **OF_BLUE) == "secret of blue\n"
    assert (agent.state / "homes" / f"ada~{RED}" / "file").stat().st_uid == RED


async def test_an_older_home_is_given_to_the_first_team_that_uses_it(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await output(edge, "mkdir -p ~/a/b; echo kept > ~/a/b/file; chmod 700 ~/a; ln -s /etc/shadow ~/link")
    shadow = os.stat("/etc/shadow")
    assert (
        await output(edge, "cat ~/a/b/file; echo more >> ~/a/b/file && echo written", generation=2, **OF_BLUE)
        == "kept\nwritten\n"
    )
    assert os.lstat(agent.state / "homes" / "ada" / "link").st_uid == BLUE
    assert os.stat("/etc/shadow").st_uid == shadow.st_uid


@pytest.mark.parametrize(
    ("fields", "why"),
    first_cases(
        2,
        [
            ({"team_user": 60_000}, "is not one of 70000 to 99999"),
            ({"team_user": 1}, "is not one of 70000 to 99999"),
            ({"team_user": RED, "team_id": "1.1700000000"}, "the team was user 70001"),
            ({"team_user": BLUE, "team_id": "9.1800000000"}, "was another team's"),
        ],
    ),
)
async def test_a_run_with_an_invalid_team_user_is_rejected(
    edge: FakeEdge, agent: AgentProcess, fields: dict[str, Any], why: str
) -> None:
    await output(edge, "true", **OF_BLUE)
    wanted = replace(of_blue(2), **fields)
    await edge.want(wanted)
    ended = await edge.until_state(wanted.run, "ended")
    assert ended.outcome == "start_failed" and why in ended.step


async def test_the_host_reports_that_team_users_are_disabled(edge: FakeEdge, make_agent: MakeAgent) -> None:
    agent = await make_agent("--team-users", "none", launcher="bubblewrap")
    await output(edge, "touch ~/file", **OF_BLUE)
    assert (agent.state / "homes" / "ada" / "file").stat().st_uid == 0
    inventory = edge.observed[-1].inventory
    assert not inventory.users_per_team
    assert any("no user id per team" in note for note in inventory.notes)


async def test_hosts_that_share_homes_agree_on_the_owners(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    first = await make_agent("--homes", str(shared), launcher="bubblewrap", state="first")
    await output(edge, "echo kept > ~/file", **OF_BLUE)
    await first.kill()
    edge.wanted.clear()
    await make_agent("--homes", str(shared), launcher="bubblewrap", state="second")
    assert await output(edge, "cat ~/file", generation=2, **OF_BLUE) == "kept\n"
    stranger = replace(of_blue(3), team_id="9.1800000000")
    await edge.want(stranger)
    assert "was another team's" in (await edge.until_state(stranger.run, "ended")).step


# Two users on one host, without a sandbox


@pytest.fixture
def shared_folder(tmp_path: Path) -> Iterator[Path]:
    folder = Path("/tmp") / f"gpupool-users-{os.getpid()}"
    folder.mkdir(mode=0o755)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def start_process(
    command: str, user: int | None, folder: Path, stage: list[list[str]] | None = None
) -> subprocess.Popen[str]:
    """Start a plain process in the same way as the shim."""
    spec = {"user": user, "launcher": "plain", "stage": stage or [], "stage_at": "/run/gpupool"}
    return subprocess.Popen(
        ["/bin/bash", "-c", command],
        cwd="/",
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: workload_entry.enter_workload(spec),
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "SECRET": "hush"},
    )


def run_and_read(command: str, user: int | None, folder: Path, stage: list[list[str]] | None = None) -> str:
    return start_process(command, user, folder, stage).communicate(timeout=30)[0]


def test_plain_processes_of_two_teams_cannot_signal_trace_or_read_each_other(shared_folder: Path) -> None:
    with start_process("umask 077; sleep 300", BLUE, shared_folder) as victim:
        try:
            tries = (
                f"kill -TERM {victim.pid} && echo killed; cat /proc/{victim.pid}/environ && echo read;"
                f"ls /proc/{victim.pid}/fd && echo listed; head -c1 /proc/{victim.pid}/mem && echo peeked;"
                f"strace -p {victim.pid} -o /dev/null & sleep 0.5; kill $! 2>/dev/null && echo traced"
            )
            found = run_and_read(tries, RED, shared_folder)
            for word in ("killed", "hush", "read", "listed", "peeked", "traced"):
                assert word not in found.split(), found
            assert victim.poll() is None
            assert "hush" in run_and_read(
                f"cat /proc/{victim.pid}/environ", BLUE, shared_folder
            )  # for a process of the same team, the read succeeds, so the failures above are due to the user
        finally:
            victim.kill()


def test_a_setuid_root_program_runs_as_the_teams_user(shared_folder: Path) -> None:
    program = shared_folder / "id"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o4755)
    assert run_and_read(f"{program} -u", RED, shared_folder).strip() == str(RED)


def test_a_workload_drops_the_agents_groups_and_capabilities(shared_folder: Path) -> None:
    os.setgroups([0, 4])
    try:
        found = run_and_read(
            "id -G; grep -E 'Cap(Eff|Prm)' /proc/self/status; chown 0 /tmp; mount -t tmpfs x /mnt",
            RED,
            shared_folder,
        )
    finally:
        os.setgroups([])
    assert found.splitlines()[0] == str(RED)
    assert found.count("0000000000000000") == 2
    assert "not permitted" in found and "mount:" in found


def test_a_workload_does_not_inherit_the_agents_session_keyring(shared_folder: Path) -> None:
    read = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "
        "print(libc.syscall(250, 0, -3, 0), libc.syscall(250, 10, -3, b'user', b'gpupool-test', 0))"
    )
    setup = (
        "import ctypes; libc = ctypes.CDLL(None); libc.syscall(250, 1, None); "
        "libc.syscall(248, b'user', b'gpupool-test', b'hush', 4, -3);"
    )
    program = f"{setup} import subprocess, sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
    program += "from agent.shim import workload_entry; "
    run = (
        "print(subprocess.run(['python3', '-S', '-c', {!r}], capture_output=True,"
        " text=True{}).stdout.strip().split()[1])"
    )
    program += (
        run.format(read, "")
        + ";"
        + run.format(read, ", preexec_fn=lambda: workload_entry.enter_workload({'launcher': 'plain'})")
    )
    found = subprocess.run(
        ["python3", "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(found[0]) > 0  # a process with the session keyring finds the key
    assert found[1] == "-1"


def test_private_folders_are_mounted_for_the_runs_user_only(shared_folder: Path) -> None:
    locked = shared_folder / "locked"
    (locked / "home").mkdir(parents=True)
    locked.chmod(0o700)
    os.chown(locked / "home", RED, RED)
    Path("/run/gpupool").mkdir(exist_ok=True)
    stage = [[str(locked / "home"), "/run/gpupool/home"]]
    assert (
        run_and_read(
            "echo mine > /run/gpupool/home/file && cat /run/gpupool/home/file", RED, shared_folder, stage
        )
        == "mine\n"
    )
    assert (locked / "home" / "file").stat().st_uid == RED
    assert "denied" in run_and_read(f"ls {locked}/home", RED, shared_folder, stage)
    assert not list(Path("/run/gpupool").iterdir())  # the mount is invisible on the host


def test_the_plain_launcher_mounts_folders_where_the_user_can_enter() -> None:
    from agent.isolation.launchers import SandboxRequest

    here = Path("/var/lib/agent")
    box = SandboxRequest(
        ["true"], "ada", *(here / name for name in ("home", "check", "in", "out", "tmp", "tools")), user=BLUE
    )
    launch = PlainLauncher().launch(box)
    assert launch.user == BLUE
    assert dict(launch.stage)[str(here / "home")] == str(PlainLauncher().view(box).home) == launch.cwd


# Ownership of files


def test_changing_the_owner_of_a_home_changes_no_file_outside(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (outside / "linked").write_text("linked")
    (home / "own").write_text("own")
    (home / "twice").write_text("twice")
    os.link(home / "twice", home / "again")
    os.link(outside / "linked", home / "stolen")
    (home / "way-out").symlink_to(outside)
    (home / "third").write_text("somebody's")
    os.chown(home / "third", 12345, 12345)
    assert file_trees.chown_tree(home, old=0, new=BLUE) == 1
    assert {entry.name: entry.lstat().st_uid for entry in home.iterdir()} == {
        "own": BLUE,
        "twice": BLUE,
        "again": BLUE,
        "stolen": 0,
        "way-out": BLUE,
        "third": 12345,
    }
    assert home.stat().st_uid == BLUE
    assert (
        outside.stat().st_uid == (outside / "secret").stat().st_uid == (outside / "linked").stat().st_uid == 0
    )


def test_a_home_that_is_a_link_is_followed_only_if_root_owns_the_link(tmp_path: Path) -> None:
    homes, target = tmp_path / "homes", tmp_path / "target"
    homes.mkdir()
    target.mkdir()
    (homes / "ada").symlink_to(target)
    found = TeamUsers(homes, UidRange())
    assert found.home("ada", BLUE) == target  # root owns the link
    os.lchown(homes / "ada", RED, RED)
    with pytest.raises(TeamUserError, match="a link that root did not create"):
        found.home("ada", BLUE)


def test_an_account_of_the_host_is_never_used_as_a_team_user(tmp_path: Path) -> None:
    account = next(entry for entry in pwd.getpwall() if entry.pw_uid >= 1)
    with pytest.raises(TeamUserError, match=f"the account {account.pw_name}"):
        TeamUsers(tmp_path, UidRange(1, 2**31 - 2)).user("1.1", account.pw_uid)


def test_two_hosts_never_give_a_user_id_to_a_second_team(tmp_path: Path) -> None:
    hosts = [TeamUsers(tmp_path, UidRange()) for _ in range(2)]
    assert hosts[0].user("1.1", BLUE) == BLUE
    assert hosts[1].user("1.1", BLUE) == BLUE
    with pytest.raises(TeamUserError):
        hosts[1].user("2.2", BLUE)
    assert hosts[0].user("2.2", RED) == RED
    assert file_trees.resolved_home(tmp_path) == tmp_path


async def test_a_folder_thousands_of_levels_deep_is_removed_without_harm(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    """Remove a folder that is too deep for Python's recursive removal."""
    deep = "import os\nos.chdir('/tmp')\nfor _ in range(4000):\n    os.mkdir('d'); os.chdir('d')"
    await output(edge, f'python3 -c "{deep}"', **OF_BLUE)
    assert await output(edge, "echo still there", generation=2, **OF_BLUE) == "still there\n"
    trash = agent.state / "trash"
    await edge.until(lambda: not list(trash.iterdir()), 20)
    assert not (agent.state / "runs" / "run-1" / "tmp").exists()
    assert agent.process is not None and agent.process.returncode is None
    agent.send(signal.SIGCONT)
