"""Test the measurement of homes with real folders, the measuring process, and the agent's reports."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agent.host import offered_environment
from agent.protocol import FRAMES_UP, HomeSeen, Observed, decode
from agent.storage import home_usage, home_usage_reader
from tests.agent.conftest import MakeAgent, job
from tests.agent.fake_edge import FakeEdge

NOW = 1_800_000_000.0


def within_deadline() -> bool:
    return False


def make_home(folder: Path, files: dict[str, int], at: float = NOW - 100) -> Path:
    """Create a folder with files of the given sizes in bytes, all changed at `at`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
        os.utime(path, (at, at))
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (at, at), follow_symlinks=False)
    return folder


def measure(home: Path) -> dict[str, Any]:
    found = home_usage.measure_home(home, within_deadline, NOW)
    assert found is not None
    return found


def read_usage(folder: Path, at: float = NOW) -> dict[str, Any]:
    found = home_usage.read_or_measure(folder, lambda: at, time.monotonic)
    assert found is not None
    return found


def test_the_size_of_a_home_is_its_disk_usage(tmp_path: Path) -> None:
    home = make_home(tmp_path / "ada", {"a": 100_000, "deep/er/b": 50_000, "empty": 0})
    found = measure(home)
    assert found["files"] == 3 and found["complete"]
    taken = sum(path.stat().st_blocks * 512 for path in (home, *home.rglob("*")))
    assert found["bytes"] == taken >= 150_000
    assert (found["changed_at"], found["measured_at"]) == (NOW - 100, NOW)


def test_sparse_files_and_hard_links_are_measured_by_blocks(tmp_path: Path) -> None:
    home = make_home(tmp_path / "ada", {"a": 200_000})
    before = measure(home)
    os.link(home / "a", home / "again")
    with (home / "sparse").open("wb") as sparse:
        sparse.truncate(10**12)
    after = measure(home)
    assert after["files"] == before["files"] + 1
    assert after["bytes"] < before["bytes"] + 100_000


def test_links_out_of_a_home_are_not_followed(tmp_path: Path) -> None:
    make_home(tmp_path / "elsewhere", {"large": 1_000_000})
    home = make_home(tmp_path / "ada", {"a": 10})
    (home / "out").symlink_to(tmp_path / "elsewhere")
    (home / "round").symlink_to(home)
    assert measure(home)["bytes"] < 100_000


def test_a_home_that_is_a_link_is_followed_only_if_root_owns_the_link(tmp_path: Path) -> None:
    make_home(tmp_path / "elsewhere", {"large": 1_000_000})
    (tmp_path / "homes").mkdir()
    link = tmp_path / "homes" / "ada"
    link.symlink_to(tmp_path / "elsewhere")
    by_root = os.lstat(link).st_uid == 0
    assert (home_usage.measure_home(link, lambda: False, NOW) is not None) == by_root
    assert home_usage.home_names(tmp_path / "homes")[0] == (["ada"] if by_root else [])
    if by_root:
        os.lchown(link, 12345, 12345)
        assert home_usage.measure_home(link, lambda: False, NOW) is None
        assert home_usage.home_names(tmp_path / "homes") == ([], 0)


def test_a_modification_time_in_the_future_counts_as_now(tmp_path: Path) -> None:
    assert measure(make_home(tmp_path / "ada", {"a": 10}, at=NOW + 86_400))["changed_at"] == NOW


def test_the_size_of_a_home_is_a_lower_bound_if_measuring_takes_too_long(tmp_path: Path) -> None:
    home = make_home(tmp_path / "ada", {f"{number}": 5000 for number in range(50)})
    asked = itertools.count()
    found = home_usage.measure_home(home, lambda: next(asked) >= 20, NOW)
    assert found is not None
    assert not found["complete"]
    assert 0 < found["files"] < 50
    assert found["bytes"] < measure(home)["bytes"]


def test_a_deeply_nested_folder_does_not_break_the_measuring(tmp_path: Path) -> None:
    home = tmp_path / "ada"
    home.mkdir()
    here = os.open(home, os.O_RDONLY)
    for _ in range(home_usage.MAX_DEPTH + 50):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert not measure(home)["complete"]


def test_unreadable_folders_make_the_sum_a_lower_bound() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        home = make_home(Path(folder) / "ada", {"open": 10, "shut/in": 10})
        (home / "shut").chmod(0)
        with as_unprivileged_user():
            assert not measure(home)["complete"]
        (home / "shut").chmod(0o700)


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Run as another user, because root can read every folder."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_only_valid_home_names_are_listed(tmp_path: Path) -> None:
    for name in ("bob", "ada", ".checkpoints", ".volumes", "odd\u202ename", "x" * 200):
        (tmp_path / name).mkdir()
    os.mkdir(os.fsencode(tmp_path) + b"/not-utf8-\xff")
    (tmp_path / "a file").write_text("")
    assert home_usage.home_names(tmp_path) == (["ada", "bob"], 0)


def test_hosts_that_share_a_folder_share_the_measurement(tmp_path: Path) -> None:
    make_home(tmp_path / "ada", {"a": 10})
    first = read_usage(tmp_path)
    assert read_usage(tmp_path, NOW + 30) == first
    make_home(tmp_path / "bob", {"a": 10})
    later = read_usage(tmp_path, NOW + home_usage.MIN_PAUSE_SECONDS + 1)
    assert later["storage"] == first["storage"]
    assert [home["name"] for home in later["homes"]] == ["ada", "bob"]
    assert later["homes"][0]["measured_at"] == NOW + home_usage.MIN_PAUSE_SECONDS + 1


