"""Test jobs from start to end with real processes: start, stop, adoption and reporting."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from agent.host import processes
from agent.host.clock import boottime
from agent.host.durable_files import read_json
from agent.isolation.cgroups import Cgroups
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge
from tests.seeds import first_cases

SLEEP = "echo begun; sleep 300"
OPEN_FILES = """python3 -S -c 'import os
for each in sorted(os.listdir("/proc/self/fd")):
    path = "/proc/self/fd/" + each
    if os.path.lexists(path): print(each, os.readlink(path).split(":")[0])'"""


async def start_running(edge: FakeEdge, agent: AgentProcess, command: str, **fields: object) -> str:
    wanted = job(command, **fields)  # type: ignore[arg-type]
    await edge.want(wanted)
    await edge.until_state(wanted.run, "running")
    await edge.until(lambda: "begun" in edge.log(wanted.run))
    return wanted.run


async def test_a_job_runs_with_its_gpu_and_ends_as_finished(edge: FakeEdge, agent: AgentProcess) -> None:
    unit = agent.units[0]
    await edge.want(
        job(
            'echo "$CUDA_VISIBLE_DEVICES $GPUPOOL_ATTEMPT $MINE"; pwd',
            units=[unit],
            environment={"MINE": "yes"},
        )
    )
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("finished", 0)
    await edge.until(lambda: edge.log("run-1").count("\n") == 2)
    assert edge.log("run-1").splitlines() == [f"{unit} 1 yes", str(agent.state / "homes" / "ada")]
    assert ended.started_at is not None and ended.ended_at is not None and ended.started_at <= ended.ended_at


async def test_an_array_task_gets_its_index(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job('echo "task $GPUPOOL_ARRAY_INDEX"', array_index=3))
    assert await agent.printed("run-1") == "task 3\n"


async def test_a_job_inherits_no_open_file_but_its_output(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job(f"{OPEN_FILES}\necho all", units=[agent.units[0]]))
    assert (await agent.printed("run-1")).splitlines() == ["0 /dev/null", "1 pipe", "2 pipe", "all"]


async def test_a_failed_job_reports_its_exit_code(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job("echo no >&2; exit 7"))
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("failed", 7)


async def test_a_job_killed_by_its_own_signal_has_failed(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job("kill -SEGV $$"))
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("failed", 128 + signal.SIGSEGV)


async def test_a_cancelled_job_ends_with_all_its_children(edge: FakeEdge, agent: AgentProcess) -> None:
    run = await start_running(edge, agent, "setsid sleep 301 & sleep 302 & echo begun; wait")
    tree = processes.descendants(processes.scan(), agent.shim(run)["pid"])
    assert len(tree) >= 3
    await edge.change(run, verb="stop", code="cancelled")
    ended = await edge.until_state(run, "ended")
    assert ended.outcome == "cancelled"
    assert not any(processes.is_alive(process.pid, process.start_ticks) for process in tree)


