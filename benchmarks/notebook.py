"""Measure how long a notebook takes from the click on "launch" to the first output of a kernel.

`./run bench notebook [--launches 10] [--against jupyterhub]` prints `{"launches", "p50", "p95", "against":
{"jupyterhub": {"p50", "p95"}}}`, with times in seconds. All components are real.

One launch includes these steps: the service call of the launch button, the engine's decision, the start by
the agent, the start of JupyterLab, the one-time link through the edge, the JupyterLab page, a new kernel, and
the kernel's answer to `print(6*7)`. Launches run one after another. Each notebook is stopped, and its GPU is
free again, before the next launch.

With `--against jupyterhub`, launches of JupyterHub are measured too. JupyterHub is installed into a temporary
environment, with its simple local spawner and Node's configurable-http-proxy. A launch of JupyterHub lasts
from the request to start the server to the kernel's answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent.protocol import SLOTS_PER_GPU
from benchmarks.harness.jupyter_client import NotebookTimeout, first_output

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

SERVICES = ("postgres", "valkey")
MODEL = "H100-80GB"
MAX_WAIT_SECONDS = 60.0


def main(argv: list[str]) -> dict[str, Any]:
    """Measure the launches and return the figures."""
    parser = argparse.ArgumentParser(prog="./run bench notebook")
    parser.add_argument("--launches", type=_count, default=10, help="1 to 100")
    parser.add_argument("--against", choices=("jupyterhub",), default=None)
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="gpupool-bench-notebook-"))
    try:
        seconds = measure_gpupool(folder, options.launches)
        figures: dict[str, Any] = {
            "launches": len(seconds),
            "p50": _part(seconds, 0.5),
            "p95": _part(seconds, 0.95),
        }
        if options.against:
            from benchmarks.harness import jupyterhub

            try:
                jupyterhub_seconds = jupyterhub.measure(folder, options.launches)
            except jupyterhub.JupyterHubUnavailable as error:
                raise SystemExit(f"gpupool: {error}") from None
            figures["against"] = {
                "jupyterhub": {"p50": _part(jupyterhub_seconds, 0.5), "p95": _part(jupyterhub_seconds, 0.95)}
            }
        return figures
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_gpupool(folder: Path, launches: int) -> list[float]:
    """Launch ``launches`` notebooks on gpupool and return the seconds of each launch."""
    import django

    django.setup()
    from benchmarks.harness.small_pool import running_pool
    from portal.edge.runtime.database_threads import DatabaseThreads
    from portal.services.fleet import hosts
    from scheduler.models import Host
    from scheduler.state.states import LeaseState

    organisation = _organisation()
    _, token = hosts.add_host(
        actor=organisation["operator"], pool=organisation["pool"], name="bench", now=_now()
    )
    with running_pool(folder, {}) as pool:
        pool.start_agent("bench", token, f"2x{MODEL}")
        pool.wait("agent-bench", lambda: Host.objects.get(name="bench").lease_state == LeaseState.ALIVE)
        database, seconds = DatabaseThreads(2, "bench"), []
        for number in range(launches):
            seconds.append(asyncio.run(_launch_once(database, organisation, number)))
            print(f"  gpupool launch {number + 1}: {seconds[-1]:.2f} s", flush=True)
        return seconds


def _organisation() -> dict[str, Any]:
    """Create a team with one member, a pool without hosts, and an operator.

    Return the rows by name.
    """
    from portal.models import Membership, Organisation, User
    from scheduler.models import Leader, Pool, Project, Quota, Team

    now = _now()
    Organisation.objects.get_or_create(id=1, defaults={"name": "Bench"})
    Leader.objects.get_or_create(id=1)
    team = Team.objects.create(slug="bench", name="Bench", tag="B", created_at=now)
    project = Project.objects.create(team=team, slug="bench", name="Bench", created_at=now)
    member, operator = (
        User.objects.create(username=name, operator=name == "operator") for name in ("member", "operator")
    )
    Membership.objects.create(user=member, team=team, created_at=now)
    pool = Pool.objects.create(slug="bench", name="Bench", kind="dynamic", created_at=now)
    Quota.objects.create(
        team=team, pool=pool, model=MODEL, guaranteed_slots=2 * SLOTS_PER_GPU, updated_at=now
    )
    return {"member": member, "operator": operator, "project": project, "pool": pool}


async def _launch_once(database: Any, organisation: dict[str, Any], number: int) -> float:
    import aiohttp

    from benchmarks.harness.jupyter_client import JupyterClient
    from portal.services.work import launch, workload_changes, workspaces
    from scheduler.models import Allocation, Run

    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        begin = time.monotonic()
        workload = await database.run(
            launch.launch_notebook,
            actor=organisation["member"],
            project=organisation["project"],
            pool=organisation["pool"],
            now=_now(),
            name=f"bench {number}",
            units=1,
            models=[MODEL],
            max_runtime_seconds=3600,
            type="interactive",
        )
        await _until(
            database,
            lambda: Run.objects.filter(workload=workload, ready_at__isnull=False).exists(),
            "the notebook is ready",
        )
        await database.run(workload.refresh_from_db)
        url = await database.run(
            workspaces.open_workspace,
            actor=organisation["member"],
            workload=workload,
            session_key="",
            now=_now(),
        )
        link = urlsplit(url)
        # Browsers resolve *.localhost to loopback. This client connects to loopback and sets the Host header.
        headers = {"Host": link.netloc, "Origin": f"{link.scheme}://{link.netloc}", "Accept": "text/html"}
        jupyter = JupyterClient(session, f"http://127.0.0.1:{link.port}", headers)
        await jupyter.ask("GET", f"{link.path}?{link.query}")
        await first_output(jupyter)
        seconds = time.monotonic() - begin
    await database.run(
        workload_changes.cancel_workload, actor=organisation["member"], workload=workload, now=_now()
    )
    await _until(
        database,
        lambda: not Allocation.objects.filter(period__upper_inf=True).exists(),
        "its GPU is free again",
    )
    return seconds


async def _until(database: Any, condition: Any, description: str) -> None:
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while not await database.run(condition):
        if time.monotonic() > deadline:
            raise NotebookTimeout(f"{description}: not within {MAX_WAIT_SECONDS:.0f} s")
        await asyncio.sleep(0.02)


def _now() -> Any:
    from django.utils import timezone

    return timezone.now()


def _part(seconds: list[float], share: float) -> float:
    """Return the quantile ``share`` of the values.

    The quantile 0.5 is the median. For other quantiles, the nearest higher value is returned.
    """
    if len(seconds) == 1:
        return round(seconds[0], 3)
    ordered = sorted(seconds)
    if share == 0.5:
        return round(statistics.median(ordered), 3)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of launches from 1 to 100")
    return int(text)
