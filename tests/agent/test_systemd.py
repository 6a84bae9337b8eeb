"""Test the service unit with a real systemd, which runs as the first process of its own namespaces."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent import AGENT_VERSION
from agent.host import processes
from tests.agent.conftest import AgentProcess, job
from tests.agent.fake_edge import TOKEN, FakeEdge
from tests.agent.installed import ROOT, build, install, source_of

SYSTEMD = Path("/lib/systemd/systemd")
UNIT = ROOT / "deploy" / "systemd" / "gpupool-agent.service"
NAME = UNIT.name
COUNT = "n=0; while true; do n=$((n+1)); echo line $n; sleep 0.1; done"
SYS_BOOT, SYS_TIME, MAC_OVERRIDE, MAC_ADMIN = (
    22,
    25,
    32,
    33,
)  # the bits of capabilities (linux/capability.h)
NEWER = "0.2.0.dev1"
# The process enters its cgroups before it creates the namespaces. The current cgroup becomes the root of the
# new cgroup namespace.
ENTER_CGROUPS = """
set -e
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done
shift
exec "$@"
"""
# The mounts of the first process. They hide the units of this machine.
BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount --bind "$1/units" /etc/systemd/system
mount --bind "$1/opt" /opt
mount --bind "$1/lib" /var/lib
shift
for group in "$@"; do mount --bind "$group" "$(dirname "$group")"; done
set -- --system --unit=test.target --log-target=console
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd "$@"
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0
    or not SYSTEMD.exists()
    or not os.access("/sys/fs/cgroup/systemd/cgroup.procs", os.W_OK),
    reason="needs root, systemd and writable cgroups of version 1",
)


class Machine:
    """A systemd in its own namespaces, with this machine's network.

    This systemd sees only its own part of the cgroups, because systemd removes every empty cgroup that it
    sees.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("units", "opt/gpupool-agent", "lib"):
            (folder / name).mkdir(parents=True)
        units = folder / "units"
        (units / "test.target").write_text(
            "[Unit]\nDescription=nothing\nAllowIsolate=yes\nDefaultDependencies=no\n"
        )
        shutil.copy(UNIT, units)
        # Two things differ from a real host: other units are not started, and the GPUs are simulated.
        (units / f"{NAME}.d").mkdir()
        (units / f"{NAME}.d" / "test.conf").write_text(
            "[Unit]\nDefaultDependencies=no\n"
            '[Service]\nEnvironment="GPUPOOL_AGENT_OPTIONS=--simulate 2xH100-80GB --launcher plain'
            ' --sample-seconds 0.3"\n'
        )
        self.log = (folder / "log").open("wb")
        self.groups = [make_group(place / f"test-machine-{os.getpid()}") for place in hierarchies()]
        spaces = [
            "unshare",
            "--pid",
            "--mount",
            "--uts",
            "--ipc",
            "--cgroup",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        self.process = subprocess.Popen(
            [
                "sh",
                "-c",
                ENTER_CGROUPS,
                "sh",
                *self.groups,
                "--",
                *spaces,
                "sh",
                "-c",
                BOOT,
                "sh",
                folder,
                *self.groups,
            ],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    @property
    def first(self) -> int:
        """Return the pid of systemd outside of its namespaces."""
        return next(each.pid for each in processes.scan().values() if each.parent == self.process.pid)

    def switch(self, installed: Path) -> None:
        """Make `installed` the current version, with the command of docs/agent.md."""
        subprocess.run(
            ["ln", "-sfn", installed, self.folder / "opt" / "gpupool-agent" / "current"], check=True
        )

    async def command(self, *words: str) -> str:
        """Run a command in the machine and return its output."""
        inside = [
            "nsenter",
            "--target",
            str(self.first),
            "--pid",
            "--mount",
            "--uts",
            "--ipc",
            "--cgroup",
            *words,
        ]
        process = await asyncio.create_subprocess_exec(
            *inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode == 0, (words, err.decode(), (self.folder / "log").read_text()[-2000:])
        return out.decode()

    async def is_up(self) -> None:
        for _ in range(200):
            try:
                await self.command("systemctl", "show", "--property=Version")
                return
            except (AssertionError, StopIteration):
                await asyncio.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text()[-2000:])

    async def asked(self, name: str) -> str:
        """Return the value of a property of the agent's systemd unit."""
        return (await self.command("systemctl", "show", "--value", f"--property={name}", NAME)).strip()

    def end(self) -> None:
        """Kill the machine with all its processes and remove its cgroups."""
        self.process.kill()
        self.process.wait()
        self.log.close()
        for group in self.groups:
            remove_group(group)


def hierarchies() -> list[Path]:
    """Return the mount points of this machine's cgroups."""
    found = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return [Path(words[1]) for words in found if words[2] in ("cgroup", "cgroup2")]


def make_group(path: Path) -> Path:
    """Create a cgroup that accepts processes.

    A cgroup of the cpuset controller accepts processes only after its CPUs and memory nodes are set.
    """
    path.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (path.parent / name).exists():
            (path / name).write_text((path.parent / name).read_text())
    return path


def remove_group(path: Path) -> None:
    """Wait until no process remains in a cgroup, then remove it with all cgroups below it."""
    for folder, _, _ in os.walk(path, topdown=False):
        for attempt in range(50):
            try:
                os.rmdir(folder)
                break
            except OSError as problem:
                if problem.errno != errno.EBUSY or attempt == 49:
                    raise
                time.sleep(0.1)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path / "machine")
    yield machine
    machine.end()


@pytest.mark.long
async def test_jobs_survive_restart_upgrade_kill_and_stop_of_the_service(
    machine: Machine, edge: FakeEdge, tmp_path: Path
) -> None:
    old = install(build(tmp_path / "dist-a"), tmp_path / "a").parent
    new = install(build(tmp_path / "dist-b", source_of(tmp_path / "source", NEWER)), tmp_path / "b").parent
    machine.switch(old)
    await machine.is_up()
    program = "/opt/gpupool-agent/current/bin/gpupool-agent"
    await machine.command(program, "join", "--edge", edge.url, "--host", "h1", "--join-token", TOKEN)
    agent = AgentProcess(edge, machine.folder / "lib" / "gpupool-agent", "plain")
    try:
        await machine.command("systemctl", "start", NAME)
        await edge.until(lambda: edge.observed)
        await edge.want(job(COUNT, units=agent.units[:1]))
        await edge.until(lambda: edge.log("run-1").count("\n") > 3)
        before = agent.shim("run-1")

        async def assert_job_continues(version: str) -> None:
            """Check that an agent of `version` reports, that the shim is the same, and that the log grows."""
            heard, lines = len(edge.observed), edge.log("run-1").count("\n")
            await edge.until(lambda: len(edge.observed) > heard + 1)
            assert edge.observed[-1].agent_version == version
            assert (await edge.until_state("run-1", "running")).run == "run-1"
            assert agent.shim("run-1") == before
            await edge.until(lambda: edge.log("run-1").count("\n") > lines + 3)

        main = int(await machine.asked("MainPID"))
        await machine.command("systemctl", "restart", NAME)
        assert int(await machine.asked("MainPID")) not in (0, main)
        await assert_job_continues(AGENT_VERSION)

        machine.switch(new)
        await machine.command("systemctl", "restart", NAME)
        await assert_job_continues(NEWER)

        await machine.command(
            "systemctl", "kill", "--kill-who=main", f"--signal={signal.SIGKILL.value}", NAME
        )
        await assert_job_continues(NEWER)
        assert int(await machine.asked("NRestarts")) == 1

        await machine.command("systemctl", "stop", NAME)
        assert await machine.asked("ActiveState") == "inactive"
        lines = (await machine.command("ps", "-eo", "args")).splitlines()
        assert [line for line in lines if "line $n" in line], "the workload survives the stop of the service"
        await machine.command("systemctl", "start", NAME)
        await assert_job_continues(NEWER)

        for pid in (
            await machine.asked("MainPID"),
            *(await machine.command("pgrep", "--full", "line [$]n")).split(),
        ):
            status = await machine.command("cat", f"/proc/{pid}/status")
            bound = int(status.split("CapBnd:", 1)[1].split()[0], 16)
            assert not [bit for bit in (SYS_BOOT, SYS_TIME, MAC_OVERRIDE, MAC_ADMIN) if bound >> bit & 1]
    finally:
        agent.clean_up()
