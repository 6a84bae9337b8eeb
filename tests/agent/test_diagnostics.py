"""Test GPU diagnostics with a fake CUDA driver library."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from agent import cli_arguments
from agent.diagnostics import runner
from agent.diagnostics.dcgm import parse_dcgm_results
from agent.diagnostics.ptx_kernels import PTX_MODULE
from agent.diagnostics.runner import DiagnosticRunner
from agent.gpu.conditions import Condition
from agent.gpu.reader import GpuInventory
from agent.gpu.simulated_faults import plant_fault
from agent.host import gpu_locks, processes
from agent.host.durable_files import write_json
from agent.host.gpu_locks import SlotClaim
from agent.host.state import StateFolder
from agent.protocol import DiagnosticSeen, DiagnosticWanted, GpuSeen, UnitSeen
from tests.agent.conftest import MakeAgent, job
from tests.agent.fake_edge import FakeEdge
from tests.seeds import first_cases
from tests.waiting import until

SOURCE = Path(__file__).with_name("fake_cuda.c")
WHOLE = GpuSeen(0, "GPU-0", "H100-80GB", 81559, units=[UnitSeen("GPU-0", "", 0, 840, 81559)])


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a freshly compiled libcuda.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail("a C compiler is missing, and in CI nothing may be skipped", pytrace=False)
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("cuda")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(folder / "libcuda.so.1"),
    ]
    subprocess.run([*command, str(SOURCE)], check=True)
    return folder


@pytest.fixture
def faults(cuda_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file through which a test sets the faults of the fake library."""
    path = tmp_path / "says"
    monkeypatch.setenv("FAKE_CUDA", str(path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cuda_library))
    return path


@pytest.fixture
async def make_runner(tmp_path: Path) -> AsyncIterator[Callable[..., DiagnosticRunner]]:
    """Return a function that creates the DiagnosticRunner of a host with one GPU.

    The fixture ends the runners' processes after the test.
    """
    runners: list[DiagnosticRunner] = []

    def item(
        gpu: GpuSeen = WHOLE,
        *,
        simulated: bool = False,
        condition: Condition | None = None,
        commands: dict[str, list[str]] | None = None,
    ) -> DiagnosticRunner:
        async def conditions() -> dict[str, Condition]:
            return {gpu.uuid: condition or {}}

        state, hardware = StateFolder(tmp_path / "state"), GpuInventory([gpu])
        folder = tmp_path / "locks"
        runners.append(
            DiagnosticRunner(
                state, hardware, folder, simulated=simulated, conditions=conditions, commands=commands
            )
        )
        return runners[-1]

    yield item
    for diagnostics in runners:
        await diagnostics.close()


def wanted(name: str = "d1", deadline: float = 60.0, tool: str = "own") -> DiagnosticWanted:
    return DiagnosticWanted(name, "GPU-0", tool, deadline)


async def wait_for_end(
    diagnostics: DiagnosticRunner, *, within: float = 60.0, of: str = ""
) -> DiagnosticSeen:
    """Wait until a diagnostic ends and return its state.

    `of` is the id of the diagnostic. Without `of`, wait for the first diagnostic in the list, which may be an
    earlier one.
    """

    def ended() -> list[DiagnosticSeen]:
        seen = [item for item in diagnostics.seen() if of in ("", item.diagnostic)]
        return [item for item in seen[:1] if item.state in ("passed", "failed", "stopped")]

    await until(ended, within)
    return ended()[0]


async def wait_until_running(diagnostics: DiagnosticRunner) -> None:
    await until(lambda: diagnostics.seen() and diagnostics.seen()[0].state == "running")


async def test_a_healthy_gpu_passes_and_its_numbers_are_reported(
    make_runner: Callable[..., DiagnosticRunner], faults: Path
) -> None:
    diagnostics = make_runner()
    diagnostics.want([wanted()])
    seen = await wait_for_end(diagnostics)
    assert (seen.state, seen.tool, seen.detail) == ("passed", "own", "")
    checks = {check.name: check for check in seen.checks}
    assert list(checks) == ["driver", "memory", "bandwidth", "arithmetic"]
    assert all(check.passed for check in seen.checks)
    assert checks["memory"].numbers["looked_at_mib"] == 84 and checks["memory"].numbers["wrong_words"] == 0
    assert checks["bandwidth"].numbers["within_gb_s"] > 0
    assert checks["arithmetic"].numbers["wrong_rows"] == 0
    assert seen.started_at and seen.ended_at and seen.ended_at >= seen.started_at


