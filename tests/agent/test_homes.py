"""Homes as an agent measures them: real folders, its own process, and what it says of them."""

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

from agent.host import offered_environment
from agent.protocol import FRAMES_UP, HomeSeen, Observed, decode
from agent.storage import home_usage, home_usage_reader
from tests.agent.conftest import MakeAgent, job
from tests.agent.fake_edge import FakeEdge

NOW = 1_800_000_000.0


def in_time() -> bool:
    return False


def fill(folder: Path, files: dict[str, int], at: float = NOW - 100) -> Path:
    """A folder with files of so many bytes, all of them changed at ``at``."""
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
    found = home_usage.measure_home(home, in_time, NOW)
    assert found is not None
    return found


def look(folder: Path, at: float = NOW) -> dict[str, Any]:
    found = home_usage.read_or_measure(folder, lambda: at, time.monotonic)
    assert found is not None
    return found


def test_a_home_is_what_it_takes_on_the_disk(tmp_path: Path) -> None:
    home = fill(tmp_path / "ada", {"a": 100_000, "deep/er/b": 50_000, "empty": 0})
    found = measure(home)
    assert found["files"] == 3 and found["complete"]
    taken = sum(path.stat().st_blocks * 512 for path in (home, *home.rglob("*")))
    assert found["bytes"] == taken >= 150_000
    assert (found["changed_at"], found["measured_at"]) == (NOW - 100, NOW)


def test_a_hole_in_a_file_takes_no_room_and_two_names_of_a_file_count_once(tmp_path: Path) -> None:
    home = fill(tmp_path / "ada", {"a": 200_000})
    before = measure(home)
    os.link(home / "a", home / "again")
    with (home / "sparse").open("wb") as sparse:
        sparse.truncate(10**12)
    after = measure(home)
    assert after["files"] == before["files"] + 1
    assert after["bytes"] < before["bytes"] + 100_000