# The first thread has ended and another thread still runs. /proc shows such a process as a zombie.
FIRST_THREAD_ENDED = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
print("begun", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.parametrize("launcher", ["plain", "bubblewrap"])
@pytest.mark.parametrize("shim_dies", [False, True])
async def test_a_process_whose_first_thread_has_ended_is_killed_with_its_job(
    edge: FakeEdge, make_agent: MakeAgent, launcher: str, shim_dies: bool
) -> None:
    agent = await make_agent(launcher=launcher)
    run = await start_running(
        edge, agent, f"{sys.executable} -c {shlex.quote(FIRST_THREAD_ENDED)} & exec sleep 301"
    )
    shim = agent.shim(run)["pid"]
    survivors = [
        each for each in processes.descendants(processes.scan(), shim) if each.name not in ("bwrap", "sleep")
    ]
    assert len(survivors) == 1, "the process is still running"
    assert processes.environment_value(survivors[0].pid, "GPUPOOL_RUN") == run, (
        "this variable identifies the process without cgroups"
    )
    if shim_dies:
        os.kill(shim, signal.SIGKILL)
    else:
        await edge.change(run, verb="stop", code="cancelled")
    assert (await edge.until_state(run, "ended", 20.0)).outcome == ("host_lost" if shim_dies else "cancelled")
    assert not processes.is_alive(survivors[0].pid, survivors[0].start_ticks), (
        "another host may already run the workload"
    )


async def test_a_job_that_ignores_term_is_killed_after_the_grace_period(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    stubborn = "trap '' TERM; echo begun; while :; do sleep 1; done"
    run = await start_running(edge, agent, stubborn, grace_seconds=3000.0)
    asked = time.monotonic()
    await edge.change(run, verb="stop", code="evicted_for_guarantee", grace_seconds=1.0)
    seen = await edge.until_state(run, "stopping")
    assert seen.outcome == ""
    ended = await edge.until_state(run, "ended")
    assert ended.outcome == "killed_at_grace"
    assert time.monotonic() - asked >= 1.0


async def test_a_notice_is_a_signal_and_a_file_and_can_be_acknowledged(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    command = (
        "trap 'cat $GPUPOOL_NOTICE; echo saved > $GPUPOOL_CHECKPOINT_DIR/data; gpupool checkpoint done;"
        " exit 0' USR1;"
        " echo begun; while :; do sleep 0.1; done"
    )
    run = await start_running(edge, agent, command)
    await edge.change(run, verb="notice", code="evicted_for_reservation", stop_at=2e9)
    ended = await edge.until_state(run, "ended")
    assert ended.outcome == "checkpointed"
    assert ended.checkpoint_at is not None
    await edge.until(lambda: "evicted_for_reservation" in edge.log(run))
    notice = json.loads(edge.log(run).splitlines()[1])
    assert notice == {"code": "evicted_for_reservation", "stop_at": 2e9}


async def test_a_later_attempt_finds_the_checkpoint_but_no_acknowledgement(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await edge.want(job("echo 41 > $GPUPOOL_CHECKPOINT_DIR/step; gpupool checkpoint done", workload="same"))
    first = await edge.until_state("run-1", "ended")
    assert first.outcome == "finished" and first.checkpoint_at is not None
    await edge.want(
        job("cat $GPUPOOL_CHECKPOINT_DIR/step; echo begun; sleep 300", generation=2, workload="same")
    )
    await edge.until(lambda: "begun" in edge.log("run-2"))
    assert edge.log("run-2").splitlines()[0] == "41"
    seen = edge.seen("run-2")
    assert seen is not None and seen.checkpoint_at is None


async def test_only_an_acknowledgement_after_the_notice_counts_as_saved(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    run = await start_running(edge, agent, "gpupool checkpoint done; echo begun; while :; do sleep 0.1; done")
    acknowledgement = agent.state / "homes" / ".checkpoints" / "workload-1" / ".done"
    os.utime(
        acknowledgement, (time.time() + 3600,) * 2
    )  # a time from a file server whose clock is an hour ahead
    await edge.change(run, verb="notice", code="drained")
    await edge.until(lambda: (agent.state / "runs" / run / "in" / "notice").exists())
    await agent.kill()
    await agent.start()  # the restarted agent must also know that this acknowledgement preceded the notice
    await edge.until(
        lambda: (seen := edge.seen(run)) is not None and (seen.checkpoint_at or 0) > time.time() + 3000
    )
    seen = edge.seen(run)
    assert seen is not None and not seen.saved
    acknowledgement.unlink()
    acknowledgement.touch()
    os.utime(acknowledgement, (time.time() - 3600,) * 2)
    await edge.until(lambda: (seen := edge.seen(run)) is not None and seen.saved)


@pytest.mark.parametrize(
    ("command", "outcome", "acknowledged"),
    [
        (
            "trap 'gpupool checkpoint done; exit 0' USR1; echo begun; while :; do sleep 0.1; done",
            "checkpointed",
            True,
        ),
        ("trap 'exit 3' USR1; echo begun; while :; do sleep 0.1; done", "failed", False),
        ("trap '' TERM; trap : USR1; echo begun; while :; do sleep 0.1; done", "killed_at_grace", False),
        (
            "trap '' TERM; trap 'gpupool checkpoint done' USR1; echo begun; while :; do sleep 0.1; done",
            "killed_at_grace",
            True,
        ),
    ],
    ids=["acknowledged", "crashed in grace", "silent", "acknowledged and ran on"],
)
async def test_the_four_reactions_to_a_notice_are_distinguished(
    edge: FakeEdge, agent: AgentProcess, command: str, outcome: str, acknowledged: bool
) -> None:
    run = await start_running(edge, agent, command)
    await edge.change(run, verb="notice", code="evicted_for_guarantee")
    if outcome == "killed_at_grace":
        notice_file = agent.state / "runs" / run / "in" / "notice"
        await edge.until(
            lambda: (
                notice_file.exists() and (seen := edge.seen(run)) is not None and seen.saved == acknowledged
            )
        )
        await edge.change(run, verb="stop", grace_seconds=0.5)
    ended = await edge.until_state(run, "ended")
    assert (ended.outcome, ended.checkpoint_at is not None) == (outcome, acknowledged)


async def test_a_notice_does_not_end_a_job_without_a_handler(edge: FakeEdge, agent: AgentProcess) -> None:
    run = await start_running(
        edge, agent, "echo begun; while :; do [ -e $GPUPOOL_NOTICE ] && echo noticed; sleep 0.05; done"
    )
    await edge.change(run, verb="notice", code="evicted_for_guarantee")
    await edge.until(lambda: "noticed" in edge.log(run))
    await edge.change(run, verb="start")
    notice = agent.state / "runs" / run / "in" / "notice"
    await edge.until(lambda: not notice.exists())
    seen = await edge.until_state(run, "running")
    assert seen.outcome == ""


async def test_a_job_is_stopped_at_its_time_limit(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job(SLEEP, max_runtime_seconds=1))
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "time_limit"
    assert ended.started_at is not None and ended.ended_at is not None
    assert 1.0 <= ended.ended_at - ended.started_at < 8


async def test_a_job_over_its_memory_limit_ends_as_out_of_memory(edge: FakeEdge, agent: AgentProcess) -> None:
    notes = " ".join(edge.observed[-1].inventory.notes)
    if not Cgroups().limits_memory:
        assert "No limits of" in notes and "memory" in notes
        return
    await edge.want(
        job("""python -c 'x = bytearray(400 << 20); x[::4096] = bytes(len(x) // 4096)'""", memory_mib=100)
    )
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("out_of_memory", 137)


async def test_jobs_survive_a_killed_agent_and_are_adopted(edge: FakeEdge, agent: AgentProcess) -> None:
    run = await start_running(edge, agent, "echo begun; for i in $(seq 100000); do echo $i; sleep 0.05; done")
    shim = agent.shim(run)
    for _ in range(3):
        await agent.kill()
        assert processes.is_alive(shim["pid"], shim["start_ticks"])
        await agent.start()
        seen = await edge.until_state(run, "running")
        assert seen.generation == 1
    assert agent.shim(run) == shim
    await edge.change(run, verb="stop", code="cancelled")
    assert (await edge.until_state(run, "ended")).outcome == "cancelled"
    await edge.until(lambda: edge.seen(run) is not None)
    lines = edge.log(run).splitlines()
    assert lines == ["begun", *(str(number) for number in range(1, len(lines)))], (
        "no byte is lost or duplicated"
    )


async def test_a_job_that_ends_while_no_agent_runs_is_reported_later(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    run = await start_running(edge, agent, "echo begun; sleep 1; exit 4")
    await agent.kill()
    await edge.until(lambda: read_json(agent.state / "runs" / run / "exit.json"))
    await agent.start()
    ended = await edge.until_state(run, "ended")
    assert (ended.outcome, ended.exit_code) == ("failed", 4)


async def test_a_job_without_an_agent_is_stopped_when_its_lease_expires(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    edge.lease_seconds = 2.0
    agent = await make_agent()
    run = await start_running(edge, agent, SLEEP)
    shim = agent.shim(run)
    lease = float((agent.state / "runs" / run / "lease").read_text())
    await agent.kill()
    lease = max(lease, float((agent.state / "runs" / run / "lease").read_text()))
    while processes.is_alive(shim["pid"], shim["start_ticks"]):
        assert boottime() < lease + 10
        await asyncio.sleep(0.02)
    assert boottime() >= lease, "the run must not end before its lease expires"
    await agent.start()
    assert (await edge.until_state(run, "ended")).outcome == "lease_lost"


async def test_a_job_is_stopped_when_its_lease_expires_because_the_server_is_silent(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    edge.lease_seconds = 2.0
    agent = await make_agent()
    run = await start_running(edge, agent, SLEEP)
    edge.silent = True
    assert (await edge.until_state(run, "ended")).outcome == "lease_lost"


async def test_old_frames_do_not_renew_a_lease(edge: FakeEdge, make_agent: MakeAgent) -> None:
    edge.lease_seconds = 2.0
    agent = await make_agent()
    run = await start_running(edge, agent, SLEEP)
    old = edge.desired()
    edge.silent = True
    for _ in range(300):  # the agent receives frames, but none of them answers one of its newer reports
        await edge.send(old)
        await asyncio.sleep(0.1)
        seen = edge.seen(run)
        if seen is not None and seen.state == "ended":
            break
    assert (await edge.until_state(run, "ended", 1.0)).outcome == "lease_lost"


async def test_a_job_whose_shim_is_killed_ends_as_host_lost(edge: FakeEdge, agent: AgentProcess) -> None:
    run = await start_running(edge, agent, "sleep 303 & echo begun; wait", units=[agent.units[0]])
    tree = processes.descendants(processes.scan(), agent.shim(run)["pid"])
    os.kill(agent.shim(run)["pid"], signal.SIGKILL)
    ended = await edge.until_state(run, "ended")
    assert ended.outcome == "host_lost"
    assert not any(processes.is_alive(process.pid, process.start_ticks) for process in tree)


async def test_a_run_of_an_earlier_boot_is_not_adopted(edge: FakeEdge, agent: AgentProcess) -> None:
    run = await start_running(edge, agent, SLEEP)
    await agent.kill()
    path = agent.state / "runs" / run / "shim.json"
    shim = json.loads(path.read_text())
    os.kill(shim["pid"], signal.SIGKILL)  # as after a reboot, another process has the pid
    other = await asyncio.create_subprocess_exec("sleep", "300")
    seen = processes.read_process(other.pid)
    assert seen is not None
    path.write_text(
        json.dumps({**shim, "pid": other.pid, "start_ticks": seen.start_ticks, "boot_id": "another"})
    )
    await agent.start()
    assert (await edge.until_state(run, "ended")).outcome == "host_lost"
    other.kill()  # the process is still alive, because the agent ends no foreign process
    assert await other.wait() == -signal.SIGKILL


async def test_a_reused_pid_is_not_adopted(edge: FakeEdge, agent: AgentProcess) -> None:
    run = await start_running(edge, agent, SLEEP)
    await agent.kill()
    path = agent.state / "runs" / run / "shim.json"
    shim = json.loads(path.read_text())
    os.kill(shim["pid"], signal.SIGKILL)
    other = processes.read_process(os.getpid())
    assert other is not None
    path.write_text(json.dumps({**shim, "pid": other.pid}))
    await agent.start()
    assert (await edge.until_state(run, "ended")).outcome == "host_lost"


async def test_a_used_generation_is_never_started_again(edge: FakeEdge, agent: AgentProcess) -> None:
    unit = agent.units[0]
    await edge.want(job("exit 0", units=[unit]))
    await edge.until_state("run-1", "ended")
    await edge.drop("run-1")
    await edge.until(lambda: edge.seen("run-1") is None)
    await agent.kill()
    await agent.start()
    await edge.want(job("touch ~/started-again", units=[unit]))  # the same order again, as in a delayed frame
    again = await edge.until_state("run-1", "ended")
    assert again.outcome == "start_failed" and "generation 1" in again.step
    assert not (agent.state / "homes" / "ada" / "started-again").exists()


async def test_a_lower_generation_of_a_unit_is_rejected(edge: FakeEdge, agent: AgentProcess) -> None:
    unit = agent.units[0]
    await edge.want(job("exit 0", generation=7, units=[unit]))
    await edge.until_state("run-7", "ended")
    await edge.want(job("exit 0", generation=5, units=[unit]))
    refused = await edge.until_state("run-5", "ended")
    assert refused.outcome == "start_failed" and "not above 7" in refused.step


async def test_a_run_stopped_before_its_start_is_never_started(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job("touch ~/started", verb="stop", code="cancelled"))
    assert (await edge.until_state("run-1", "ended")).outcome == "cancelled"
    await edge.change("run-1", verb="start")
    await agent.after_steps("desired", 2)
    assert (await edge.until_state("run-1", "ended")).outcome == "cancelled"
    assert not (agent.state / "homes" / "ada" / "started").exists()


async def test_a_start_waits_for_the_end_of_the_units_last_holder(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    unit = agent.units[0]
    stubborn = "trap 'sleep 1; echo gone; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    run = await start_running(edge, agent, stubborn, units=[unit])
    await edge.change(run, verb="stop", code="evicted_for_guarantee")
    await edge.want(job("exit 0", generation=2, units=[unit]))
    waiting = await edge.until_state("run-2", "starting")
    # The start waits for the GPU lock, or for NVML to report that no process uses the GPU.
    assert waiting.step.startswith("waiting")
    ended = await edge.until_state("run-2", "ended")
    first = edge.seen(run)
    assert first is not None and first.ended_at is not None
    assert (
        ended.outcome == "finished"
        and ended.started_at is not None
        and ended.started_at >= first.ended_at - 0.2
    )


async def test_slices_of_one_gpu_run_in_parallel(edge: FakeEdge, agent: AgentProcess) -> None:
    _, one, two = agent.units
    await start_running(edge, agent, SLEEP, units=[one])
    await start_running(edge, agent, SLEEP, generation=2, units=[two])
    first = await edge.until_state("run-1", "running")
    assert first.state == "running"


async def test_a_second_agent_on_the_same_machine_waits_for_the_same_gpu(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: os.PathLike[str]
) -> None:
    shared = os.path.join(tmp_path, "locks")
    agent = await make_agent("--locks", shared)
    run = await start_running(edge, agent, SLEEP, units=[agent.units[0]])
    await agent.kill()
    wanted = edge.wanted.pop(run)
    other = await make_agent("--locks", shared, state="other")
    await edge.want(job("exit 0", generation=2, units=wanted.unit_uuids))
    assert "waiting until" in (await edge.until_state("run-2", "starting")).step
    await other.after_steps("shim_poll", 3)
    assert (await edge.until_state("run-2", "starting")).state == "starting"
    assert other.process is not None
    os.kill(processes.descendants(processes.scan(), agent.shim(run)["pid"])[0].pid, signal.SIGKILL)
    assert (await edge.until_state("run-2", "ended")).outcome == "finished"


async def test_a_run_missing_from_one_frame_continues_but_a_dropped_run_stops(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    run = await start_running(edge, agent, SLEEP)
    wanted = edge.wanted.pop(run)
    await edge.push()
    await edge.want(wanted)
    await agent.after_steps("desired", 3)
    assert (await edge.until_state(run, "running")).state == "running"
    await edge.drop(run)
    await edge.until(lambda: edge.seen(run) is None or edge.seen(run).state == "ended")  # type: ignore[union-attr]
    await edge.until(lambda: edge.seen(run) is None)
    assert not (agent.state / "runs" / run).exists()


async def test_a_lost_connection_stops_no_run_and_the_agent_reconnects(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    run = await start_running(edge, agent, "echo begun; sleep 1; echo later; sleep 300")
    port = int(edge.url.rsplit(":", 1)[1])
    await edge.stop()
    log = agent.state / "runs" / run / "log"
    await edge.until(lambda: any("later" in path.read_text() for path in log.iterdir()))
    await agent.after_steps("session", 1)
    await edge.start(port)
    heard = len(edge.observed)
    await edge.until(lambda: len(edge.observed) > heard)
    assert (await edge.until_state(run, "running")).state == "running"
    await edge.until(lambda: edge.log(run) == "begun\nlater\n")


@pytest.mark.parametrize(
    ("fields", "words"),
    first_cases(
        3,
        [
            ({"units": ["GPU-elsewhere"]}, "unit_uuids: 'GPU-elsewhere'"),
            ({"owner": "../root"}, "owner: '../root'"),
            ({"owner": ".checkpoints"}, "owner: '.checkpoints'"),
            ({"workload": "../../etc"}, "workload: '../../etc'"),
            ({"environment": {"A B": "1"}}, "environment: 'A B'"),
            ({"kind": "virtual machine"}, "kind: 'virtual machine'"),
            ({"command": " "}, "command: empty"),
            ({"memory_mib": -1}, "memory_mib: -1"),
        ],
    ),
)
async def test_an_invalid_run_is_rejected_with_field_and_value(
    edge: FakeEdge, agent: AgentProcess, fields: dict[str, object], words: str
) -> None:
    await edge.want(job(**{"command": "exit 0", **fields}))  # type: ignore[arg-type]
    refused = await edge.until_state("run-1", "ended")
    assert refused.outcome == "start_failed" and words in refused.step


async def test_a_failed_start_reports_the_reason(edge: FakeEdge, agent: AgentProcess) -> None:
    (agent.state / "homes").mkdir(exist_ok=True)
    (agent.state / "homes" / "ada").write_text("a file where a home should be")
    await edge.want(job("exit 0"))
    refused = await edge.until_state("run-1", "ended")
    assert refused.outcome == "start_failed" and "could not be started" in refused.step


@pytest.mark.long
async def test_the_option_on_exit_stop_lets_workloads_save_and_ends_them_as_drained(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    agent = await make_agent("--on-exit", "stop")
    saving = "trap 'gpupool checkpoint done' USR1; echo begun; while :; do sleep 0.1; done"
    run = await start_running(edge, agent, saving)
    other = await start_running(edge, agent, SLEEP, generation=2)
    shims = [agent.shim(run), agent.shim(other)]
    assert await agent.end() == 0
    assert not any(processes.is_alive(shim["pid"], shim["start_ticks"]) for shim in shims)
    await agent.start()
    for name, saved in ((run, True), (other, False)):
        ended = await edge.until_state(name, "ended")
        assert (ended.outcome, ended.checkpoint_at is not None) == ("drained", saved)


async def test_a_host_without_bubblewrap_reports_no_isolation(
    edge: FakeEdge, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    await make_agent(launcher="auto")
    inventory = edge.observed[-1].inventory
    assert inventory.isolation == "plain"
    assert any(
        note.startswith("No isolation: ") and "bwrap is not installed" in note for note in inventory.notes
    )
    refused = await make_agent(launcher="bubblewrap", state="other", joined=False)
    assert refused.process is not None and await refused.process.wait() == 1


@pytest.mark.long
async def test_the_log_of_a_verbose_job_is_bounded(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job("head -c 20000000 /dev/zero | tr '\\0' 'x'; echo; echo last"))
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "finished"
    kept = sum(path.stat().st_size for path in (agent.state / "runs" / "run-1" / "log").iterdir())
    assert kept < 10 << 20
    await edge.until(lambda: edge.log("run-1").endswith("last\n"))


async def test_a_run_is_kept_until_its_whole_log_is_sent(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job("head -c 4000000 /dev/zero | tr '\\0' 'x'; echo; echo last"))
    await edge.until_state("run-1", "ended")
    await edge.drop("run-1")
    await edge.until(lambda: not (agent.state / "runs" / "run-1").exists())
    assert len(edge.log("run-1")) == 4_000_006 and edge.log("run-1").endswith("last\n")


async def test_binary_output_is_sent_as_text_of_the_same_length(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job(r"printf 'a\377\0\303\244'"))
    await edge.until_state("run-1", "ended")
    await edge.until(lambda: edge.log("run-1"))
    assert edge.log("run-1") == "a??ä"


async def test_the_shim_uses_little_memory(edge: FakeEdge, agent: AgentProcess) -> None:
    run = await start_running(edge, agent, SLEEP)
    status = Path(f"/proc/{agent.shim(run)['pid']}/status").read_text()
    resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert resident < 15 * 1024
