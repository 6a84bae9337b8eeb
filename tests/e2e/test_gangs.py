"""Test jobs on two hosts: agents in their own network namespaces, with the real engine, edge and database."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.utils import timezone

from benchmarks.harness.small_pool import ROOT, SmallPool, _answers
from portal.services.fleet import hosts
from portal.services.work import launch, workload_changes, workspaces
from scheduler.models import Allocation, Decision, Host, Run, Workload
from scheduler.runs import logs
from scheduler.state import nudge
from scheduler.state.states import LeaseState
from tests.conftest import EXAMPLES
from tests.portal.edge.conftest import free_port
from tests.scheduler.conftest import test_database_url as database_url
from tests.world import H100, World, build_world

can_create_networks = os.geteuid() == 0 and shutil.which("ip") is not None
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("gangs"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not can_create_networks, reason="network namespaces for two hosts need root and ip"),
]
PYTHON = EXAMPLES / "bin" / "python"
NAMES = ("left", "right")


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)


@dataclass
class HostNetworks:
    """A bridge on which the edge listens, and a network namespace per host connected to it."""

    net: str
    bridge: str
    spaces: dict[str, str]

    @property
    def edge(self) -> str:
        return f"{self.net}.1"

    def address(self, host: str) -> str:
        return f"{self.net}.{NAMES.index(host) + 2}"


@pytest.fixture
def host_networks() -> Iterator[HostNetworks]:
    own = os.getpid() % 10_000
    networks = HostNetworks(
        f"10.{100 + own % 90}.{own // 90}", f"gpb{own}", {name: f"gpe{own}-{name}" for name in NAMES}
    )
    try:
        ip("link", "add", networks.bridge, "type", "bridge")
        ip("addr", "add", f"{networks.edge}/24", "dev", networks.bridge)
        ip("link", "set", networks.bridge, "up")
        for number, (name, space) in enumerate(networks.spaces.items()):
            ip("netns", "add", space)
            ip("link", "add", f"gpv{own}{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", f"gpv{own}{number}", "master", networks.bridge, "up")
            ip("-n", space, "addr", "add", f"{networks.address(name)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield networks
    finally:
        for space in networks.spaces.values():
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
        subprocess.run(["ip", "link", "delete", networks.bridge], capture_output=True)


@dataclass
class TwoHosts:
    """Two hosts with two simulated GPUs each, and the team that submits to them."""

    world: World
    pool: SmallPool

    def submit(self, command: str, units: int = 1, **wish: Any) -> Workload:
        team = self.world.vision
        return launch.submit_job(
            actor=team.member,
            project=team.project,
            pool=self.world.shared,
            name="gang",
            command=command,
            units=units,
            hosts=2,
            models=[H100],
            max_runtime_seconds=3600,
            now=timezone.now(),
            **wish,
        )

    def until(self, condition: Callable[[], Any], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            nudge.engine()  # no Celery beat runs here to retry work that backs off
            if time.monotonic() > deadline:
                process_logs = "\n".join(
                    f"--- {name}\n{self.pool.log(name)[-2500:]}" for name in self.pool.processes
                )
                raise AssertionError(f"it did not happen within {seconds} s\n{self.logs()}\n{process_logs}")
            time.sleep(0.2)

    def logs(self, attempt: int | None = None) -> list[str]:
        """Return the log of each member, by attempt and rank."""
        runs = Run.objects.order_by("workload", "attempt", "rank")
        runs = runs.filter(attempt=attempt) if attempt else runs
        return [logs.read_log(run.public_id)[0] for run in runs]

    def ended(self, workload: Workload, seconds: float = 120) -> Workload:
        self.until(lambda: Workload.objects.get(pk=workload.pk).state == "ended", seconds)
        return Workload.objects.get(pk=workload.pk)


@pytest.fixture
def launcher(request: pytest.FixtureRequest) -> str:
    """Return the name of the launcher that the hosts use."""
    return str(getattr(request, "param", "plain"))


@pytest.fixture
def two_hosts(
    transactional_db: None, host_networks: HostNetworks, tmp_path: Path, settings: Any, launcher: str
) -> Iterator[TwoHosts]:
    port = free_port()
    settings.GPUPOOL_EDGE_URL = f"http://{host_networks.edge}:{port}"
    settings.GPUPOOL_NOTEBOOK_DOMAIN = f"localhost:{port}"
    world = build_world(timezone.now())
    Host.objects.update(lease_state=LeaseState.SILENT)  # only the hosts of this test are alive
    environment = {
        "DATABASE_URL": database_url(),
        "GPUPOOL_EDGE_URL": settings.GPUPOOL_EDGE_URL,
        "GPUPOOL_NOTEBOOK_DOMAIN": settings.GPUPOOL_NOTEBOOK_DOMAIN,
    }
    pool = SmallPool(tmp_path, environment)
    try:
        pool.start("edge", "portal.edge", "--host", host_networks.edge)
        pool.wait("edge", lambda: _answers(f"{settings.GPUPOOL_EDGE_URL}/healthz"))
        pool.start_engine()
        for name in NAMES:
            _, token = hosts.add_host(actor=world.operator, pool=world.shared, name=name, now=timezone.now())
            _start_agent(pool, name, token, host_networks, launcher)
        for name in NAMES:
            pool.wait(
                f"agent-{name}", lambda name=name: Host.objects.get(name=name).lease_state == LeaseState.ALIVE
            )
        yield TwoHosts(world, pool)
    finally:
        pool.stop()


def _start_agent(pool: SmallPool, name: str, token: str, host_networks: HostNetworks, launcher: str) -> None:
    command = [
        *("ip", "netns", "exec", host_networks.spaces[name], sys.executable, "-m", "agent", "run"),
        *(
            "--state",
            str(pool.folder / name),
            "--homes",
            str(pool.folder / "homes"),
            "--host",
            name,
            "--join-token",
            token,
        ),
        *("--edge", pool.environment["GPUPOOL_EDGE_URL"], "--simulate", f"2x{H100}", "--launcher", launcher),
        *("--network", "host", "--on-exit", "stop", "--sample-seconds", "5"),
        # The examples' Python may be readable only by its owner. Team users have their own tests.
        *(
            "--team-users",
            "none",
            "--expose",
            sys.base_prefix,
            *(["--expose", str(EXAMPLES)] if EXAMPLES.exists() else []),
        ),
    ]
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "TMPDIR")}
    with (pool.folder / f"agent-{name}.log").open("ab") as log:
        pool.processes[f"agent-{name}"] = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**kept, "PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def example(name: str) -> str:
    return f"{PYTHON} -c {shlex.quote((ROOT / 'examples' / name).read_text())}"


@pytest.mark.torch
@pytest.mark.sandbox
@pytest.mark.parametrize("launcher", ["bubblewrap"], indirect=True)
def test_ddp_runs_on_two_hosts_and_the_gang_restarts_when_a_member_is_killed(
    two_hosts: TwoHosts, host_networks: HostNetworks
) -> None:
    # In the first attempt, the second member kills itself during training.
    command = (
        'if [ "$GPUPOOL_ATTEMPT$RANK" = 11 ]; then (sleep 5; kill -KILL $$) & fi;'
        f" exec {example('ddp_training.py')}"
    )
    workload = two_hosts.submit(
        command, most_retries=1, environment={"STEPS": "80", "PAUSE": "0.1", "OMP_NUM_THREADS": "1"}
    )
    two_hosts.until(lambda: Decision.objects.filter(workload=workload, kind="restarted").exists())
    assert {host.hardware["reported"]["address"] for host in Host.objects.filter(name__in=NAMES)} == {
        host_networks.address(name) for name in NAMES
    }
    first = Run.objects.filter(workload=workload, attempt=1)
    assert first.filter(state="ended").count() == 2, "the killed member ends the other one"
    kept = Decision.objects.get(workload=workload, kind="restarted")
    assert (kept.code, kept.numbers["rank"], kept.numbers["exit_code"]) == ("failed", 1, 137)
    assert two_hosts.ended(workload, 150).outcome == "finished", "\n".join(two_hosts.logs(attempt=2))
    for rank, output in enumerate(two_hosts.logs(attempt=2)):
        assert f"rank {rank} of 2: the ranks, counted from 1, add up to 3\n" in output
        assert f"rank {rank}: done with loss" in output
    assert all(
        run.prepared_at and run.running_at and run.prepared_at <= run.running_at for run in Run.objects.all()
    )


@pytest.mark.long
def test_members_have_the_variables_of_common_launchers_and_end_together(
    two_hosts: TwoHosts, host_networks: HostNetworks
) -> None:
    command = (
        "env | grep -E '^(MASTER|WORLD|RANK|PET_|GPUPOOL_HOST|TF_CONFIG|NCCL|GLOO|MINE)' | sort;"
        " cat $GPUPOOL_HOSTFILE;"
        ' if [ "$RANK" = 1 ]; then sleep 1; kill -KILL $$; fi; sleep 300'
    )
    workload = two_hosts.submit(
        command, units=2, if_member_ends="end", most_retries=3, environment={"WORLD_SIZE": "9"}
    )
    done = two_hosts.ended(workload)
    assert (done.outcome, done.attempt, done.outcome_numbers["exit_code"]) == ("failed", 1, 137)
    assert Decision.objects.get(workload=workload, kind="ended").numbers["rank"] == 1
    two_hosts.until(lambda: all("slots" in output for output in two_hosts.logs()))
    ranked = [run.host.name for run in Run.objects.order_by("rank")]
    addresses = [host_networks.address(name) for name in ranked]
    for rank, output in enumerate(two_hosts.logs()):
        variables = dict(
            line.split("=", 1) for line in output.splitlines() if "=" in line and "slots" not in line
        )
        port = variables["MASTER_PORT"]
        assert (variables["MASTER_ADDR"], variables["RANK"], variables["PET_NODE_RANK"]) == (
            addresses[0],
            str(rank),
            str(rank),
        )
        assert (variables["PET_NNODES"], variables["PET_NPROC_PER_NODE"]) == ("2", "2")
        assert variables["WORLD_SIZE"] == "9", "the job's environment overrides the variables for launchers"
        assert variables["GPUPOOL_HOSTS"] == ",".join(addresses)
        assert (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"]) == ("eth0", "=eth0")
        assert f'"worker": ["{addresses[0]}:{port}", "{addresses[1]}:{port}"]' in variables["TF_CONFIG"]
        assert f'"index": {rank}' in variables["TF_CONFIG"]
        assert output.count(" slots=2") == 2


SEES = """
import os, ray
ray.init(address="auto", log_to_driver=False)
@ray.remote(num_gpus=1)
def sees():
    import time; time.sleep(2)
    return os.environ["CUDA_VISIBLE_DEVICES"]
