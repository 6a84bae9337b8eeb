"""Test a notebook through the edge: engine, edge, agent, JupyterLab and kernel run as separate processes."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from django.utils import timezone

from benchmarks.harness.jupyter_client import JupyterClient, JupyterTimeout
from benchmarks.harness.small_pool import SmallPool, running_pool
from portal.services.fleet import hosts
from portal.services.work import launch as launch_service
from portal.services.work import workload_changes, workspaces
from scheduler.models import Allocation, Host, Run, Workload
from scheduler.state.states import LeaseState, RunState, WorkloadState
from tests.portal.edge.conftest import free_port, run_orm
from tests.scheduler.conftest import test_database_url as database_url
from tests.world import H100, World, build_world

pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("notebook"),
    pytest.mark.django_db(transaction=True),
]
MODEL = f"2x{H100}"


@pytest.fixture
def live_world(transactional_db: None) -> World:
    world = build_world(timezone.now())
    Host.objects.update(lease_state=LeaseState.SILENT)  # only the host of this test is alive
    return world


@pytest.fixture
def pool(live_world: World, tmp_path: Path, settings: Any) -> Iterator[SmallPool]:
    """Return a pool with a host named e2e, which has two GPUs and whose agent has joined with its token."""
    port = free_port()
    settings.GPUPOOL_EDGE_URL = f"http://127.0.0.1:{port}"
    settings.GPUPOOL_NOTEBOOK_DOMAIN = f"localhost:{port}"
    _, token = hosts.add_host(
        actor=live_world.operator, pool=live_world.shared, name="e2e", now=timezone.now()
    )
    environment = {
        "DATABASE_URL": database_url(),
        "GPUPOOL_EDGE_URL": settings.GPUPOOL_EDGE_URL,
        "GPUPOOL_NOTEBOOK_DOMAIN": settings.GPUPOOL_NOTEBOOK_DOMAIN,
    }
    with running_pool(tmp_path, environment) as running:
        running.start_agent("e2e", token, MODEL)
        running.wait("agent-e2e", lambda: Host.objects.get(name="e2e").lease_state == LeaseState.ALIVE)
        yield running


async def until(condition: Callable[[], bool], pool: SmallPool, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not await run_orm(condition):
        if time.monotonic() > deadline:
            logs = "\n".join(f"--- {name}\n{pool.log(name)[-3000:]}" for name in pool.processes)
            raise AssertionError(f"it did not happen within {seconds} s\n{logs}")
        await asyncio.sleep(0.05)


async def launch(world: World, pool: SmallPool) -> Run:
    """Launch a notebook of a member of team vision. Returns its run once it is ready."""
    team = world.vision
    workload = await run_orm(
        launch_service.launch_notebook,
        actor=team.member,
        project=team.project,
        pool=world.shared,
        now=timezone.now(),
        name="first light",
        units=1,
        models=[H100],
        max_runtime_seconds=3600,
        type="interactive",
    )
    await until(lambda: Run.objects.filter(workload=workload, ready_at__isnull=False).exists(), pool, 90)
    return await run_orm(Run.objects.select_related("workload").get, workload=workload)


def workspace_link(run: Run) -> str:
    return workspaces.open_workspace(
        actor=run.workload.owner,
        workload=Workload.objects.get(pk=run.workload_id),
        session_key="",
        now=timezone.now(),
    )


async def sign_in(session: aiohttp.ClientSession, run: Run) -> JupyterClient:
    """Sign in to the notebook with its one-time link. Returns a client with the session.

    Sends the notebook's name as Host, like a browser that resolves *.localhost itself.
    """
    link = urlsplit(await run_orm(workspace_link, run))
    headers = {"Host": link.netloc, "Origin": f"{link.scheme}://{link.netloc}"}
    jupyter = JupyterClient(session, f"http://127.0.0.1:{link.port}", headers)
    status, _ = await jupyter.ask("GET", f"{link.path}?{link.query}")
    assert status == 303
    status, page = await jupyter.ask("GET", "/lab", Accept="text/html")
    assert status == 200, page[:500]
    assert "jupyter-config-data" in page
    assert "_xsrf" in jupyter.cookies
    return jupyter


def stop(run: Run) -> None:
    workload_changes.cancel_workload(
        actor=run.workload.owner, workload=Workload.objects.get(pk=run.workload_id), now=timezone.now()
    )


async def test_a_notebook_runs_code_stops_and_keeps_its_files(live_world: World, pool: SmallPool) -> None:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        run = await launch(live_world, pool)
        jupyter = await sign_in(session, run)
        kernel = await jupyter.start_kernel()
        assert await jupyter.run(kernel, "print(6*7)") == "42\n"

        held = await run_orm(lambda: Allocation.objects.select_related("unit").get(run=run).unit.uuid)
        assert (
            await jupyter.run(kernel, "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])") == held + "\n"
        )
        environment = json.loads(
            await jupyter.run(kernel, "import json; print(json.dumps(dict(os.environ)))")
        )
        from scheduler.sync.agent_api import workspace_secret

        secret = workspace_secret(run.public_id)
        assert not [name for name, value in environment.items() if secret in value or "DATABASE" in name]

        assert "forty-two" in await jupyter.type_into_terminal("echo forty-$(printf two)", "forty-two")
        await jupyter.run(kernel, "open('kept.txt', 'w').write('from the first notebook')")

        # requests without the edge's session or the page's XSRF token are rejected
        bare = JupyterClient(session, jupyter.url, jupyter.headers)
        assert (await bare.ask("GET", "/api/kernels"))[0] == 403
        without_xsrf = JupyterClient(
            session, jupyter.url, jupyter.headers, {"__Host-gpupool": jupyter.cookies["__Host-gpupool"]}
        )
        assert (await without_xsrf.ask("POST", "/api/kernels", {"name": "python3"}))[0] == 403

        socket = await jupyter.socket(f"/api/kernels/{kernel}/channels")
        await run_orm(stop, run)
        async with asyncio.timeout(1):
            while (await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
        assert socket.close_code == 4401
        status, text = await jupyter.ask("GET", "/lab", Accept="text/html")
        assert (status, "This notebook has ended" in text) == (410, True)
        await until(lambda: Run.objects.get(pk=run.pk).state == RunState.ENDED, pool)
        await until(lambda: Workload.objects.get(pk=run.workload_id).state == WorkloadState.ENDED, pool, 10)

        second = await launch(live_world, pool)
        again = await sign_in(session, second)
        assert (
            await again.run(await again.start_kernel(), "print(open('kept.txt').read())")
            == "from the first notebook\n"
        )
        with pytest.raises(JupyterTimeout):  # the first notebook's cookie is not valid for the second
            await JupyterClient(session, again.url, again.headers, dict(jupyter.cookies)).start_kernel()


@pytest.mark.browser
async def test_a_browser_accepts_the_cookie_over_http_and_jupyterlab_works(
    live_world: World, pool: SmallPool
) -> None:
    from playwright.async_api import async_playwright

    run = await launch(live_world, pool)
    link = await run_orm(workspace_link, run)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        context = await browser.new_context()
        page = await context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        paths: list[str] = []
        page.on("request", lambda request: paths.append(urlsplit(request.url).path))
        refused: list[str] = []
        page.on(
            "response",
            lambda answer: refused.append(answer.url) if answer.status in (401, 403, 502) else None,
        )
        await page.goto(link)
        await page.wait_for_url("**/lab**")
        cookie = next(cookie for cookie in await context.cookies() if cookie["name"] == "__Host-gpupool")
        assert cookie["secure"] and cookie["httpOnly"] and cookie["path"] == "/"
        await page.locator('.jp-LauncherCard[data-category="Notebook"]').first.click(timeout=60_000)
        # JupyterLab discards a cell that is run before its kernel is connected.
        await page.locator("#jp-main-statusbar", has_text="| Idle").wait_for(timeout=60_000)
        cell = page.locator(".jp-Notebook .cm-content").first
        await cell.click()
        await page.keyboard.type("print(6*7)")
        await page.keyboard.press("Shift+Enter")
        await page.locator(".jp-OutputArea-output", has_text="42").first.wait_for(timeout=60_000)
        stored = await page.evaluate("document.cookie")
        assert "gpupool" not in stored
        assert (problems, refused) == ([], [])
        assert await page.get_by_text("Jupyter news").count() == 0
        assert [path for path in paths if "/lsp/" in path or path.endswith(("/news", "/update"))] == []
        await run_orm(stop, run)
        answer = await page.goto(f"{urlsplit(link).scheme}://{urlsplit(link).netloc}/lab")
        assert answer is not None and answer.status == 410
        assert await page.get_by_role("heading").inner_text() == "This notebook has ended"
        await browser.close()


def chromium() -> str:
    path_of_browser = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
        None,
    )
    assert path_of_browser is not None
    return path_of_browser
