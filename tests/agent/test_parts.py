"""Test parts of the agent without an agent process.

The parts are locks, generations, the spool, logs, simulated readings and arguments.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from agent.cli import default_locks_folder, isolation_downgrade, main
from agent.cli_arguments import build_parser
from agent.gpu import kernel_log
from agent.gpu.handover import HandoverCheck
from agent.gpu.reader import UnitUse
from agent.gpu.simulated_models import SimulationError, parse_mig, parse_models
from agent.gpu.simulated_reader import SimulatedGpuReader
from agent.host import gpu_locks
from agent.host.durable_files import StateFolderError, write_json
from agent.host.gpu_locks import SlotClaim, SlotsLocked
from agent.host.state import Generations, StateFolder
from agent.isolation.team_users import TeamUserError, TeamUsers, UidRange
from agent.isolation.workspace_socket import SocketMissing, socket_path
from agent.notebook import activity_probe
from agent.protocol import FRAMES_UP, SampleRow, decode, encode
from agent.runs import log_reader
from agent.server.sample_spool import IMPOSSIBLE_READING, SampleSpool
from agent.shim.supervisor import WorkloadSupervisor
from agent.storage import file_trees
from tests.agent.conftest import ROOT

# Locks


def test_a_whole_gpu_has_one_holder(tmp_path: Path) -> None:
    held = gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 0, 840)])
    with pytest.raises(SlotsLocked, match="GPU-a"):
        gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 0, 840)])
    held.close()
    gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 0, 840)]).close()


def test_slices_share_a_gpu_but_no_slot_and_exclude_a_holder_of_the_whole_gpu(tmp_path: Path) -> None:
    one = gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 0, 120)])
    two = gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 120, 120)])
    for claim in (SlotClaim("GPU-a", 0, 120), SlotClaim("GPU-a", 0, 840)):
        with pytest.raises(SlotsLocked):
            gpu_locks.lock_slots(tmp_path, [claim])
    one.close()
    two.close()
    gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 0, 840)]).close()


def test_locks_are_taken_all_together_or_not_at_all(tmp_path: Path) -> None:
    held = gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-b", 0, 840)])
    with pytest.raises(SlotsLocked):
        gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 0, 840), SlotClaim("GPU-b", 0, 840)])
    gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 0, 840)]).close()
    held.close()


def test_a_lock_lasts_until_the_last_inheriting_process_ends(tmp_path: Path) -> None:
    held = gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 0, 840)])
    child = subprocess.Popen(["sleep", "300"], pass_fds=held.descriptors)
    held.close()
    with pytest.raises(SlotsLocked):
        gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 0, 840)])
    child.kill()
    child.wait()
    gpu_locks.lock_slots(tmp_path, [SlotClaim("GPU-a", 0, 840)]).close()


# Generations and state


def test_a_generation_is_used_once_and_grows_on_each_unit_even_after_a_restart(tmp_path: Path) -> None:
    generations = Generations(tmp_path / "g.json")
    assert generations.refusal(5, ["a"]) == ""
    generations.use(5, ["a"])
    generations.use(6, [])
    again = Generations(tmp_path / "g.json")
    assert "not above 5" in again.refusal(4, ["b", "a"])
    assert "used before" in again.refusal(5, ["b"])
    assert "used before" in again.refusal(6, [])
    assert again.refusal(4, ["b"]) == ""


def test_a_damaged_state_file_is_an_error_and_not_an_empty_state(tmp_path: Path) -> None:
    """Check that a damaged file raises an error.

    If a damaged file counted as empty, an agent could obey an outdated order to start a run, a host would get
    a new identity, or a team would get files of another team.
    """
    Generations(tmp_path / "g.json").use(7, ["GPU-a"])
    (tmp_path / "g.json").write_text((tmp_path / "g.json").read_text()[:-3])
    assert "g.json is damaged" in Generations(tmp_path / "g.json").refusal(8, ["GPU-b"])
    (tmp_path / "before.json").write_text('{"units": ')
    assert "before.json is damaged" in HandoverCheck(
        tmp_path / "before.json", "this boot"
    ).describe_leftovers(["GPU-a"], [], [])
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "identity.json").write_text("")
    with pytest.raises(StateFolderError, match=r"identity\.json is damaged"):
        StateFolder(tmp_path / "state")
    tenants = TeamUsers(tmp_path / "homes", UidRange())
    tenants.homes.mkdir()
    assert tenants.user("team-7", 70_007) == 70_007
    teams = tenants.homes / ".volumes" / "teams.json"
    teams.write_text(teams.read_text()[:-1])
    with pytest.raises(TeamUserError, match="damaged"):
        tenants.user("team-9", 70_007)
    assert "team-9" not in teams.read_text()


def test_an_agent_of_a_user_does_not_run_next_to_the_agent_of_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_locks_folder(tmp_path) == tmp_path / f"gpupool-{os.getuid()}"
    (tmp_path / "gpupool-0").mkdir(exist_ok=True)
    if os.getuid() == 0:
        monkeypatch.setattr("os.getuid", lambda: 70_001)
        with pytest.raises(RuntimeError, match="gpupool-0, which an agent of another user cannot lock"):
            default_locks_folder(tmp_path)


def test_a_lock_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"gpupool-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RuntimeError, match="is owned by another user"):
        default_locks_folder(tmp_path)


def test_the_agent_does_not_downgrade_isolation_unless_asked(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "launcher"
    assert isolation_downgrade(kept, "auto", "plain", []) == ""
    assert isolation_downgrade(kept, "auto", "bubblewrap", []) == ""
    note = isolation_downgrade(kept, "auto", "plain", ["No memory for a probe."])
    assert "ran in sandboxes before. Now: No memory for a probe." in note and "--launcher plain" in note
    assert isolation_downgrade(kept, "plain", "plain", []) == ""
    assert isolation_downgrade(kept, "auto", "plain", []) == "", "the operator asked for plain"


@pytest.mark.parametrize(
    "problem", [BlockingIOError(11, "no more processes"), RuntimeError("can't start new thread")]
)
def test_the_trash_is_emptied_after_a_failed_process_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    trash = file_trees.Trash(tmp_path / "trash")
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    while any(thread.name == "trash" for thread in threading.enumerate()):
        time.sleep(0.01)
    with monkeypatch.context() as patched:
        place = (
            (threading.Thread, "start") if isinstance(problem, RuntimeError) else (file_trees, "_run_program")
        )
        failed = threading.Event()

        def fails(*_: object) -> None:
            failed.set()
            raise problem

        patched.setattr(*place, fails)
        trash.throw(tmp_path / "first")
        assert failed.wait(5)
        while any(thread.name == "trash" for thread in threading.enumerate()):
            time.sleep(0.01)
    trash.throw(tmp_path / "second")
    until = time.monotonic() + 10
    while os.listdir(trash.folder) and time.monotonic() < until:
        time.sleep(0.01)
    assert os.listdir(trash.folder) == []


def test_one_worker_empties_the_trash_for_any_number_of_ended_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, removed = threading.Semaphore(0), file_trees._remove_folders
    seen: list[int] = []

    def slowly(paths: list[str]) -> None:
        seen.append(sum(thread.name == "trash" for thread in threading.enumerate()))
        at_work.acquire()
        removed(paths)

    monkeypatch.setattr(file_trees, "_remove_folders", slowly)
    trash = file_trees.Trash(tmp_path / "trash")
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        trash.throw(tmp_path / str(number))
    for _ in range(20):
        at_work.release()
    until = time.monotonic() + 10
    while os.listdir(trash.folder) and time.monotonic() < until:
        time.sleep(0.02)
    assert os.listdir(trash.folder) == [] and set(seen) == {1} and len(seen) <= 3


def test_only_a_file_acknowledges_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"checkpoint_dir": str(tmp_path / "kept")}))
    (tmp_path / "kept").mkdir()
    shim, place = WorkloadSupervisor(str(tmp_path)), tmp_path / "kept" / ".done"
    place.mkdir()
    assert shim.acknowledgement() is None
    place.rmdir()
    place.symlink_to(tmp_path / "spec.json")
    assert shim.acknowledgement() is None
    place.unlink()
    place.touch()
    assert shim.acknowledgement() is not None


def test_an_unkillable_process_is_polled_less_and_less_often(tmp_path: Path) -> None:
    """Check that the pauses grow. Each poll reads all of /proc, which takes much CPU time."""
    shim = WorkloadSupervisor(str(tmp_path))
    shim.killed = True
    waits = [shim.wait() for _ in range(30)]
    assert (waits[0], waits[-1]) == (0.1, 1.0) and sum(waits) > 10


def test_one_agent_per_state_folder(tmp_path: Path) -> None:
    first = StateFolder(tmp_path / "state")
    with pytest.raises(StateFolderError, match="another agent"):
        StateFolder(tmp_path / "state")
    assert (first.folder.stat().st_mode & 0o777) == 0o700


# Sample spool


def rows(number: int) -> list[SampleRow]:
    return [SampleRow(unit="u", ts=float(number))]


def test_batches_are_numbered_without_gaps_and_survive_a_restart(tmp_path: Path) -> None:
    spool = SampleSpool(tmp_path)
    assert [spool.add(rows(number)) for number in (1, 2, 3)] == [1, 2, 3]
    again = SampleSpool(tmp_path)
    assert again.pending(0) == [1, 2, 3]
    assert again.read(2).rows == rows(2)
    assert again.add(rows(4)) == 4


def test_readings_that_no_frame_can_carry_are_replaced_and_the_batch_is_kept(tmp_path: Path) -> None:
    spool = SampleSpool(tmp_path)
    wrong = SampleRow("u", 1.0, power_w=math.nan, temperature_c=math.inf, energy_mj=2**63, utilisation=50.0)
    number = spool.add([wrong, SampleRow("u", 2.0, power_w=2e18, utilisation=60.0)])
    first, second = spool.read(number).rows
    assert (first.power_w, first.temperature_c, first.energy_mj) == (IMPOSSIBLE_READING,) * 3
    assert (first.utilisation, second.power_w, second.utilisation) == (50.0, IMPOSSIBLE_READING, 60.0)
    assert decode(encode(spool.read(number)), FRAMES_UP).rows == [first, second]


def test_only_committed_batches_are_deleted_and_numbers_continue(tmp_path: Path) -> None:
    spool = SampleSpool(tmp_path)
    for number in (1, 2, 3):
        spool.add(rows(number))
    spool.commit(2)
    assert spool.pending(0) == [3]
    spool.commit(3)
    assert spool.pending(0) == []
    again = SampleSpool(tmp_path)
    assert again.add(rows(4)) == 4
    again.commit(3)
    assert again.pending(0) == [4]


def test_a_late_commit_does_not_restore_batches(tmp_path: Path) -> None:
    spool = SampleSpool(tmp_path)
    for number in (1, 2):
        spool.add(rows(number))
    spool.commit(2)
    spool.commit(1)
    assert spool.pending(0) == []


def test_a_lost_spool_continues_above_the_last_committed_number(tmp_path: Path) -> None:
    spool = SampleSpool(tmp_path)
    spool.add(rows(1))
    spool.commit(700)
    assert spool.pending(0) == [701]
    assert spool.read(701).rows == rows(1)
    assert spool.add(rows(2)) == 702


def test_a_full_spool_drops_its_oldest_batches_and_reuses_no_number(tmp_path: Path) -> None:
    spool = SampleSpool(tmp_path, largest_bytes=5 * 4096)
    for number in range(1, 31):
        assert spool.add(rows(number)) == number
    assert spool.pending(0) == list(range(26, 31))
    assert spool.read(1).rows == []
    assert spool.read(30).rows == rows(30)
    assert len(list(tmp_path.iterdir())) == 5, "a file takes at least one block"
    again = SampleSpool(tmp_path)
    again.commit(12)
    assert again.pending(0) == list(range(26, 31))
    assert again.add(rows(31)) == 31


def test_a_damaged_batch_is_read_as_empty_and_keeps_its_number(tmp_path: Path) -> None:
    spool = SampleSpool(tmp_path)
    spool.add(rows(1))
    next(tmp_path.glob("*.json")).write_text('{"sequence": 1, "rows": [{"un')
    assert SampleSpool(tmp_path).read(1).rows == []


# Logs


def test_a_log_is_read_across_segments_from_any_byte(tmp_path: Path) -> None:
    (tmp_path / "000000000000000").write_bytes(b"hello ")
    (tmp_path / "000000000000006").write_bytes(b"world")
    assert log_reader.read_chunk(tmp_path, 0, ended=False) == (0, "hello ", 6)
    assert log_reader.read_chunk(tmp_path, 6, ended=False) == (6, "world", 11)
    assert log_reader.read_chunk(tmp_path, 8, ended=False) == (8, "rld", 11)
    assert log_reader.read_chunk(tmp_path, 11, ended=False) == (11, "", 11)
    (tmp_path / "000000000000000").unlink()
    assert log_reader.read_chunk(tmp_path, 0, ended=False) == (6, "world", 11)


def test_an_incomplete_character_is_held_until_the_log_ends(tmp_path: Path) -> None:
    (tmp_path / "000000000000000").write_bytes("aé".encode()[:2])
    assert log_reader.read_chunk(tmp_path, 0, ended=False) == (0, "a", 1)
    assert log_reader.read_chunk(tmp_path, 1, ended=False) == (1, "", 1)
    assert log_reader.read_chunk(tmp_path, 0, ended=True) == (0, "a?", 2)


# Simulated readings


def make_reader(tmp_path: Path, models: str = "1xH100-80GB", slices: str = "") -> SimulatedGpuReader:
    listed = parse_models(models)
    return SimulatedGpuReader("h1", listed, parse_mig(slices, listed), tmp_path)


def use(load: float | None = None, cpu: float = 0.0, memory: int | None = None) -> UnitUse:
    return UnitUse("run", frozenset({1}), cpu, 1, load, memory)


def sample(source: SimulatedGpuReader, uses: dict[str, UnitUse], now: float) -> list[SampleRow]:
    return asyncio.run(source.sample(uses, now))


def unit_of(source: SimulatedGpuReader) -> str:
    return asyncio.run(source.hardware()).gpus[0].units[0].uuid


def test_an_idle_gpu_is_not_busy_and_still_draws_its_idle_watts(tmp_path: Path) -> None:
    source = make_reader(tmp_path)
    first, second = sample(source, {}, 100.0)[0], sample(source, {}, 110.0)[0]
    assert second.utilisation == 0 and second.processes == 0 and second.run is None
    assert second.power_w is not None and 60 < second.power_w < 80
    assert first.energy_mj is not None and second.energy_mj is not None
    assert 600_000 < second.energy_mj - first.energy_mj < 800_000


def test_power_memory_and_temperature_follow_the_declared_load(tmp_path: Path) -> None:
    source = make_reader(tmp_path)
    unit = unit_of(source)
    sample(source, {unit: use(90.0)}, 100.0)
    row = sample(source, {unit: use(90.0)}, 400.0)[0]
    assert row.utilisation is not None and 85 < row.utilisation < 95
    assert row.power_w is not None and row.power_w > 500
    assert row.temperature_c is not None and row.temperature_c > 55
    assert row.memory_used_mib is not None and row.memory_used_mib > 40_000
    assert (
        row.sm_active is not None
        and row.tensor_active is not None
        and row.utilisation > row.sm_active > row.tensor_active
    )


def test_without_a_declared_load_the_cpu_time_of_the_process_tree_counts(tmp_path: Path) -> None:
    source = make_reader(tmp_path)
    unit = unit_of(source)
    sample(source, {unit: use(cpu=50.0)}, 100.0)
    assert sample(source, {unit: use(cpu=55.0)}, 110.0)[0].utilisation == 50.0
    assert sample(source, {unit: use(cpu=155.0)}, 120.0)[0].utilisation == 100.0
    assert sample(source, {unit: use(cpu=155.0)}, 130.0)[0].utilisation == 0.0


def test_a_mig_instance_reports_unknown_utilisation_and_power_instead_of_zero(tmp_path: Path) -> None:
    source = make_reader(tmp_path, slices="0:7x1g.10gb")
    gpu = asyncio.run(source.hardware()).gpus[0]
    assert [(unit.first_slot, unit.slots) for unit in gpu.units] == [(120 * place, 120) for place in range(7)]
    row = sample(source, {gpu.units[0].uuid: use(80.0)}, 100.0)[0]
    assert (row.utilisation, row.power_w, row.energy_mj, row.temperature_c) == (None, None, None, None)
    assert row.sm_active is not None and row.sm_active > 0
    ampere = make_reader(tmp_path, "1xA100-40GB", "0:7x1g.5gb")
    assert sample(ampere, {}, 100.0)[0].sm_active is None


def test_simulated_gpu_uuids_depend_only_on_the_host(tmp_path: Path) -> None:
    assert unit_of(make_reader(tmp_path)) == unit_of(make_reader(tmp_path))
    other = SimulatedGpuReader("h2", ["H100-80GB"], {}, tmp_path)
    assert unit_of(other) != unit_of(make_reader(tmp_path))


@pytest.mark.parametrize(
    "text",
    ["", "8", "x", "8xB2", "0xH100-80GB", "65xH100-80GB", "9999xH100-80GB", "-1xH100-80GB", "1xH100-80GB,"],
)
def test_invalid_simulated_hosts_are_rejected(text: str) -> None:
    with pytest.raises(SimulationError, match="--simulate: "):
        parse_models(text)


@pytest.mark.parametrize(
    "text",
    [
        "7x1g.10gb",
        "1:7x1g.10gb",
        "0:8x1g.10gb",
        "0:2x4g.40gb",
        "0:3x3g.40gb",
        "0:1x9g.10gb",
        "0:7x1g.10gb,0:1x1g.10gb",
    ],
)
def test_invalid_simulated_slices_are_rejected(text: str) -> None:
    with pytest.raises(SimulationError, match="--simulate-mig: "):
        parse_mig(text, ["H100-80GB"])


# Workspace sockets


def test_a_link_or_a_file_is_not_accepted_as_a_workspace_socket(tmp_path: Path) -> None:
    import socket

    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "real.sock"))
    (tmp_path / "link.sock").symlink_to("real.sock")
    (tmp_path / "file.sock").write_text("")
    with socket_path(tmp_path / "real.sock") as path:
        assert path.startswith("/proc/self/fd/")
    for name in ("link.sock", "file.sock", "none.sock"):
        with pytest.raises(SocketMissing), socket_path(tmp_path / name):
            pass
    server.close()


# Arguments

GOOD = [
    "run",
    "--state",
    "S",
    "--edge",
    "http://127.0.0.1:1",
    "--join-token",
    "t",
    "--simulate",
    "1xH100-80GB",
]


def test_the_join_token_is_read_from_a_file_or_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = defaultdict(lambda: lambda options: 0)
    given = ["join", "--state", str(tmp_path), "--edge", "http://127.0.0.1:1", "--join-token-file"]
    (tmp_path / "token").write_text("gpj_1\n")
    assert build_parser(commands).parse_args([*given, str(tmp_path / "token")]).join_token == "gpj_1"
    monkeypatch.setattr("sys.stdin", io.StringIO("gpj_2"))
    assert build_parser(commands).parse_args([*given, "-"]).join_token == "gpj_2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "run|join|probe|plant-xid"),
        (["dance"], "dance"),
        (["run"], "--state"),
        (["run", "--state", "S", "--join-token", "t", "--simulate", "1xH100-80GB"], "--edge: needed"),
        (
            ["join", "--state", "S", "--edge", "http://x", "--join-token-file", "/nowhere"],
            "--join-token-file: /nowhere",
        ),
        (["join", "--state", "S", "--edge", "http://x", "--join-token-file", "/dev/null"], "is empty"),
        (["join", "--state", "S", "--edge", "http://x"], "--join-token"),
        (["join", "--state", "S", "--join-token", "t"], "--edge"),
        ([*GOOD, "--edge", "ftp://x"], "ftp://x"),
        ([*GOOD, "--edge", "http://x:99999"], "Port out of range"),
        ([*GOOD, "--host", "Bad_Name"], "Bad_Name"),
        ([*GOOD, "--host", "x" * 64], "at most 63"),
        ([*GOOD, "--sample-seconds", "0"], "0.1 to 3600"),
        ([*GOOD, "--sample-seconds", "nan"], "0.1 to 3600"),
        ([*GOOD, "--simulate", "8xB2"], "no model 'B2'"),
        ([*GOOD, "--simulate-mig", "5:7x1g.10gb"], "GPU 5"),
        ([*GOOD, "--launcher", "magic"], "magic"),
        ([*GOOD, "--network", "internet", "--reach", "10.1.2.3/24"], "has host bits set"),
        ([*GOOD, "--network", "internet", "--reach", "fd00::/8"], "not an IPv4 network"),
        ([*GOOD, "--reach", "10.1.2.0/24"], "only with --network internet"),
        ([*GOOD, "--expose", "relative"], "relative"),
        ([*GOOD, "--state", "/dev/null"], "is a file"),
        ([*GOOD, "--homes", "S"], "--homes"),
        (["run", "--state", "S", "--edge", "http://x", "--simulate-mig", "0:7x1g.10gb"], "needs --simulate"),
        (
            ["run", "--state", "S", "--edge", "http://x", "--simulate", "1xH100-80GB"],
            "--join-token-file: needed",
        ),
        (["plant-xid", "--state", "S", "--gpu", "0", "--code", "79"], "not the state folder"),
        (["plant-xid", "--state", "S", "--gpu", "x", "--code", "79"], "whole number from 0 to 63"),
        (["plant-xid", "--state", "S", "--gpu", "0", "--code", "0"], "whole number from 1"),
        (["plant-fault", "--state", "S", "--gpu", "0", "--fault", "memory"], "not the state folder"),
    ],
)
def test_an_invalid_argument_is_reported_in_one_line_that_names_it(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main(arguments)
    except SystemExit as error:
        status = int(str(error.code))
    message = capsys.readouterr().err
    assert status == 2
    assert message.count("\n") == 1 and words in message


def test_probe_prints_the_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--simulate", "2xA100-80GB"]) == 0
    printed = capsys.readouterr().out
    assert '"simulated": true' in printed and printed.count('"model": "A100-80GB"') == 2


def test_probe_ends_silently_when_its_pipe_is_closed() -> None:
    command = (
        f"set -o pipefail; {shlex.quote(sys.executable)} -m agent probe --simulate 8xH100-80GB | head -n 1"
    )
    ended = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "{\n", "")


@pytest.mark.parametrize(
    "words",
    [["plant-xid", "--code", "79"], ["plant-stray", "--pid", "1"], ["plant-fault", "--fault", "memory"]],
)
def test_a_planted_fault_must_name_an_existing_gpu(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "simulated.json", ["GPU-a", "GPU-b"])
    (tmp_path / "planted").mkdir()
    verb, *rest = words
    assert main([verb, "--state", str(tmp_path), "--gpu", "2", *rest]) == 2
    assert capsys.readouterr().err == "agent: --gpu: 2 is not one of 0 to 1\n"
    assert main([verb, "--state", str(tmp_path), "--gpu", "1", *rest]) == 0
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    ("started_as", "named"), [("/opt/x/bin/gpupool-agent", "gpupool-agent"), ("agent/__main__.py", "agent")]
)
def test_help_shows_the_program_name_of_the_call(
    started_as: str, named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [started_as])
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert capsys.readouterr().out.startswith(f"usage: {named} run ")


def test_the_agent_imports_no_server_package() -> None:
    code = (
        "import agent.daemon, agent.cli, sys;"
        "server = {'django', 'scheduler', 'portal', 'telemetry', 'config', 'pynvml'};"
        "print([name for name in sys.modules if name.split('.')[0] in server])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert found.stdout.strip() == "[]"


def test_the_shim_needs_only_the_standard_library_without_site_packages(tmp_path: Path) -> None:
    StateFolder(tmp_path).install_tools()
    look = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'tools' / 'shim')!r}); "
        "import agent.shim.supervisor; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", look], capture_output=True, text=True, check=True
    )
    agent_modules = {name for name in done.stdout.split() if name.split(".")[0] == "agent"}
    modules = {path.stem for path in (Path(__file__).parents[2] / "agent" / "shim").glob("[!_]*.py")}
    assert agent_modules == {"agent", "agent.shim", *(f"agent.shim.{name}" for name in modules)}, (
        "the shim imports all its modules at its start"
    )
    big = {"typing", "socket", "dataclasses", "asyncio", "subprocess", "pathlib"}
    assert not big & set(done.stdout.split())


def test_a_folder_without_permissions_is_removed() -> None:
    """Remove a folder whose permissions the workload removed.

    Without root, the workload and the agent have the same user, and `rm` alone can't remove such a folder.
    """
    was, folder = os.geteuid(), Path(tempfile.mkdtemp())
    os.chown(folder, was or 65_534, -1)
    os.seteuid(was or 65_534)
    try:
        (folder / "tmp" / "outer" / "inner").mkdir(parents=True)
        (folder / "tmp" / "outer" / "inner" / "large").write_text("kept")
        (folder / "tmp" / "outer" / "inner").chmod(0o500)
        (folder / "tmp" / "outer").chmod(0)
        file_trees.Trash(folder / "trash").throw(folder / "tmp")
        until = time.monotonic() + 10
        while os.listdir(folder / "trash"):
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        os.seteuid(was)
        shutil.rmtree(folder)


def test_a_program_whose_name_looks_like_an_xid_is_not_an_xid() -> None:
    name = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, the GPU has fallen off the bus"
    crash = (
        "6,5044,40792809403,-;NVRM: Xid (PCI:[3367]: segfault at 0 ip 000056167ab7f132 error 6 in"
        f" {name}[1132,56167+1000]"
    )
    trap, real = f"6,5045,2,-;traps: {name}[3367] trap", f"6,5046,1,-;{name}"
    assert list(kernel_log.parse_xids([crash, trap, real], 0.0)) == [
        kernel_log.XidRecord(5046, "0000:3b:00", 79, 1e-6, "pid=1, the GPU has fallen off the bus")
    ]


async def test_a_deeply_nested_answer_of_a_notebook_is_ignored(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000)
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "notebook.sock")
    assert await activity_probe.probe_activity(tmp_path / "notebook.sock", "secret") is None
    server.close()
