"""Test stray processes, which use a GPU without holding it: detection, description, safe termination."""

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
requires_other_user = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv, to run a process as somebody else",
)
StartProcess = Callable[..., int]


@pytest.fixture
def start() -> Iterator[StartProcess]:
    """Return a function that starts an orphaned process and returns its pid.

    All processes are killed after the test.
    """
    made: list[int] = []

    def start_process(
        *,
        user: int = os.getuid(),
        ignores_term: bool = False,
        waits: str = "exec sleep 60",
        **environment: str,
    ) -> int:
        change = ["setpriv", "--reuid", str(user), "--clear-groups"] if user != os.getuid() else []
        # `subprocess.run` returns when the process closes its error output. A process that ignores TERM is
        # ready then. For other processes, the loop below waits until the process has its final name.
        waits = (
            "trap '' TERM; exec 2>/dev/null; while :; do sleep 0.2; done"
            if ignores_term
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
        while (
            not ignores_term
            and (process := processes.read_process(made[-1])) is not None
            and process.name == "sh"
        ):
            assert time.monotonic() < until, "the process did not start"
            time.sleep(0.01)
        return made[-1]

    yield start_process
    for pid in made:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def on_gpu(pid: int, unit: str = "GPU-1") -> GpuProcess:
    return GpuProcess("GPU-1", unit, pid, 700)


def poll_once(tracker: StrayTracker, pid: int, now: float, action: str = "end", **uses: UnitUse) -> StraySeen:
    tracker.look([on_gpu(pid)], WorkloadContext(uses), action=action, now=now)
    return tracker.seen[0]


def is_gone(pid: int) -> bool:
    for _ in range(50):
        if processes.read_process(pid) is None:
            return True
        time.sleep(0.05)
    return False


def test_a_stray_is_described_with_its_user_command_and_memory(start: StartProcess) -> None:
    pid = start()
    tracker = StrayTracker()
    assert tracker.look([on_gpu(pid)], WorkloadContext(), action="report", now=1.0)
    (seen,) = tracker.seen
    assert (seen.gpu, seen.pid, seen.user, seen.name, seen.memory_mib) == (
        "GPU-1",
        pid,
        "root",
        "sleep",
        700,
    ) or os.getuid()
    assert seen.done == ""
    assert not tracker.look([on_gpu(pid)], WorkloadContext(), action="report", now=2.0), (
        "an unchanged stray is no change"
    )
    assert tracker.look([], WorkloadContext(), action="report", now=3.0) and tracker.seen == []


def test_processes_of_the_holder_and_of_the_agent_are_not_strays(start: StartProcess) -> None:
    pid = start()
    tracker = StrayTracker()
    use = UnitUse("run-1", frozenset({pid}), 0.0, 1)
    assert not tracker.look([on_gpu(pid)], WorkloadContext({"GPU-1": use}), action="end", now=1.0)
    assert not tracker.look([on_gpu(pid)], WorkloadContext(ours=[pid]), action="end", now=1.0)


def test_a_process_that_the_holder_started_during_the_poll_is_not_a_stray(start: StartProcess) -> None:
    shim = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    try:
        assert shim.stdout is not None
        pid = int(shim.stdout.readline())
        tracker, kept = StrayTracker(), {shim.pid: "run-1"}
        assert not tracker.look(
            [on_gpu(pid)], WorkloadContext(holders={"GPU-1": "run-1"}, shims=kept), action="end", now=1.0
        )
        assert tracker.look(
            [on_gpu(pid)], WorkloadContext(holders={"GPU-1": "run-2"}, shims=kept), action="end", now=2.0
        )
        assert tracker.seen[0].run == "run-1"
        os.kill(pid, signal.SIGKILL)
    finally:
        shim.kill()
        shim.wait()


def test_a_run_on_a_foreign_gpu_is_named_and_stopped_at_the_second_poll(
    start: StartProcess,
) -> None:
    pid = start()
    tracker = StrayTracker()
    use = UnitUse("run-1", frozenset({pid}), 0.0, 1)
    for action in ("report", "warn"):
        for now in (1.0, 2.0):
            tracker.look([on_gpu(pid)], WorkloadContext({"GPU-2": use}), action=action, now=now)
        assert (tracker.seen[0].run, tracker.seen[0].done, tracker.runs_on_foreign_gpus) == ("run-1", "", {})
    tracker = StrayTracker()
    looks = (
        (1.0, "its workload is stopped if the process stays", {}),
        (2.0, "its workload is stopped", {"run-1": "GPU-1"}),
    )
    for now, reported, stopped in looks:
        tracker.look([on_gpu(pid)], WorkloadContext({"GPU-2": use}), action="end", now=now)
        assert (tracker.seen[0].run, tracker.seen[0].done, tracker.runs_on_foreign_gpus) == (
            "run-1",
            reported,
            stopped,
        )
    assert processes.read_process(pid) is not None, "the process ends with its run, after the run's notice"
    tracker.look([], WorkloadContext(), action="end", now=3.0)
    assert tracker.runs_on_foreign_gpus == {}


def test_a_run_on_another_share_of_the_same_gpu_is_left_alone(start: StartProcess) -> None:
    pid = start()
    tracker, use = StrayTracker(), UnitUse("run-1", frozenset({pid}), 0.0, 1)
    for now in (1.0, 2.0):
        tracker.look(
            [on_gpu(pid, "share-1-of-GPU-1")],
            WorkloadContext({"share-2-of-GPU-1": use}),
            action="end",
            now=now,
        )
    assert (tracker.seen[0].done, tracker.runs_on_foreign_gpus) == (
        "left alone: it belongs to a workload",
        {},
    )


async def test_a_run_that_uses_a_foreign_gpu_is_stopped_and_the_gpu_is_reused(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    """Report a process of a run as a user of a GPU that the run does not hold.

    This can happen if a process gets an open device file from another run of its owner. Neither folder
    permissions nor GPU locks prevent it.
    """
    edge.stray_action = "end"
    await edge.want(job("sleep 300 & echo $!; wait", units=[agent.units[1]]))
    await edge.until(lambda: edge.log("run-1").endswith("\n"))
    plant_stray(agent.state, 0, int(edge.log("run-1")))
    await edge.want(job("exit 0", generation=2, units=[agent.units[0]]))
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "cancelled" and "which it did not hold" in ended.step
    assert (await edge.until_state("run-2", "ended")).outcome == "finished"


@requires_other_user
def test_a_users_process_is_ended_at_the_second_poll_and_not_at_the_first(start: StartProcess) -> None:
    pid = start(user=PERSON)
    tracker = StrayTracker()
    assert poll_once(tracker, pid, 1.0).done == "is ended if it stays"
    assert processes.read_process(pid) is not None
    assert (poll_once(tracker, pid, 2.0).done, tracker.seen[0].user) == ("asked to end", str(PERSON))
    assert is_gone(pid)


@requires_other_user
def test_an_ended_stray_is_reported_once_with_pid_name_user_and_signal(
    start: StartProcess, caplog: pytest.LogCaptureFixture
) -> None:
    pid, ignores_term = start(user=PERSON), start(user=PERSON, ignores_term=True)
    tracker, both = StrayTracker(), [on_gpu(pid), on_gpu(ignores_term)]
    reported: list[str] = []
    for now in (1.0, 2.0, 3.0, 4.0 + stray_processes.TERM_GRACE_SECONDS):
        tracker.look(both, WorkloadContext(), action="end", now=now)
        reported += ended_by_gpu(tracker.ended).values()
        assert now < 2.0 or is_gone(pid)
    assert is_gone(ignores_term)
    for now in (20.0, 21.0):
        tracker.look(both, WorkloadContext(), action="end", now=now)
        reported += ended_by_gpu(tracker.ended).values()
    description = f"pid={pid}, sleep of user {PERSON}, 700 MiB"
    assert reported == [
        f"{description}, by TERM",
        f"pid={ignores_term}, sh of user {PERSON}, 700 MiB, by KILL",
    ]
    sent = "on GPU-1, a process that belongs to no workload is sent TERM, because of the pool's policy"
    assert f"{sent}: {description}" in caplog.text
    assert len(caplog.records) == 3, "TERM to both, KILL to one"


@requires_other_user
def test_a_stray_that_leaves_the_gpu_before_it_exits_is_reported_as_ended(start: StartProcess) -> None:
    pid = start(user=PERSON, ignores_term=True)
    tracker = StrayTracker()
    poll_once(tracker, pid, 1.0)
    assert poll_once(tracker, pid, 2.0).done == "asked to end"
    tracker.look([], WorkloadContext(), action="end", now=3.0)
    assert tracker.ended == [], "it is still alive, for example saving its data"
    os.kill(pid, signal.SIGKILL)
    assert is_gone(pid)
    tracker.look([], WorkloadContext(), action="end", now=4.0)
    assert [str(end) for end in tracker.ended] == [f"pid={pid}, sh of user {PERSON}, 700 MiB, by TERM"]


@requires_other_user
def test_a_stray_that_exits_before_the_signal_is_not_reported_as_ended(start: StartProcess) -> None:
    pid = start(user=PERSON)
    tracker = StrayTracker()
    poll_once(tracker, pid, 1.0)
    os.kill(pid, signal.SIGKILL)
    assert is_gone(pid)
    for now in (2.0, 3.0):
        tracker.look([on_gpu(pid)], WorkloadContext(), action="end", now=now)
        assert tracker.ended == []


def test_strays_ended_in_one_poll_are_one_event_per_gpu_with_escaped_names() -> None:
    many = [EndedStray(StraySeen("GPU-1", pid, 7, "ada", "a\nb"), "TERM") for pid in range(1, 24)]
    description = ended_by_gpu([*many, EndedStray(StraySeen("GPU-2", 99, 7), "KILL")])
    assert description["GPU-1"].startswith("pid=1, a?b of user ada, by TERM; pid=2, ") and description[
        "GPU-1"
    ].endswith("; and 3 more")
    assert description["GPU-2"] == "pid=99, unknown of user unknown, by KILL"


@requires_other_user
def test_a_stray_that_ignores_term_is_killed_after_the_grace_period(start: StartProcess) -> None:
    pid = start(user=PERSON, ignores_term=True)
    tracker = StrayTracker()
    for now in (1.0, 2.0, 2.0 + stray_processes.TERM_GRACE_SECONDS - 1):
        poll_once(tracker, pid, now)
    assert processes.read_process(pid) is not None
    assert poll_once(tracker, pid, 2.1 + stray_processes.TERM_GRACE_SECONDS).done == "killed"
    assert is_gone(pid)


@requires_other_user
def test_a_stray_cannot_protect_itself_by_its_name_environment_or_proc_files(start: StartProcess) -> None:
    """Start a process with a system name, a mark in its environment, and files in /proc that root owns."""
    program = (
        "import ctypes, time; c = ctypes.CDLL(None); c.prctl(15, b'systemd'); c.prctl(4, 0, 0, 0, 0);"
        " time.sleep(60)"
    )
    pid = start(
        user=PERSON, waits=f'exec /usr/bin/python3 -S -c \\"{program}\\"', GPUPOOL_MARK="0123456789abcdef"
    )
    deadline = time.monotonic() + 20
    while os.stat(f"/proc/{pid}/status").st_uid != 0 or require_process(pid).name != "systemd":
        assert time.monotonic() < deadline, "the process did not change its name"
        time.sleep(0.05)
    tracker = StrayTracker()
    poll_once(tracker, pid, 1.0)
    seen = poll_once(tracker, pid, 2.0)
    assert (seen.name, seen.user, seen.done) == ("systemd", str(PERSON), "asked to end")


def require_process(pid: int) -> processes.Process:
    tracker = processes.read_process(pid)
    assert tracker is not None
    return tracker


@requires_other_user
@pytest.mark.parametrize("proof", ["its user", "its control group"])
def test_a_process_of_an_unknown_workload_is_left_alone(start: StartProcess, proof: str) -> None:
    pid = start(user=PERSON)
    of_workloads = {
        "its user": WorkloadContext(team_users=UidRange(PERSON, PERSON)),
        "its control group": WorkloadContext(cgroup_pids=lambda: {pid}),
    }
    tracker = StrayTracker()
    for now in (1.0, 2.0):
        tracker.look([on_gpu(pid)], of_workloads[proof], action="end", now=now)
    assert tracker.seen[0].done == "left alone: it belongs to a workload that this agent does not know"
    assert processes.read_process(pid) is not None


def test_the_cgroups_list_the_processes_of_runs(start: StartProcess) -> None:
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
        assert os.stat(Path(made.procs[0]).parent).st_uid == os.getuid(), "no other user can join the group"
    finally:
        os.kill(pid, signal.SIGKILL)
        assert is_gone(pid)
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
def test_a_service_is_recognised_by_its_system_slice(groups: str, service: bool) -> None:
    assert is_system_slice(groups) is service


@requires_other_user
def test_a_subordinate_uid_is_not_a_system_user(start: StartProcess) -> None:
    pid = start(user=165_000)
    tracker = StrayTracker()
    poll_once(tracker, pid, 1.0)
    assert poll_once(tracker, pid, 2.0).done == "asked to end"
    assert is_gone(pid)


@pytest.mark.parametrize("user", [0, 33, 65534])
@requires_other_user
def test_processes_of_system_users_are_left_alone(start: StartProcess, user: int) -> None:
    pid = start(user=user)
    tracker = StrayTracker()
    for now in (1.0, 2.0):
        seen = poll_once(tracker, pid, now)
    assert seen.done == "left alone: it runs as a user of the system or of the agent"
    assert processes.read_process(pid) is not None


@requires_other_user
def test_the_actions_report_and_warn_end_no_process(start: StartProcess) -> None:
    pid = start(user=PERSON)
    for action in ("report", "warn"):
        tracker = StrayTracker()
        for now in (1.0, 2.0, 20.0):
            assert poll_once(tracker, pid, now, action=action).done == ""
    assert processes.read_process(pid) is not None


@requires_other_user
async def test_an_agent_reports_a_stray_in_one_poll_and_ends_it_on_request(
    edge: FakeEdge, make_agent: MakeAgent, start: StartProcess
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
    assert is_gone(pid)
    await edge.until(lambda: bool(edge.health))
    (event,) = edge.health
    assert (event.code, event.gpu, event.source) == ("stray:ended", first[0].gpu, "agent")
    assert event.detail.startswith(f"pid={pid}, sleep of user {PERSON}")
    await edge.until_state("run-1", "running")
    assert any(row.stray_processes for batch in edge.batches for row in batch.rows)