@pytest.mark.parametrize(
    ("words", "check", "detail"),
    first_cases(
        3,
        [
            (
                "flip",
                "memory",
                "5 words differ; pattern zeros, piece 0: word 777 is 0x00000020 and should be 0x00000000",
            ),
            ("wrong", "arithmetic", "row 5 differs from the CPU's result"),
            ("unsteady", "arithmetic", "a repeated product differs: word 7 is"),
            ("slow", "bandwidth", "GB/s is below 40% of the theoretical 32000.0"),
            ("fail set 214", "driver", "cuMemsetD32_v2: uncorrectable ECC error encountered (214)"),
            ("fail product 719", "driver", "cuLaunchKernel: something failed (719)"),
        ],
    ),
)
async def test_a_faulty_gpu_fails_and_the_failed_check_is_reported_with_its_detail(
    make_runner: Callable[..., DiagnosticRunner], faults: Path, words: str, check: str, detail: str
) -> None:
    faults.write_text(words)
    diagnostics = make_runner()
    diagnostics.want([wanted()])
    seen = await wait_for_end(diagnostics)
    assert seen.state == "failed"
    failed = [item for item in seen.checks if item.passed is False]
    assert [item.name for item in failed] == [check]
    assert detail in failed[0].detail and detail in seen.detail


@pytest.mark.parametrize("place", ["init", "check", "wait"])
async def test_a_diagnostic_that_hangs_fails_at_its_deadline(
    make_runner: Callable[..., DiagnosticRunner], faults: Path, tmp_path: Path, place: str
) -> None:
    faults.write_text(f"hang {place}")
    diagnostics = make_runner()
    diagnostics.want([wanted(deadline=2.0)])
    seen = await wait_for_end(diagnostics, within=60)
    assert seen.state == "failed" and "no answer within 2 s" in seen.detail
    gpu_locks.lock_slots(tmp_path / "locks", [SlotClaim("GPU-0", 0, 840)]).close()  # the lock is free again


async def test_an_incompatible_driver_is_no_fault_of_the_gpu(
    make_runner: Callable[..., DiagnosticRunner], faults: Path
) -> None:
    faults.write_text("fail init 803")
    diagnostics = make_runner()
    diagnostics.want([wanted()])
    seen = await wait_for_end(diagnostics)
    assert (seen.state, "cuInit" in seen.detail) == ("stopped", True)


async def test_memory_in_use_by_others_makes_a_diagnostic_inconclusive(
    make_runner: Callable[..., DiagnosticRunner], faults: Path
) -> None:
    faults.write_text("full")
    diagnostics = make_runner()
    diagnostics.want([wanted()])
    seen = await wait_for_end(diagnostics)
    assert (seen.state, seen.detail) == ("stopped", "another process uses most of its memory")


async def test_a_gpu_whose_driver_asks_for_a_reset_fails(
    make_runner: Callable[..., DiagnosticRunner], faults: Path
) -> None:
    diagnostics = make_runner(condition={"recovery": 1, "lost": False})
    diagnostics.want([wanted()])
    seen = await wait_for_end(diagnostics)
    assert (seen.state, seen.detail) == ("failed", "recovery: the driver asks for gpu reset")