print("sees", int(ray.cluster_resources()["GPU"]), *sorted(ray.get([sees.remote() for _ in range(4)])))
"""


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_ray_cluster_on_two_hosts_accepts_a_job_through_the_edge_and_sees_its_gpus(
    two_hosts: TwoHosts,
) -> None:
    command = f"bash -c {shlex.quote((ROOT / 'examples' / 'ray_cluster.sh').read_text())} ray_cluster.sh"
    path = f"{EXAMPLES / 'bin'}{os.pathsep}{os.environ['PATH']}"
    workload = two_hosts.submit(command, units=2, environment={"PATH": path, "OMP_NUM_THREADS": "1"})
    two_hosts.until(
        lambda: Run.objects.filter(workload=workload, rank=0, ready_at__isnull=False).exists(), 150
    )
    link = urlsplit(
        workspaces.open_workspace(
            actor=workload.owner,
            workload=Workload.objects.get(pk=workload.pk),
            session_key="",
            now=timezone.now(),
        )
    )
    client = JobClient(link.netloc, two_hosts.pool.environment["GPUPOOL_EDGE_URL"])
    assert client.ask("GET", "/api/jobs/") == (403, ""), "the one-time link has not been used yet"
    entered = client.ask("GET", f"{link.path}?{link.query}")
    assert entered[0] == 303
    two_hosts.until(lambda: client.nodes() == 2, 120)
    status, output = client.ask("POST", "/api/jobs/", {"entrypoint": f"{PYTHON} -c {shlex.quote(SEES)}"})
    assert status == 200, output
    job = json.loads(output)["submission_id"]
    two_hosts.until(
        lambda: json.loads(client.ask("GET", f"/api/jobs/{job}")[1])["status"] in ("SUCCEEDED", "FAILED"), 90
    )
    written = json.loads(client.ask("GET", f"/api/jobs/{job}/logs")[1])["logs"]
    held = sorted(Allocation.objects.filter(workload=workload).values_list("unit__uuid", flat=True))
    assert f"sees 4 {' '.join(held)}" in written, written
    workload_changes.cancel_workload(
        actor=workload.owner, workload=Workload.objects.get(pk=workload.pk), now=timezone.now()
    )
    assert two_hosts.ended(workload).outcome == "cancelled"


class JobClient:
    """A client of a job's web service, through the edge as its owner."""

    def __init__(self, name: str, edge: str) -> None:
        self.name, self.edge_address, self.cookie = name, urlsplit(edge), ""

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        assert self.edge_address.hostname is not None
        connection = http.client.HTTPConnection(
            self.edge_address.hostname, self.edge_address.port or 80, timeout=30
        )
        headers = {"Host": self.name, "Cookie": self.cookie, "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            self.cookie = (answer.getheader("Set-Cookie") or self.cookie).split(";")[0]
            text = answer.read().decode()
        finally:
            connection.close()
        return answer.status, text if answer.status == 200 else ""

    def nodes(self) -> int:
        """Return the number of live hosts in the Ray cluster."""
        status, output = self.ask("GET", "/nodes?view=summary")
        return output.count('"ALIVE"') if status == 200 else 0
