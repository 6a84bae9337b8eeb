"""Processes on GPUs that no workload accounts for: found in one poll, described, and ended only where that is surely right."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.gpu import stray_processes
from agent.gpu.reader import GpuProcess, UnitUse
from agent.gpu.simulated_faults import plant_stray
from agent.gpu.stray_processes import EndedStray, StrayTracker, WorkloadContext, ended_by_gpu, is_system_slice
from agent.host import processes
from agent.isolation.cgroups import CgroupLimits, Cgroups
from agent.isolation.team_users import UidRange
from agent.protocol import StraySeen
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

PERSON = 4242
as_somebody_else = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv, to run a process as somebody else",
)
Starts = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Starts]:
    """Starts a process that waits, whose parent is gone; gives its pid. Gone after the test."""
    made: list[int] = []

    def one(
        *, user: int = os.getuid(), deaf: bool = False, waits: str = "exec sleep 60", **environment: str
    ) -> int:
        change = ["setpriv", "--reuid", str(user), "--clear-groups"] if user != os.getuid() else []
        # It is waited for until it has closed its output, and so is deaf, or has its own name.
        waits = (
            "trap '' TERM; exec 2>/dev/null; while :; do sleep 0.2; done"
            if deaf
            else f"exec 2>/dev/null; {waits}"
        )
        made_by = subprocess.run(
            [*change, "/bin/sh", "-c", f'sh -c "{waits}" >/dev/null & echo $!'],
            capture_output=True,
            env={"PATH": os.environ["PATH"], **environment},
            check=True,
            start_new_session=True,
        )
        made.append(int(made_by.stdout))
        until = time.monotonic() + 20
        while not deaf and (process := processes.read_process(made[-1])) is not None and process.name == "sh":
            assert time.monotonic() < until, "it did not begin"
            time.sleep(0.01)
        return made[-1]

    yield one
    for pid in made:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def on_gpu(pid: int, unit: str = "GPU-1") -> GpuProcess:
    return GpuProcess("GPU-1", unit, pid, 700)


def look(found: StrayTracker, pid: int, now: float, action: str = "end", **uses: UnitUse) -> StraySeen:
    found.look([on_gpu(pid)], WorkloadContext(uses), action=action, now=now)
    return found.seen[0]


def gone(pid: int) -> bool:
    for _ in range(50):
        if processes.read_process(pid) is None:
            return True
        time.sleep(0.05)
    return False


def test_one_is_described_with_its_user_its_command_and_its_memory(start: Starts) -> None:
    pid = start()
    found = StrayTracker()
    assert found.look([on_gpu(pid)], WorkloadContext(), action="report", now=1.0)
    (seen,) = found.seen
    assert (seen.gpu, seen.pid, seen.user, seen.name, seen.memory_mib) == (
        "GPU-1",
        pid,
        "root",
        "sleep",
        700,
    ) or os.getuid()
    assert seen.done == ""
    assert not found.look([on_gpu(pid)], WorkloadContext(), action="report", now=2.0), "no news"
    assert found.look([], WorkloadContext(), action="report", now=3.0) and found.seen == []


def test_processes_of_the_holder_and_of_the_agent_are_none(start: Starts) -> None:
    pid = start()
    found = StrayTracker()
    use = UnitUse("run-1", frozenset({pid}), 0.0, 1)
    assert not found.look([on_gpu(pid)], WorkloadContext({"GPU-1": use}), action="end", now=1.0)
    assert not found.look([on_gpu(pid)], WorkloadContext(ours=[pid]), action="end", now=1.0)


def test_what_the_holder_started_since_the_look_began_is_none(start: Starts) -> None:
    shim = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    try:
        assert shim.stdout is not None
        pid = int(shim.stdout.readline())
        found, kept = StrayTracker(), {shim.pid: "run-1"}
        assert not found.look(
            [on_gpu(pid)], WorkloadContext(holders={"GPU-1": "run-1"}, shims=kept), action="end", now=1.0
        )
        assert found.look(
            [on_gpu(pid)], WorkloadContext(holders={"GPU-1": "run-2"}, shims=kept), action="end", now=2.0
        )
        assert found.seen[0].run == "run-1"
        os.kill(pid, signal.SIGKILL)
    finally:
        shim.kill()
        shim.wait()


def test_a_workload_on_a_gpu_that_it_does_not_hold_is_shown_with_its_run_which_is_stopped_at_the_second_look(
    start: Starts,
) -> None:
    pid = start()
    found = StrayTracker()
    use = UnitUse("run-1", frozenset({pid}), 0.0, 1)
    for action in ("report", "warn"):
        for now in (1.0, 2.0):
            found.look([on_gpu(pid)], WorkloadContext({"GPU-2": use}), action=action, now=now)
        assert (found.seen[0].run, found.seen[0].done, found.runs_on_foreign_gpus) == ("run-1", "", {})
    found = StrayTracker()
    looks = (
        (1.0, "its workload is stopped if it stays", {}),
        (2.0, "its workload is stopped", {"run-1": "GPU-1"}),
    )
    for now, said, stopped in looks:
        found.look([on_gpu(pid)], WorkloadContext({"GPU-2": use}), action="end", now=now)
        assert (found.seen[0].run, found.seen[0].done, found.runs_on_foreign_gpus) == ("run-1", said, stopped)
    assert processes.read_process(pid) is not None, "it ends with its run, which is told first"
    found.look([], WorkloadContext(), action="end", now=3.0)
    assert found.runs_on_foreign_gpus == {}


def test_where_several_runs_take_turns_on_a_gpu_nobody_is_stopped_for_it(start: Starts) -> None:
    pid = start()
    found, use = StrayTracker(), UnitUse("run-1", frozenset({pid}), 0.0, 1)
    for now in (1.0, 2.0):
        found.look(
            [on_gpu(pid, "share-1-of-GPU-1")],
            WorkloadContext({"share-2-of-GPU-1": use}),
            action="end",
            now=now,
        )
    assert (found.seen[0].done, found.runs_on_foreign_gpus) == ("left alone: it belongs to a workload", {})


async def test_a_run_that_uses_a_gpu_it_does_not_hold_is_stopped_and_the_next_tenant_has_it(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    """As one does that was handed an open device by another run of its owner: no folder and no lock keeps it from that."""
    edge.stray_action = "end"
    await edge.want(job("sleep 300 & echo $!; wait", units=[agent.units[1]]))
    await edge.until(lambda: edge.log("run-1").endswith("\n"))
    plant_stray(agent.state, 0, int(edge.log("run-1")))
    await edge.want(job("exit 0", generation=2, units=[agent.units[0]]))
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "cancelled" and "which it did not hold" in ended.step
    assert (await edge.until_state("run-2", "ended")).outcome == "finished"


@as_somebody_else
def test_a_persons_process_is_ended_at_the_second_look_and_not_at_the_first(start: Starts) -> None:
    pid = start(user=PERSON)
    found = StrayTracker()
    assert look(found, pid, 1.0).done == "is ended if it stays"
    assert processes.read_process(pid) is not None
    assert (look(found, pid, 2.0).done, found.seen[0].user) == ("asked to end", str(PERSON))
    assert gone(pid)


@as_somebody_else
def test_who_was_ended_is_said_once_with_its_pid_its_name_its_user_and_the_signal(
    start: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    pid, deaf = start(user=PERSON), start(user=PERSON, deaf=True)
    found, both = StrayTracker(), [on_gpu(pid), on_gpu(deaf)]
    said: list[str] = []
    for now in (1.0, 2.0, 3.0, 4.0 + stray_processes.TERM_GRACE_SECONDS):
        found.look(both, WorkloadContext(), action="end", now=now)
        said += ended_by_gpu(found.ended).values()
        assert now < 2.0 or gone(pid)
    assert gone(deaf)
    for now in (20.0, 21.0):
        found.look(both, WorkloadContext(), action="end", now=now)
        said += ended_by_gpu(found.ended).values()
    told = f"pid={pid}, sleep of user {PERSON}, 700 MiB"
    assert said == [f"{told}, by TERM", f"pid={deaf}, sh of user {PERSON}, 700 MiB, by KILL"]
    assert f"on GPU-1 is sent TERM, as the pool says: {told}" in caplog.text
    assert len(caplog.records) == 3, "TERM to each, KILL to one"


@as_somebody_else
def test_one_that_leaves_the_gpu_at_once_and_ends_later_was_ended_all_the_same(start: Starts) -> None:
    pid = start(user=PERSON, deaf=True)
    found = StrayTracker()
    look(found, pid, 1.0)
    assert look(found, pid, 2.0).done == "asked to end"
    found.look([], WorkloadContext(), action="end", now=3.0)
    assert found.ended == [], "it lives, and writes what it has, say"
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    found.look([], WorkloadContext(), action="end", now=4.0)
    assert [str(end) for end in found.ended] == [f"pid={pid}, sh of user {PERSON}, 700 MiB, by TERM"]


@as_somebody_else
def test_one_that_ends_by_itself_was_not_ended_by_the_pool(start: Starts) -> None:
    pid = start(user=PERSON)
    found = StrayTracker()
    look(found, pid, 1.0)
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    for now in (2.0, 3.0):
        found.look([on_gpu(pid)], WorkloadContext(), action="end", now=now)
        assert found.ended == []


def test_those_that_ended_at_one_look_are_one_event_of_their_gpu_and_what_they_call_themselves_stays_in_its_line() -> (
    None
):
    many = [EndedStray(StraySeen("GPU-1", pid, 7, "ada", "a\nb"), "TERM") for pid in range(1, 24)]
    told = ended_by_gpu([*many, EndedStray(StraySeen("GPU-2", 99, 7), "KILL")])
    assert told["GPU-1"].startswith("pid=1, a?b of user ada, by TERM; pid=2, ") and told["GPU-1"].endswith(
        "; and 3 more"
    )
    assert told["GPU-2"] == "pid=99, unknown of user unknown, by KILL"


@as_somebody_else
def test_one_that_does_not_listen_is_killed_after_a_while(start: Starts) -> None:
    pid = start(user=PERSON, deaf=True)
    found = StrayTracker()
    for now in (1.0, 2.0, 2.0 + stray_processes.TERM_GRACE_SECONDS - 1):
        look(found, pid, now)
    assert processes.read_process(pid) is not None
    assert look(found, pid, 2.1 + stray_processes.TERM_GRACE_SECONDS).done == "killed"
    assert gone(pid)


@as_somebody_else
def test_what_a_process_says_of_itself_spares_it_nothing(start: Starts) -> None:
    """A name of the system's, a mark in its environment, and files in /proc that are root's."""
    program = "import ctypes, time; c = ctypes.CDLL(None); c.prctl(15, b'systemd'); c.prctl(4, 0, 0, 0, 0); time.sleep(60)"
    pid = start(
        user=PERSON, waits=f'exec /usr/bin/python3 -S -c \\"{program}\\"', GPUPOOL_MARK="0123456789abcdef"
    )
    deadline = time.monotonic() + 20
    while os.stat(f"/proc/{pid}/status").st_uid != 0 or look_at(pid).name != "systemd":
        assert time.monotonic() < deadline, "it did not hide"
        time.sleep(0.05)
    found = StrayTracker()
    look(found, pid, 1.0)
    seen = look(found, pid, 2.0)
    assert (seen.name, seen.user, seen.done) == ("systemd", str(PERSON), "asked to end")


def look_at(pid: int) -> processes.Process:
    found = processes.read_process(pid)
    assert found is not None
    return found


@as_somebody_else
@pytest.mark.parametrize("proof", ["its user", "its control group"])
def test_a_workload_that_is_not_known_here_is_left_alone(start: Starts, proof: str) -> None:
    pid = start(user=PERSON)
    of_workloads = {
        "its user": WorkloadContext(team_users=UidRange(PERSON, PERSON)),
        "its control group": WorkloadContext(cgroup_pids=lambda: {pid}),
    }
    found = StrayTracker()
    for now in (1.0, 2.0):
        found.look([on_gpu(pid)], of_workloads[proof], action="end", now=now)
    assert found.seen[0].done == "left alone: it belongs to a workload that is not known here"
    assert processes.read_process(pid) is not None


def test_who_is_in_a_group_of_a_run_is_told_by_the_groups_themselves(start: Starts) -> None:
    groups = Cgroups()
    if not groups.available_controllers:
        pytest.skip("control groups can't be written here")
    pid, name = start(), f"test-{os.getpid()}"
    made = groups.make(name, CgroupLimits())
    try:
        assert pid not in groups.all_run_pids()
        for file in made.procs:
            Path(file).write_text(str(pid))
        assert pid in groups.all_run_pids()
        assert os.stat(Path(made.procs[0]).parent).st_uid == os.getuid(), "nobody else joins it"
    finally:
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        groups.remove(name)


@pytest.mark.parametrize(
    ("groups", "service"),
    [
        ("0::/system.slice/nvidia-dcgm.service", True),
        ("0::/../../system.slice/nvidia-dcgm.service", True),
        ("12:pids:/x\n1:name=systemd:/system.slice/slurmd.service\n0::/", True),
        ("0::/system.slice/docker-0123.scope", True),
        ("0::/user.slice/user-1000.slice/user@1000.service/system.slice/dcgm.service", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/gpupool/0123", False),
        ("0::/user.slice/user-1000.slice/session-2.scope", False),
        ("0::/system.slice", False),
        ("0::/system.slice/cron.service", False),
        ("0::/system.slice/system-sshd.slice/sshd@7.service", False),
        ("0::/system.slice/ssh.service", False),
        ("0::/", False),
        ("", False),
    ],
)
def test_a_service_is_what_the_system_started(groups: str, service: bool) -> None:
    assert is_system_slice(groups) is service


@as_somebody_else
def test_a_subordinate_user_of_a_person_is_no_user_of_the_system(start: Starts) -> None:
    pid = start(user=165_000)
    found = StrayTracker()
    look(found, pid, 1.0)
    assert look(found, pid, 2.0).done == "asked to end"
    assert gone(pid)


@pytest.mark.parametrize("user", [0, 33, 65534])
@as_somebody_else
def test_what_runs_as_a_user_of_the_system_is_left_alone(start: Starts, user: int) -> None:
    pid = start(user=user)
    found = StrayTracker()
    for now in (1.0, 2.0):
        seen = look(found, pid, now)
    assert seen.done == "left alone: it runs as a user of the system or of the agent"
    assert processes.read_process(pid) is not None


@as_somebody_else
def test_a_pool_that_only_reports_or_warns_ends_nothing(start: Starts) -> None:
    pid = start(user=PERSON)
    for action in ("report", "warn"):
        found = StrayTracker()
        for now in (1.0, 2.0, 20.0):
            assert look(found, pid, now, action=action).done == ""
    assert processes.read_process(pid) is not None


@as_somebody_else
async def test_an_agent_finds_one_in_one_poll_and_ends_it_when_told_so_beside_its_own_work(
    edge: FakeEdge, make_agent: MakeAgent, start: Starts
) -> None:
    agent = await make_agent("--sample-seconds", "0.3")
    await edge.want(job("sleep 30", units=[agent.units[0]]))
    await edge.until_state("run-1", "running")
    pid = start(user=PERSON)
    plant_stray(agent.state, 0, pid)
    await edge.until(lambda: any(frame.strays for frame in edge.observed))
    first = next(frame.strays for frame in edge.observed if frame.strays)
    assert [(seen.pid, seen.name, seen.user) for seen in first] == [(pid, "sleep", str(PERSON))]
    assert processes.read_process(pid) is not None
    edge.stray_action = "end"
    await edge.push()
    await edge.until(
        lambda: edge.observed[-1].strays is None and any(frame.strays == [] for frame in edge.observed[3:])
    )
    assert gone(pid)
    await edge.until(lambda: bool(edge.health))
    (event,) = edge.health
    assert (event.code, event.gpu, event.source) == ("stray:ended", first[0].gpu, "agent")
    assert event.detail.startswith(f"pid={pid}, sleep of user {PERSON}")
    await edge.until_state("run-1", "running")
    assert any(row.stray_processes for batch in edge.batches for row in batch.rows)
