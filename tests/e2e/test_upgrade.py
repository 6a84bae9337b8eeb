"""Test upgrades with running work: an agent of version 0.0, and a database of each version.

``tests/fixtures/agent_0_0.whl`` is the agent that ``./run build-agent`` built from commit 9f334ad.
``demo_0_0.sql.xz`` and ``demo_0_1.sql.xz`` are databases of the demo.
"""

from __future__ import annotations

import dataclasses
import json
import lzma
import os
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psycopg
import pytest
from psycopg import conninfo, sql

from agent.host import processes
from tests.agent.conftest import ROOT, AgentProcess, job
from tests.agent.fake_edge import FakeEdge
from tests.agent.test_notebook import HOST, SECRET, StreamForwarder

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

FIXTURES = ROOT / "tests" / "fixtures"
LAUNCHERS = ["plain", pytest.param("bubblewrap", marks=pytest.mark.sandbox)]
# Prints 20 numbers a second until the file appears in the home. The log is complete if no number is missing.
COUNT = "i=0; echo begun; while [ ! -e ~/{file} ]; do i=$((i+1)); echo $i; sleep 0.05; done; echo last $i"


# --- the agent ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the code of the old agent. ``python -m agent`` in this folder starts it."""
    folder = tmp_path_factory.mktemp("agent_0_0")
    with zipfile.ZipFile(FIXTURES / "agent_0_0.whl") as wheel:
        wheel.extractall(folder)
    return folder


@pytest.fixture
async def edge() -> AsyncIterator[FakeEdge]:
    edge = FakeEdge()
    await edge.start()
    yield edge
    await edge.stop()


@dataclasses.dataclass
class UpgradedHost:
    """A host whose agent is replaced by the present one on the same state folder."""

    edge: FakeEdge
    old: AgentProcess
    new: AgentProcess

    async def upgrade(self) -> None:
        """Start the present agent, as after a package upgrade. The old agent has ended."""
        assert self.old.process is not None and self.old.process.returncode is not None
        await self.new.start()

    @property
    def home(self) -> Path:
        """Return the home folder of the owner's workloads."""
        return self.old.state / "homes" / "ada"

    async def running(self, generation: int, command: str, **fields: object) -> str:
        """Start a run that prints ``begun``, and wait for this line. Returns the run's id."""
        order = job(command, generation=generation, **fields)  # type: ignore[arg-type]
        await self.edge.want(order)
        await self.edge.until_state(order.run, "running")
        await self.edge.until(lambda: "begun" in self.edge.log(order.run))
        return order.run

    def workload_processes(self, run: str) -> set[tuple[int, int]]:
        """Return (pid, start) of the run's shim and of all long-lived processes below it."""
        shim = self.old.shim(run)
        below = processes.descendants(processes.scan(), shim["pid"])
        return {(shim["pid"], shim["start_ticks"])} | {
            (process.pid, process.start_ticks) for process in below if process.name != "sleep"
        }


@pytest.fixture
async def host(
    edge: FakeEdge, tmp_path: Path, old_source: Path, request: pytest.FixtureRequest
) -> AsyncIterator[UpgradedHost]:
    """Yield a host with a running agent of version 0.0. The parameter of the test is its launcher."""
    old = AgentProcess(edge, tmp_path / "state", request.param, cwd=old_source)
    new = AgentProcess(edge, tmp_path / "state", request.param)
    try:
        await old.start()
        yield UpgradedHost(edge, old, new)
    finally:
        for agent in (old, new):
            agent.clean_up()
            if agent.process is not None:
                await agent.process.wait()


def assert_log_is_complete(log: str) -> None:
    """Assert that each number that the workload printed is in the log once and in order."""
    first, *numbers, last = log.splitlines()
    assert first == "begun"
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert last == f"last {len(numbers)}"


