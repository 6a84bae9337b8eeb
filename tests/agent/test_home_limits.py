"""Test the limits of homes by project quotas, on a real file system where the kernel has such quotas."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.storage import home_limits, home_usage
from agent.storage.locked_record import RecordLocked, locked_record
from tests.agent.conftest import MakeAgent
from tests.agent.fake_edge import FakeEdge
from tests.agent.test_isolation import output

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can set quotas"),
]
MEMORY_FILE_SYSTEM = Path("/dev/shm")


@pytest.fixture
def quota_homes(tmp_path: Path) -> Iterator[Path]:
    """Mount an ext4 with project quotas from a file. Skip the test if the kernel has no such quotas."""
    image, folder = tmp_path / "image", tmp_path / "quota homes"
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("not run: mkfs.ext4 is missing (e2fsprogs), so no file system with quotas can be made")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    make = ["mkfs.ext4", "-q", "-O", "project,quota", "-E", "quotatype=prjquota", str(image)]
    subprocess.run(make, check=True)
    folder.mkdir()
    mount = ["mount", "-o", "loop,prjquota", str(image), str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(
            f"not run: this kernel mounts no ext4 with project quotas: {mounted.stderr.strip()[:200]}"
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def memory_homes() -> Iterator[Path]:
    """Create a folder on a file system that has no project quotas."""
    folder = MEMORY_FILE_SYSTEM / f"gpupool-homes-{os.getpid()}"
    folder.mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)


def new_home(homes: Path, name: str) -> Path:
    home = homes / name
    home.mkdir(mode=0o700)
    return home


def fill(home: Path, mib: int) -> None:
    (home / "file").write_bytes(b"x" * (mib << 20))


# With project quotas


def test_a_new_home_cannot_exceed_its_limit_and_the_limit_is_reported(quota_homes: Path) -> None:
    limits = home_limits.open_home_limits(quota_homes)
    assert limits.problem == ""
    ada, bob = new_home(quota_homes, "ada"), new_home(quota_homes, "bob")
    limits.apply(ada, 2)
    limits.apply(bob, 4)
    with pytest.raises(OSError) as caught:
        fill(ada, 3)
    assert caught.value.errno in (errno.EDQUOT, errno.ENOSPC)
    fill(bob, 3)
    assert home_limits.limit_of_home(ada) == 2 << 20
    measured = home_usage.measure_home(bob, lambda: False, 1.0)
    assert measured is not None and measured["limit_bytes"] == 4 << 20


def test_the_limit_of_a_home_follows_the_setting_and_can_be_removed(quota_homes: Path) -> None:
    limits = home_limits.open_home_limits(quota_homes)
    home = new_home(quota_homes, "ada")
    limits.apply(home, 2)
    limits.apply(home, 8)
    fill(home, 5)
    assert home_limits.limit_of_home(home) == 8 << 20
    limits.apply(home, 0)
    fill(home, 10)
    assert home_limits.limit_of_home(home) is None


def test_a_home_that_was_made_without_a_limit_gets_none(quota_homes: Path) -> None:
    limits = home_limits.open_home_limits(quota_homes)
    home = new_home(quota_homes, "ada")
    fill(home, 1)
    limits.apply(home, 2)
    fill(home, 4)
    assert home_limits.limit_of_home(home) is None


async def test_a_job_cannot_fill_its_home_above_the_limit(
    edge: FakeEdge, make_agent: MakeAgent, quota_homes: Path
) -> None:
    await make_agent("--homes", str(quota_homes), launcher="bubblewrap")
    assert edge.observed[-1].inventory.home_limits
    command = "head -c 3000000 /dev/zero > ~/file || echo too large"
    team = {"team_id": "1.1700000000", "team_user": 70_001}
    assert "too large" in await output(edge, command, home_limit_mib=2, **team)


# Without project quotas


def test_the_reason_is_given_where_the_file_system_has_no_quotas(memory_homes: Path) -> None:
    limits = home_limits.open_home_limits(memory_homes)
    assert limits.problem.startswith("the file system tmpfs has no project quotas (")
    home = new_home(memory_homes, "ada")
    limits.apply(home, 1)
    fill(home, 2)
    assert home_limits.limit_of_home(home) is None
    measured = home_usage.measure_home(home, lambda: False, 1.0)
    assert measured is not None and measured["limit_bytes"] is None


def test_a_call_that_the_kernel_refuses_is_an_error(memory_homes: Path) -> None:
    """Call as if quotas were there. The home keeps no project, so that nothing else is limited."""
    limits = home_limits.HomeLimits(memory_homes, "")
    home = new_home(memory_homes, "ada")
    with pytest.raises(OSError) as caught:
        limits.apply(home, 1)
    assert caught.value.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS, errno.ESRCH)
    fill(home, 2)


async def test_a_job_starts_without_a_limit_where_homes_cannot_be_limited(
    edge: FakeEdge, make_agent: MakeAgent, memory_homes: Path
) -> None:
    await make_agent("--homes", str(memory_homes), launcher="bubblewrap")
    inventory = edge.observed[-1].inventory
    assert not inventory.home_limits and "tmpfs has no project quotas" in inventory.home_limits_problem
    team = {"team_id": "1.1700000000", "team_user": 70_001}
    assert "begun" in await output(edge, "echo begun", home_limit_mib=1, **team)


def test_two_hosts_do_not_number_a_project_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        locked_record(path, "waiting"),
        pytest.raises(RecordLocked, match="waiting for the other"),
        locked_record(path, "waiting for the other"),
    ):
        pass