def test_a_new_home_is_measured_at_once_and_others_at_the_next_round(tmp_path: Path) -> None:
    make_home(tmp_path / "ada", {"a": 10})
    read_usage(tmp_path)
    make_home(tmp_path / "bob", {"a": 10})
    measured = {home["name"]: home["measured_at"] for home in read_usage(tmp_path, NOW + 10)["homes"]}
    assert measured == {"ada": NOW, "bob": NOW + 10}
    # The measurement of the new home did not postpone the next measurement of all homes.
    later = NOW + home_usage.MIN_PAUSE_SECONDS + 1
    assert {home["measured_at"] for home in read_usage(tmp_path, later)["homes"]} == {later}


def test_other_hosts_use_the_last_result_while_one_host_measures(tmp_path: Path) -> None:
    (tmp_path / home_usage.METADATA_FOLDER).mkdir()
    with (tmp_path / home_usage.METADATA_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert home_usage.read_or_measure(tmp_path, lambda: NOW, time.monotonic) is None
    assert read_usage(tmp_path)["homes"] == []


def test_homes_skipped_by_a_round_keep_their_result_and_come_first(tmp_path: Path) -> None:
    for name in ("ada", "bob", "cem"):
        make_home(tmp_path / name, {"a": 10})
    steps = iter([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, home_usage.ROUND_TIMEOUT_SECONDS + 1])

    def clock() -> float:
        return next(steps, home_usage.ROUND_TIMEOUT_SECONDS + 1)

    first = home_usage.read_or_measure(tmp_path, lambda: NOW, clock)
    assert first is not None
    reached = {home["name"] for home in first["homes"] if home["measured_at"]}
    assert reached and reached != {"ada", "bob", "cem"}
    assert all(home["bytes"] is None for home in first["homes"] if home["name"] not in reached)
    later = read_usage(tmp_path, NOW + home_usage.MAX_PAUSE_SECONDS + 1)
    assert all(home["bytes"] for home in later["homes"])


def test_the_pause_grows_with_the_duration_of_the_round() -> None:
    assert home_usage.pause_after(0.1) == home_usage.MIN_PAUSE_SECONDS
    assert home_usage.pause_after(30) == 600
    assert home_usage.pause_after(600) == home_usage.MAX_PAUSE_SECONDS


async def test_the_measuring_process_has_the_lowest_priority(tmp_path: Path) -> None:
    code = (
        "import os; from agent.storage import home_usage; home_usage.lower_priority(); "
        "print(os.nice(0), os.sched_getscheduler(0))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.decode().split() == ["19", str(os.SCHED_IDLE)]


async def test_measuring_that_exceeds_its_deadline_returns_no_result(tmp_path: Path) -> None:
    found, pause = await home_usage_reader.read_home_usage(tmp_path, deadline=0.001)
    assert (found, pause) == (None, home_usage.MAX_PAUSE_SECONDS)


async def test_homes_are_unknown_while_no_process_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_to_start(*command: str, **pipes: int) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail_to_start)
    assert await home_usage_reader.read_home_usage(tmp_path) == (None, home_usage.MIN_PAUSE_SECONDS)


async def test_an_unreadable_homes_folder_is_unknown_and_not_empty(tmp_path: Path) -> None:
    (tmp_path / "homes").write_text("no folder")
    found, _ = await home_usage_reader.read_home_usage(tmp_path / "homes")
    assert found is None


async def test_an_agent_reports_homes_and_its_environment(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    make_home(shared / "ada", {"notes": 20_000})
    data = tmp_path / "images"
    data.mkdir()
    agent = await make_agent("--homes", str(shared), "--expose", str(data))
    await edge.until(lambda: any(seen.homes for seen in edge.observed))
    reported = next(seen.homes for seen in edge.observed if seen.homes)
    (ada,) = reported.homes
    assert ada.name == "ada" and ada.files == 1 and ada.complete
    assert ada.bytes is not None and ada.bytes >= 20_000
    assert reported.total_bytes and reported.free_bytes and reported.total_bytes >= reported.free_bytes
    environment = edge.observed[-1].inventory.environment
    assert environment is not None
    assert environment.python == ".".join(map(str, sys.version_info[:3]))
    assert environment.exposed == [str(data)]
    assert environment.packages["jupyterlab"] == metadata.version("jupyterlab")
    installed = {each.metadata["Name"].lower().replace("_", "-") for each in metadata.distributions()}
    assert environment.packages.keys() == installed & set(offered_environment.REPORTED_PACKAGES)
    # The agent reports each measurement only once, so that later frames stay small.
    heard = len(edge.observed)
    await edge.until(lambda: len(edge.observed) >= heard + 3)
    assert sum(1 for seen in edge.observed if seen.homes) == 1
    # A home that was created for its first workload is reported at once.
    await edge.want(job("true", units=[agent.units[0]], owner="bob"))
    await edge.until(lambda: sum(1 for seen in edge.observed if seen.homes) == 2, seconds=20)
    again = next(seen.homes for seen in reversed(edge.observed) if seen.homes)
    assert [(each.name, each.measured_at is not None) for each in again.homes] == [
        ("ada", True),
        ("bob", True),
    ]


def test_frames_without_homes_are_accepted() -> None:
    old = {
        "version": 1,
        "agent_version": "0.0.9",
        "boot_id": "b",
        "instance": "i",
        "sequence": 1,
        "runs": [],
        "kind": "observed",
        "inventory": {"gpus": [], "cpu_milli": 1, "memory_mib": 1, "isolation": "plain", "simulated": True},
    }
    frame: Observed = decode(json.dumps(old), FRAMES_UP)
    assert frame.homes is None and frame.inventory.environment is None
    home = HomeSeen(name="ada")
    assert (home.bytes, home.files, home.changed_at, home.measured_at) == (None, None, None, None)