def test_links_out_of_a_home_are_not_followed(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", {"large": 1_000_000})
    home = fill(tmp_path / "ada", {"a": 10})
    (home / "out").symlink_to(tmp_path / "elsewhere")
    (home / "round").symlink_to(home)
    assert measure(home)["bytes"] < 100_000


def test_a_home_that_became_a_link_is_not_followed_unless_root_made_it(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", {"large": 1_000_000})
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


def test_a_file_of_tomorrow_was_not_changed_tomorrow(tmp_path: Path) -> None:
    assert measure(fill(tmp_path / "ada", {"a": 10}, at=NOW + 86_400))["changed_at"] == NOW


def test_a_home_too_large_for_its_time_is_known_as_at_least(tmp_path: Path) -> None:
    home = fill(tmp_path / "ada", {f"{number}": 5000 for number in range(50)})
    asked = itertools.count()
    found = home_usage.measure_home(home, lambda: next(asked) >= 20, NOW)
    assert found is not None
    assert not found["complete"]
    assert 0 < found["files"] < 50
    assert found["bytes"] < measure(home)["bytes"]


def test_a_folder_nested_beyond_reason_does_not_end_the_measuring(tmp_path: Path) -> None:
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


def test_what_can_not_be_read_makes_the_sum_a_lower_bound() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        home = fill(Path(folder) / "ada", {"open": 10, "shut/in": 10})
        (home / "shut").chmod(0)
        with not_as_root():
            assert not measure(home)["complete"]
        (home / "shut").chmod(0o700)


@contextmanager
def not_as_root() -> Iterator[None]:
    """Root reads everything: as somebody else where the tests run as root."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_only_homes_are_named(tmp_path: Path) -> None:
    for name in ("bob", "ada", ".checkpoints", ".volumes", "odd\u202ename", "x" * 200):
        (tmp_path / name).mkdir()
    os.mkdir(os.fsencode(tmp_path) + b"/not-utf8-\xff")
    (tmp_path / "a file").write_text("")
    assert home_usage.home_names(tmp_path) == (["ada", "bob"], 0)


def test_hosts_that_share_the_folder_share_the_storage_and_the_work(tmp_path: Path) -> None:
    fill(tmp_path / "ada", {"a": 10})
    first = look(tmp_path)
    assert look(tmp_path, NOW + 30) == first
    fill(tmp_path / "bob", {"a": 10})
    later = look(tmp_path, NOW + home_usage.MIN_PAUSE_SECONDS + 1)
    assert later["storage"] == first["storage"]
    assert [home["name"] for home in later["homes"]] == ["ada", "bob"]
    assert later["homes"][0]["measured_at"] == NOW + home_usage.MIN_PAUSE_SECONDS + 1


def test_a_new_home_is_measured_at_once_and_the_others_when_it_is_time(tmp_path: Path) -> None:
    fill(tmp_path / "ada", {"a": 10})
    look(tmp_path)
    fill(tmp_path / "bob", {"a": 10})
    measured = {home["name"]: home["measured_at"] for home in look(tmp_path, NOW + 10)["homes"]}
    assert measured == {"ada": NOW, "bob": NOW + 10}
    later = NOW + home_usage.MIN_PAUSE_SECONDS + 1  # the new one did not put the round off
    assert {home["measured_at"] for home in look(tmp_path, later)["homes"]} == {later}


def test_while_one_host_measures_the_others_take_what_is_known(tmp_path: Path) -> None:
    (tmp_path / home_usage.METADATA_FOLDER).mkdir()
    with (tmp_path / home_usage.METADATA_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert home_usage.read_or_measure(tmp_path, lambda: NOW, time.monotonic) is None
    assert look(tmp_path)["homes"] == []


def test_homes_that_a_round_does_not_reach_keep_what_was_known_and_go_first(tmp_path: Path) -> None:
    for name in ("ada", "bob", "cem"):
        fill(tmp_path / name, {"a": 10})
    steps = iter([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, home_usage.ROUND_TIMEOUT_SECONDS + 1])

    def clock() -> float:
        return next(steps, home_usage.ROUND_TIMEOUT_SECONDS + 1)

    first = home_usage.read_or_measure(tmp_path, lambda: NOW, clock)
    assert first is not None
    reached = {home["name"] for home in first["homes"] if home["measured_at"]}
    assert reached and reached != {"ada", "bob", "cem"}
    assert all(home["bytes"] is None for home in first["homes"] if home["name"] not in reached)
    later = look(tmp_path, NOW + home_usage.MAX_PAUSE_SECONDS + 1)
    assert all(home["bytes"] for home in later["homes"])


def test_a_long_round_is_followed_by_a_long_rest() -> None:
    assert home_usage.pause_after(0.1) == home_usage.MIN_PAUSE_SECONDS
    assert home_usage.pause_after(30) == 600
    assert home_usage.pause_after(600) == home_usage.MAX_PAUSE_SECONDS


async def test_the_measuring_process_runs_only_when_nothing_else_wants_to(tmp_path: Path) -> None:
    said = (
        "import os; from agent.storage import home_usage; home_usage.lower_priority(); "
        "print(os.nice(0), os.sched_getscheduler(0))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", said, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.decode().split() == ["19", str(os.SCHED_IDLE)]


async def test_measuring_that_takes_too_long_is_ended_and_tells_nothing(tmp_path: Path) -> None:
    began = time.monotonic()
    found, pause = await home_usage_reader.read_home_usage(tmp_path, deadline=0.001)
    assert (found, pause) == (None, home_usage.MAX_PAUSE_SECONDS)
    assert time.monotonic() - began < 5


async def test_a_folder_that_can_not_be_read_is_unknown_and_not_empty(tmp_path: Path) -> None:
    (tmp_path / "homes").write_text("no folder")
    found, _ = await home_usage_reader.read_home_usage(tmp_path / "homes")
    assert found is None


async def test_an_agent_says_which_homes_there_are_and_what_its_environment_offers(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    fill(shared / "ada", {"notes": 20_000})
    data = tmp_path / "images"
    data.mkdir()
    agent = await make_agent("--homes", str(shared), "--expose", str(data))
    await edge.until(lambda: any(seen.homes for seen in edge.observed))
    told = next(seen.homes for seen in edge.observed if seen.homes)
    (ada,) = told.homes
    assert ada.name == "ada" and ada.files == 1 and ada.complete
    assert ada.bytes is not None and ada.bytes >= 20_000
    assert told.total_bytes and told.free_bytes and told.total_bytes >= told.free_bytes
    environment = edge.observed[-1].inventory.environment
    assert environment is not None
    assert environment.python == ".".join(map(str, sys.version_info[:3]))
    assert environment.exposed == [str(data)]
    assert environment.packages["jupyterlab"] == metadata.version("jupyterlab")
    installed = {each.metadata["Name"].lower().replace("_", "-") for each in metadata.distributions()}
    assert environment.packages.keys() == installed & set(offered_environment.REPORTED_PACKAGES)
    # Said once: the frames after it are as small as before.
    heard = len(edge.observed)
    await edge.until(lambda: len(edge.observed) >= heard + 3)
    assert sum(1 for seen in edge.observed if seen.homes) == 1
    # A home that a first workload makes is told of at once.
    await edge.want(job("true", units=[agent.units[0]], owner="bob"))
    await edge.until(lambda: sum(1 for seen in edge.observed if seen.homes) == 2, seconds=20)
    again = next(seen.homes for seen in reversed(edge.observed) if seen.homes)
    assert [(each.name, each.measured_at is not None) for each in again.homes] == [
        ("ada", True),
        ("bob", True),
    ]


def test_frames_of_agents_that_do_not_tell_of_homes_are_read_as_before() -> None:
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