async def test_a_diagnostic_holds_the_gpus_lock_and_yields_to_workloads(
    make_runner: Callable[..., DiagnosticRunner],
    faults: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults.write_text("hang check")  # the diagnostic takes longer than the test
    diagnostics = make_runner()
    diagnostics.want([wanted()])
    await wait_until_running(diagnostics)
    with pytest.raises(gpu_locks.SlotsLocked):
        gpu_locks.lock_slots(tmp_path / "locks", [SlotClaim("GPU-0", 0, 840)])
    stopped: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_send_signal", lambda pid, number: stopped.append(pid))
        diagnostics.yield_gpus(["GPU-other"])
        assert stopped == []
    diagnostics.yield_gpus(["GPU-0"])
    faults.unlink()  # the fault is removed, but the process has already stopped
    seen = await wait_for_end(diagnostics)
    assert (seen.state, seen.detail) == ("stopped", "it was cancelled: a workload needs the GPU")
    gpu_locks.lock_slots(tmp_path / "locks", [SlotClaim("GPU-0", 0, 840)]).close()


async def test_a_diagnostic_waits_for_the_end_of_a_workload(
    make_runner: Callable[..., DiagnosticRunner],
    faults: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = gpu_locks.lock_slots(tmp_path / "locks", [SlotClaim("GPU-0", 0, 120)])
    tries: list[Path] = []
    lock_slots = gpu_locks.lock_slots

    def try_to_lock(folder: Path, claims: list[SlotClaim]) -> gpu_locks.HeldLocks:
        tries.append(folder)
        return lock_slots(folder, claims)

    monkeypatch.setattr(gpu_locks, "lock_slots", try_to_lock)
    diagnostics = make_runner()
    diagnostics.want([wanted()])
    await until(lambda: len(tries) >= 4)
    assert diagnostics.seen()[0].state == "wanted"
    held.close()
    assert (await wait_for_end(diagnostics)).state == "passed"


async def test_each_mig_instance_of_a_gpu_is_checked(
    make_runner: Callable[..., DiagnosticRunner], faults: Path
) -> None:
    halves = [UnitSeen("MIG-a", "3g.40gb", 0, 360, 40000), UnitSeen("MIG-b", "3g.40gb", 360, 360, 40000)]
    diagnostics = make_runner(GpuSeen(0, "GPU-0", "H100-80GB", 81559, units=halves))
    diagnostics.want([wanted(tool="auto")])
    seen = await wait_for_end(diagnostics)
    assert seen.state == "passed"
    assert [check.name for check in seen.checks].count("memory") == 2


async def test_a_result_is_reported_until_the_server_drops_the_request(
    make_runner: Callable[..., DiagnosticRunner], tmp_path: Path
) -> None:
    first = make_runner(simulated=True)
    first.want([wanted()])
    assert (await wait_for_end(first)).state == "passed"
    second = make_runner(simulated=True)
    assert [seen.state for seen in second.seen()] == ["passed"]
    second.want([wanted()])
    assert [seen.state for seen in second.seen()] == ["passed"]
    second.want([])
    assert second.seen() == []
    assert not list((tmp_path / "state" / "diagnostics").iterdir())


async def test_a_diagnostic_of_an_earlier_agent_is_reported_as_stopped(
    make_runner: Callable[..., DiagnosticRunner], faults: Path
) -> None:
    faults.write_text("hang check")
    first = make_runner()
    first.want([wanted(deadline=3.0)])
    await wait_until_running(first)
    for task in list(first._tasks.values()):
        task.cancel()  # as if the agent was killed: the process of the diagnostic continues
    second = make_runner()
    second.want([wanted(deadline=3.0)])
    seen = await wait_for_end(second)
    assert (seen.state, seen.detail) == ("stopped", "its agent was restarted meanwhile")


async def test_a_simulated_gpu_measures_nothing_and_reports_planted_faults(
    make_runner: Callable[..., DiagnosticRunner], tmp_path: Path
) -> None:
    diagnostics = make_runner(simulated=True)
    diagnostics.want([wanted()])
    seen = await wait_for_end(diagnostics)
    assert (seen.state, seen.tool) == ("passed", "simulated")
    assert {check.detail for check in seen.checks} == {"simulated: nothing was measured"}
    write_json(tmp_path / "state" / "simulated.json", ["GPU-a"])
    plant_fault(tmp_path / "state", 0, "memory")
    diagnostics.want([])
    diagnostics.want([wanted("d2")])
    seen = await wait_for_end(diagnostics, of="d2")
    assert (seen.state, seen.detail) == ("failed", "memory: planted on a simulated GPU")


# DCGM

DCGM = {
    "DCGM Diagnostic": {
        "test_categories": [
            {"category": "Deployment", "tests": [{"name": "software", "results": [{"status": "Pass"}]}]},
            {
                "category": "Hardware",
                "tests": [
                    {
                        "name": "memory",
                        "results": [
                            {
                                "entity_group": "GPU",
                                "entity_id": 0,
                                "status": "Fail",
                                "warnings": [{"warning": "Row 7"}],
                            }
                        ],
                        "test_summary": {"status": "Fail"},
                    },
                    {"name": "pcie", "results": [{"status": "Skip", "info": "not run"}]},
                ],
            },
        ]
    }
}


def test_dcgm_results_are_found_in_nested_json() -> None:
    found = list(parse_dcgm_results("a line before\n" + json.dumps(DCGM)))
    assert found == [("software", "Pass", ""), ("memory", "Fail", "Row 7"), ("pcie", "Skip", "not run")]
    assert (
        list(parse_dcgm_results("no JSON"))
        == list(parse_dcgm_results('{"half":'))
        == list(parse_dcgm_results("[]"))
        == []
    )


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that puts a `dcgmi` script into PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def install(script: str) -> None:
        (folder / "dcgmi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "dcgmi").chmod(0o755)

    yield install


async def test_dcgm_is_used_if_the_host_has_it(
    make_runner: Callable[..., DiagnosticRunner], dcgmi: Callable[[str], None]
) -> None:
    dcgmi(f"echo \"$@\" >&2; cat <<'END'\n{json.dumps(DCGM)}\nEND\nexit 226")
    diagnostics = make_runner()
    diagnostics.want([wanted(tool="auto")])
    seen = await wait_for_end(diagnostics)
    assert (seen.state, seen.tool, seen.detail) == ("failed", "dcgm", "memory: Row 7")
    assert [(check.name, check.passed) for check in seen.checks] == [
        ("software", True),
        ("memory", False),
        ("pcie", None),
    ]


async def test_the_built_in_diagnostic_runs_if_dcgm_is_unavailable(
    make_runner: Callable[..., DiagnosticRunner], dcgmi: Callable[[str], None], faults: Path
) -> None:
    dcgmi("echo 'Unable to connect to the host engine' >&2; exit 255")
    diagnostics = make_runner()
    diagnostics.want([wanted(tool="auto")])
    seen = await wait_for_end(diagnostics)
    assert (seen.state, seen.tool) == ("passed", "own")
    assert seen.checks[0].passed is None and "Unable to connect" in seen.checks[0].detail
    diagnostics.want([])
    diagnostics.want([wanted("d2", tool="dcgm")])
    assert (await wait_for_end(diagnostics, of="d2")).state == "stopped", (
        "a request for DCGM runs no other tool"
    )


async def test_dcgm_is_ended_at_the_deadline(
    make_runner: Callable[..., DiagnosticRunner], dcgmi: Callable[[str], None]
) -> None:
    dcgmi("exec sleep 60")
    diagnostics = make_runner()
    diagnostics.want([wanted(tool="auto", deadline=6.0)])
    seen = await wait_for_end(diagnostics, within=15)
    assert (seen.state, seen.detail) == ("failed", "dcgm: it did not end in time")


# In a running agent


async def test_an_agent_stops_a_diagnostic_when_a_run_needs_the_gpu(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    await make_agent()
    gpu = edge.observed[-1].inventory.gpus[0].uuid
    edge.diagnostics = [DiagnosticWanted("d1", gpu)]
    await edge.push()
    await edge.until(
        lambda: bool(edge.observed[-1].diagnostics) and edge.observed[-1].diagnostics[0].state == "running"
    )
    await edge.want(job("sleep 0.2", units=[gpu]))
    await edge.until_state("run-1", "ended")
    await edge.until(lambda: edge.observed[-1].diagnostics[0].state == "stopped")
    assert edge.observed[-1].diagnostics[0].detail == "it was cancelled: a workload needs the GPU"
    edge.diagnostics = [DiagnosticWanted("d2", gpu)]
    await edge.push()
    await edge.until(lambda: [item.state for item in edge.observed[-1].diagnostics] == ["passed"])
    assert edge.observed[-1].diagnostics[0].tool == "simulated"


@pytest.mark.skipif(
    shutil.which("ptxas") is None, reason="needs ptxas, NVIDIA's assembler, which compiles as the driver does"
)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_the_ptx_kernels_compile_with_nvidias_assembler(tmp_path: Path, architecture: str) -> None:
    source = tmp_path / "kernels.ptx"
    source.write_text(PTX_MODULE)
    command = ["ptxas", f"-arch={architecture}", str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes().startswith(b"\x7fELF")


# Commands of the operator


def operator_command(tmp_path: Path, lines: str) -> list[str]:
    path = tmp_path / "burn"
    path.write_text(f"#!/bin/bash\n{lines}\n")
    path.chmod(0o700)
    return [str(path), "an argument"]


@pytest.mark.parametrize(
    ("lines", "state", "detail"),
    [
        (
            '[ "$1" = "an argument" ] && [ "$CUDA_VISIBLE_DEVICES" = GPU-0 ] && [ "$GPUPOOL_GPU_INDEX" = 0 ]',
            "passed",
            "",
        ),
        ("echo too hot; exit 3", "failed", "burn: too hot"),
        ("kill -SEGV $$", "failed", "burn"),
    ],
)
async def test_an_operators_command_decides_by_its_exit_status(
    make_runner: Callable[..., DiagnosticRunner], tmp_path: Path, lines: str, state: str, detail: str
) -> None:
    diagnostics = make_runner(commands={"burn": operator_command(tmp_path, lines)})
    diagnostics.want([wanted(tool="burn")])
    seen = await wait_for_end(diagnostics)
    assert (seen.state, seen.tool, seen.detail) == (state, "burn", detail)


async def test_an_operators_command_fails_at_its_deadline_and_is_killed(
    make_runner: Callable[..., DiagnosticRunner], tmp_path: Path
) -> None:
    lines = f"sleep 300 & echo $! >> {tmp_path}/pids; setsid sleep 300 & echo $! >> {tmp_path}/pids; wait"
    diagnostics = make_runner(commands={"burn": operator_command(tmp_path, lines)})
    diagnostics.want([wanted(tool="burn", deadline=6.0)])
    seen = await wait_for_end(diagnostics, within=20)
    assert (seen.state, seen.detail) == ("failed", "burn: it did not end in time")
    started = (tmp_path / "pids").read_text().split()
    assert len(started) == 2 and not any(map(processes.read_process, started))


async def test_an_unknown_diagnostic_name_runs_nothing(make_runner: Callable[..., DiagnosticRunner]) -> None:
    diagnostics = make_runner()
    diagnostics.want([wanted(tool="rm -rf /")])
    seen = await wait_for_end(diagnostics)
    assert (seen.state, seen.detail) == ("stopped", "this host has no diagnostic of the name 'rm -rf /'")


def test_valid_and_invalid_diagnostic_arguments(tmp_path: Path) -> None:
    good = operator_command(tmp_path, "true")[0]
    assert cli_arguments.diagnostic_argument(f"burn={good} 60 'two words'") == (
        "burn",
        [good, "60", "two words"],
    )
    for bad in (
        "burn",
        "burn=",
        f"auto={good}",
        f"9={good}",
        "burn=relative",
        "burn=/nowhere",
        f"burn={good} 'open",
        f"={good}",
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            cli_arguments.diagnostic_argument(bad)
    os.chmod(good, 0o777)
    with pytest.raises(argparse.ArgumentTypeError, match="can be changed by others"):
        cli_arguments.diagnostic_argument(f"burn={good}")


async def test_a_diagnostic_that_could_not_be_stored_still_yields_the_gpu(
    make_runner: Callable[..., DiagnosticRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agent.diagnostics.runner.write_json", full)
    diagnostics = make_runner(commands={"burn": ["/bin/sleep", "60"]})
    diagnostics.want([wanted(tool="burn")])
    await wait_until_running(diagnostics)
    diagnostics.yield_gpus(["GPU-0"])
    assert (await wait_for_end(diagnostics, within=10)).state == "stopped"
    gpu_locks.lock_slots(tmp_path / "locks", [SlotClaim("GPU-0", 0, 840)]).close()