@pytest.mark.parametrize("host", LAUNCHERS, indirect=True)
async def test_work_of_an_old_agent_continues_under_the_present_agent_and_ends_correctly(
    host: UpgradedHost,
) -> None:
    edge, whole, *slices = host.edge, *host.old.units
    finishes = await host.running(1, COUNT.format(file="go-1"), units=[whole])
    fails = await host.running(2, COUNT.format(file="go-2") + "; exit 7", units=slices[:1])
    ends_meanwhile = await host.running(3, COUNT.format(file="go-3"))
    is_stopped = await host.running(
        4, "trap 'echo stopping; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    )
    is_evicted = await host.running(
        5,
        "trap 'gpupool checkpoint done; exit 0' USR1; echo begun; while :; do sleep 0.1; done",
        units=slices[1:],
    )
    is_limited = await host.running(6, "echo begun; sleep 300", max_runtime_seconds=3600)
    runs = {finishes, fails, ends_meanwhile, is_stopped, is_evicted, is_limited}
    await edge.until(lambda: edge.committed > 0)
    last_batch, reports = edge.batches[-1].sequence, len(edge.observed)
    before = {run: host.workload_processes(run) for run in runs}
    started_at = {run: seen.started_at for run in runs if (seen := edge.seen(run))}

    await host.old.kill()
    await edge.until(lambda: not edge.sync_sockets)
    (host.home / "go-3").touch()
    shim = host.old.shim(ends_meanwhile)
    await edge.until(lambda: not processes.is_alive(shim["pid"], shim["start_ticks"]))
    await host.upgrade()

    # The same processes continue and are reported under the same runs from the first frame on.
    assert {seen.run for frame in edge.observed[reports:] for seen in frame.runs} == runs
    for run in runs - {ends_meanwhile}:
        seen = await edge.until_state(run, "running")
        assert seen.started_at == started_at[run]
        assert host.workload_processes(run) == before[run]
    ended = await edge.until_state(ends_meanwhile, "ended")
    assert (ended.outcome, ended.exit_code) == ("finished", 0)
    assert len(edge.joins) == 1, "the credential was kept"
    assert {frame.instance for frame in edge.observed} == {edge.observed[0].instance}

    # New orders reach workloads that the old agent started.
    await edge.change(is_stopped, verb="stop", code="cancelled")
    await edge.change(is_evicted, verb="notice", code="evicted_for_guarantee", stop_at=2e9)
    await edge.change(is_limited, max_runtime_seconds=1)
    assert (await edge.until_state(is_stopped, "ended")).outcome == "cancelled"
    evicted = await edge.until_state(is_evicted, "ended")
    assert evicted.outcome == "checkpointed" and evicted.checkpoint_at is not None
    assert (await edge.until_state(is_limited, "ended")).outcome == "time_limit"
    (host.home / "go-1").touch()
    (host.home / "go-2").touch()
    finished, failed = await edge.until_state(finishes, "ended"), await edge.until_state(fails, "ended")
    assert (finished.outcome, finished.exit_code) == ("finished", 0)
    assert (failed.outcome, failed.exit_code) == ("failed", 7)
    for run in (finishes, fails, ends_meanwhile):
        assert_log_is_complete(await host.new.printed(run))
    assert "stopping" in await host.new.printed(is_stopped)

    # The new agent continues the numbers of the old agent's samples and generations.
    await edge.until(lambda: edge.batches[-1].sequence > last_batch)
    sequences = [batch.sequence for batch in edge.batches]
    assert sorted(set(sequences)) == list(range(1, max(sequences) + 1)), "no batch is lost"
    for run in runs:
        await edge.drop(run)
    await edge.want(job("echo again", generation=1, run="stale", units=[whole]))
    refused = await edge.until_state("stale", "ended")
    assert refused.outcome == "start_failed", "the generation was used by the old agent"
    await edge.want(job("echo new", generation=9, units=[whole]))
    assert (await edge.until_state("run-9", "ended")).outcome == "finished"


@pytest.mark.parametrize("host", LAUNCHERS, indirect=True)
async def test_a_notebook_of_an_old_agent_is_reachable_through_the_present_agent(host: UpgradedHost) -> None:
    edge = host.edge
    edge.streams_wanted = 3
    # JupyterLab may need long to end on a busy machine.
    await edge.want(job("", kind="notebook", secret=SECRET, units=[host.old.units[0]], grace_seconds=60.0))
    await edge.until(lambda: (seen := edge.seen("run-1")) is not None and seen.ready, 120)
    shim = host.old.shim("run-1")

    await host.old.kill()
    edge.idle_streams.clear()
    await host.upgrade()

    await edge.until(lambda: (seen := edge.seen("run-1")) is not None and seen.ready)
    assert host.new.shim("run-1") == shim and processes.is_alive(shim["pid"], shim["start_ticks"])
    own = {"X-Gpupool-Secret": SECRET, "Host": HOST}
    async with (
        StreamForwarder(edge, "run-1") as url,
        aiohttp.ClientSession(headers=own) as session,
        session.get(f"{url}/lab") as page,
    ):
        assert page.status == 200 and "JupyterLab" in await page.text()
    await edge.change("run-1", verb="stop", code="idle")
    assert (await edge.until_state("run-1", "ended")).outcome == "idle"


# --- the database -------------------------------------------------------------------------------------------

DUMPS = ("demo_0_0.sql.xz", "demo_0_1.sql.xz")
# Facts that an upgrade keeps, each with the SQL that reads it from tables that every version has.
# ``tests/e2e/upgraded_database.py`` reads the same facts through the ORM.
KEPT = {
    "workloads": "SELECT state, count(*) FROM scheduler_workload GROUP BY state",
    "runs": "SELECT state, count(*) FROM scheduler_run GROUP BY state",
    "units held": "SELECT count(*) FROM scheduler_allocation WHERE upper_inf(period)",
    "reservations": "SELECT state, count(*) FROM scheduler_reservation GROUP BY state",
    "units bound": "SELECT count(*) FROM scheduler_boundunit",
    "guaranteed slots": "SELECT sum(guaranteed_slots) FROM scheduler_quota",
    "charges": "SELECT count(*) FROM telemetry_charge",
    "charged": "SELECT sum(charged)::text FROM telemetry_charge",
    "samples": "SELECT count(*) FROM telemetry_sample",
    "rollups": "SELECT resolution::text, count(*) FROM telemetry_rollup GROUP BY resolution",
    "covered seconds": "SELECT round(sum(covered_seconds))::bigint FROM telemetry_rollup",
    "energy": "SELECT sum(energy_mj)::bigint FROM telemetry_rollup",
}


def read_facts(connection: psycopg.Connection[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the facts of ``KEPT``: a number or text, or a count for each state."""
    facts: dict[str, Any] = {}
    for name, query in KEPT.items():
        rows = connection.execute(query).fetchall()  # type: ignore[arg-type]
        facts[name] = dict(rows) if " GROUP BY " in query else rows[0][0]  # type: ignore[arg-type]
    return facts


@pytest.fixture(params=DUMPS)
def old_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """Restore a version's dump into a new database and yield its address."""
    server = os.environ["DATABASE_URL"]
    name = f"upgrade_{os.getpid()}"
    with psycopg.connect(conninfo.make_conninfo(server, dbname="postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            with psycopg.connect(conninfo.make_conninfo(server, dbname=name), autocommit=True) as connection:
                connection.execute(lzma.decompress((FIXTURES / request.param).read_bytes()))
            yield urlsplit(server)._replace(path=f"/{name}").geturl()
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def output_of(database: str, *command: str) -> str:
    """Run a Python module or script on that database. Returns its output."""
    environment = {**os.environ, "DATABASE_URL": database, "DJANGO_SETTINGS_MODULE": "config.settings"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_database_of_an_earlier_version_is_migrated_and_the_engine_plans_on_it(
    old_database: str,
) -> None:
    with psycopg.connect(old_database) as connection:
        before = read_facts(connection)
    assert before["runs"]["running"] >= 5 and before["workloads"]["queued"] >= 2
    assert before["reservations"]["active"] and before["reservations"]["confirmed"] and before["units bound"]
    assert before["charges"] and before["guaranteed slots"]

    output_of(old_database, "manage.py", "migrate", "--verbosity", "0")
    output_of(old_database, "manage.py", "migrate", "--check")
    result = json.loads(output_of(old_database, "-m", "tests.e2e.upgraded_database").splitlines()[-1])

    assert result["facts"] == before
    assert result["violations"] == []
    assert result["led"] and result["rejected"] == []
    assert result["answered"] == before["workloads"]["queued"]
    assert result["after"]["runs"]["running"] == before["runs"]["running"]
    for table in ("charges", "charged", "samples", "guaranteed slots"):
        assert result["after"][table] == before[table]
    with psycopg.connect(old_database) as connection:
        assert_earlier_charges_keep_their_rules(connection)


def assert_earlier_charges_keep_their_rules(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Assert that refunds and payers of earlier charges are the same as before the upgrade."""
    limits = connection.execute(
        "SELECT array_agg(forgiven_minutes ORDER BY valid_from), max(valid_from) <= now() AND"
        " min(valid_from) < (SELECT min(start) FROM telemetry_charge)"
        " FROM scheduler_pool AS pool LEFT JOIN telemetry_refundlimit AS rule ON rule.pool_id = pool.id"
        " GROUP BY pool.id"
    ).fetchall()
    assert limits == [([None, 60], True)] * len(limits)
    payers = connection.execute(
        "SELECT DISTINCT charge.cost_centre, (SELECT code FROM telemetry_costcentreshare AS centre"
        " WHERE centre.pool_id = charge.pool_id AND centre.valid_from <= charge.start"
        " ORDER BY centre.valid_from DESC LIMIT 1)"
        " FROM telemetry_charge AS charge WHERE bucket = 'reserved_unused' AND reservation_id IS NULL"
    ).fetchall()
    assert payers
    assert all(paid == named for paid, named in payers)
