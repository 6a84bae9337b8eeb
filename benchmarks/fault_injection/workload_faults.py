"""Faults of workloads and of who looks after them: engines that freeze, work that does not go, notebooks whose agent dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from benchmarks.fault_injection.host_faults import beating_job, check_survives, last_beat, state_of
from benchmarks.fault_injection.job_ledger import BEGIN_SCRIPT
from benchmarks.fault_injection.process_faults import (
    MAX_WAIT_SECONDS,
    FaultContext,
    cancel,
    children,
    fault,
    last_sync,
)
from benchmarks.harness.installation import (
    GRACE_SECONDS,
    ROOT,
    ConditionTimeout,
    LocalHost,
    processes_of_runs,
    rows,
    wait_until,
)

SOCKETS = 200
FREEZER = Path("/sys/fs/cgroup/freezer")


# -- the engine ----------------------------------------------------------------------------------------------------------


@fault(
    "SIGSTOP of the engine that leads for 10 s: another one takes over in 5 s, stale writes are refused", 5
)
def freeze_engine(broken: FaultContext) -> float:
    with second_engine(broken):
        led = _leader()
        frozen = [led, *children(led)]
        parent = int(Path(f"/proc/{led}/stat").read_text().rpartition(")")[2].split()[1])
        frozen.append(parent)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            wait_until(lambda: _leader() != led, MAX_WAIT_SECONDS, "another engine leads", every=0.02)
            took = time.monotonic() - began
            broken.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)
            time.sleep(max(0.0, 10 - (time.monotonic() - began)))
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        broken.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)
    return took


def _leader() -> int:
    from scheduler.models import Leader

    return int(rows(lambda: Leader.objects.get(pk=1).holder).split(":")[1])


@contextlib.contextmanager
def second_engine(broken: FaultContext) -> Iterator[None]:
    """One more engine beside the one of the installation, ready to take over."""
    log = broken.site.folder / "engine2.log"
    log.unlink(missing_ok=True)
    worker = [
        "-m",
        "celery",
        "-A",
        "config.celery",
        "worker",
        "--without-gossip",
        "--without-mingle",
        "-n",
        "engine2@%h",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *worker, "-Q", "engine", "-c", "1", "--prefetch-multiplier", "1", "-l", "info"],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: " ready." in log.read_text(errors="replace"), MAX_WAIT_SECONDS, "a second engine is ready"
        )
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# -- agents and notebooks ------------------------------------------------------------------------------------------------


def end_notebooks(broken: FaultContext) -> None:
    """After the last round."""
    for name in broken.site.notebooks:
        cancel(broken, name)
    broken.site.notebooks = []


@fault(
    "agents killed beside two live notebooks: both are taken over, their processes are the same",
    15,
    after=end_notebooks,
)
def kill_agent_beside_notebooks(broken: FaultContext) -> float:
    names = broken.site.notebooks
    while len(names) < 2:
        names.append(_notebook(broken))
    try:
        return _agents_killed(broken, names)
    except ConditionTimeout:
        end_notebooks(broken)  # the next round has others
        raise


def _agents_killed(broken: FaultContext, names: list[str]) -> float:
    runs = [_ready_run(name) for name in names]
    before = {run: set(processes_of_runs(broken.site.folder, run)) for run in runs}
    began = time.monotonic()
    hosts = {rows(partial(_host_name, run)) for run in runs}
    for host in hosts:
        here = next(one for one in broken.site.hosts if one.name == host)
        _kill_agent(here)
    took = (time.monotonic() - began) / len(hosts)
    time.sleep(1)
    for name, run in zip(names, runs, strict=True):
        if state_of(name)[0] != "running" or _ready_run(name) != run:
            raise ConditionTimeout(f"all notebooks are taken over: one is {state_of(name)}")
        if not before[run] <= set(processes_of_runs(broken.site.folder, run)):
            raise ConditionTimeout("all notebooks are taken over: the processes of one are others")
    print(f"    {len(hosts)} agents were started again", flush=True)
    return took


def _host_name(run: str) -> str:
    from scheduler.models import Run

    return str(Run.objects.select_related("host").get(public_id=run).host.name)


def _kill_agent(host: LocalHost) -> None:
    last = last_sync(host)
    os.kill(host.pid, signal.SIGKILL)
    wait_until(lambda: last_sync(host) > last, MAX_WAIT_SECONDS, f"{host.name} speaks again")


def _notebook(broken: FaultContext) -> str:
    wish = {
        "project": "faults/faults",
        "pool": "faults",
        "name": "a notebook",
        "units": 1,
        "max_runtime_seconds": 7200,
    }
    ends = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        try:
            return str(broken.site.ask("POST", "notebooks/", wish)["id"])
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)


def _ready_run(workload: str) -> str:
    """The run of a notebook that answers."""
    from scheduler.models import Run

    found = Run.objects.filter(workload__public_id=workload, state="running", ready_at__isnull=False)
    wait_until(lambda: rows(found.exists), MAX_WAIT_SECONDS, "a notebook answers")
    return str(rows(lambda: found.get().public_id))


@fault(
    f"{SOCKETS} live sockets of a notebook when its owner signs out: all cut in 250 ms",
    0.25,
    under_load=False,
)
def revoke_sockets(broken: FaultContext) -> float:
    workload = _notebook(broken)
    _ready_run(workload)
    try:
        return asyncio.run(_revoke(workload))
    except (aiohttp.ClientError, TimeoutError) as problem:
        raise ConditionTimeout(f"{SOCKETS} sockets are opened and cut: {problem}") from None
    finally:
        cancel(broken, workload)


async def _revoke(workload: str) -> float:
    from django.contrib.sessions.backends.db import SessionStore

    from benchmarks.harness.jupyter_client import JupyterClient
    from portal.redis_state import access_revocation
    from portal.services.work import workspaces
    from scheduler.models import Workload

    def enter() -> tuple[Any, str]:
        store = SessionStore()
        store.create()
        row = Workload.objects.get(public_id=workload)
        given = workspaces.open_workspace(
            actor=row.owner, workload=row, session_key=str(store.session_key), now=_now()
        )
        return store, given

    session, url = await asyncio.to_thread(rows, enter)
    link = urlsplit(url)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), connector=connector) as browser:
        headers = {"Host": link.netloc, "Origin": f"{link.scheme}://{link.netloc}", "Accept": "text/html"}
        jupyter = JupyterClient(browser, f"http://127.0.0.1:{link.port}", headers)
        await jupyter.ask("GET", f"{link.path}?{link.query}")
        await jupyter.ask("GET", "/lab")
        sockets: list[aiohttp.ClientWebSocketResponse] = []
        while len(sockets) < SOCKETS:
            sockets += await asyncio.gather(*(_socket(jupyter, "/api/events/subscribe") for _ in range(5)))

        async def cut(socket: aiohttp.ClientWebSocketResponse) -> float:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                async for _ in socket:
                    continue
            return time.monotonic()

        waiting = [asyncio.create_task(cut(socket)) for socket in sockets]
        await asyncio.sleep(0.5)
        if any(task.done() for task in waiting):
            raise ConditionTimeout(f"{SOCKETS} sockets are open")
        key = session.session_key

        def sign_off() -> float:
            session.delete()
            began = time.monotonic()
            access_revocation.publish_session_ended(key)
            return began

        began = await asyncio.to_thread(rows, sign_off)
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            return float(max(await asyncio.gather(*waiting)) - began)


async def _socket(jupyter: Any, path: str) -> aiohttp.ClientWebSocketResponse:
    """One more. Each needs a line of its own from the agent, which may have to be dialled first."""
    for _ in range(20):
        try:
            return await jupyter.socket(path)  # type: ignore[no-any-return]
        except aiohttp.WSServerHandshakeError:
            await asyncio.sleep(0.1)
    return await jupyter.socket(path)  # type: ignore[no-any-return]


def _now() -> Any:
    from datetime import UTC, datetime

    return datetime.now(UTC)


# -- work that does not go -----------------------------------------------------------------------------------------------


@fault("work that ignores TERM: KILL at its grace, a second more or less", GRACE_SECONDS + 1)
def ignores_term(broken: FaultContext) -> float:
    return _killed_at_grace(broken, "trap '' TERM")


@fault(
    "work that forks 200 processes that ignore TERM: all are gone at its grace, a second more or less",
    GRACE_SECONDS + 1,
)
def many_processes(broken: FaultContext) -> float:
    return _killed_at_grace(broken, "trap '' TERM; for n in {1..200}; do sleep 300 & done")


def _killed_at_grace(broken: FaultContext, also: str) -> float:
    from scheduler.models import Run

    workload, first, _ = beating_job(broken, also=also)
    time.sleep(1)
    asked = time.time()
    cancel(broken, workload)
    wait_until(lambda: state_of(workload)[0] == "ended", MAX_WAIT_SECONDS, "it ends")
    if first.run in processes_of_runs(broken.site.folder).values():
        raise ConditionTimeout("its end is told when nothing of it is left: processes are")
    took = last_beat(broken, first.run) - asked
    outcome = rows(lambda: Run.objects.get(public_id=first.run).outcome)
    if took < GRACE_SECONDS - 1 or outcome != "killed_at_grace":
        raise ConditionTimeout(f"it is killed at its grace: after {took:.2f} s, {outcome}")
    return took


@fault(
    "work that KILL does not end: its GPU is taken out of use, and back when it has gone after all",
    40,
    under_load=False,
)
def unkillable(broken: FaultContext) -> float:
    from scheduler.models import Allocation, Gpu

    if not (FREEZER / "cgroup.procs").exists() or not os.access(FREEZER, os.W_OK):
        raise ConditionTimeout(
            "a process that KILL does not end is made: needs the freezer of control groups 1, and root"
        )
    group = FREEZER / f"gpupool-faults-{os.getpid()}"
    group.mkdir(exist_ok=True)
    workload, first, _ = beating_job(broken)
    gpu = rows(lambda: Allocation.objects.get(run__public_id=first.run).unit.gpu_id)
    try:
        for pid in processes_of_runs(broken.site.folder, first.run):
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        cancel(broken, workload)
        began = time.monotonic()
        wait_until(
            lambda: _repair(Gpu, gpu) == "quarantined", MAX_WAIT_SECONDS, "its GPU is taken out of use"
        )
        took = time.monotonic() - began
        if not rows(
            lambda: Allocation.objects.filter(run__public_id=first.run, period__upper_inf=True).exists()
        ):
            raise ConditionTimeout("its GPU stays held: it was given free")
    finally:
        (group / "freezer.state").write_text("THAWED")
    wait_until(lambda: state_of(workload)[0] == "ended", MAX_WAIT_SECONDS, "it ends once it can")
    wait_until(lambda: _repair(Gpu, gpu) == "well", MAX_WAIT_SECONDS, "its GPU is back")
    group.rmdir()
    return took


def _repair(gpus: Any, gpu: int) -> str:
    return str(rows(lambda: gpus.objects.get(pk=gpu).repair_state))


# -- preemption ----------------------------------------------------------------------------------------------------------


def _runs(workload: str) -> bool:
    return state_of(workload)[0] == "running"


WAIT_FOR_NOTICE = 'while [ ! -e "$GPUPOOL_NOTICE" ]; do sleep 0.05; done'
SAVE_COMMAND = 'touch "$GPUPOOL_CHECKPOINT_DIR/.done"'
PREEMPTION_COMMANDS = {
    "acknowledged": f"{WAIT_FOR_NOTICE}; {SAVE_COMMAND}; exit 0",
    "crashed": f"{WAIT_FOR_NOTICE}; exit 3",
    "silent": "trap '' TERM; while :; do sleep 0.1; done",
    "acknowledged and ran on": f"trap '' TERM; {WAIT_FOR_NOTICE}; {SAVE_COMMAND}; while :; do sleep 0.1; done",
}


@fault(
    "work that has to go: acknowledged, crashed, silent, acknowledged and ran on are four recorded ends", 30
)
def preempted(broken: FaultContext) -> float:
    from scheduler.models import Host, Run
    from scheduler.services import drain_host, return_host

    host = broken.rng.choice(broken.site.hosts[1:])
    found: dict[str, tuple[str, bool, int | None]] = {}
    began = time.monotonic()
    for names in (list(PREEMPTION_COMMANDS)[:2], list(PREEMPTION_COMMANDS)[2:]):
        jobs = {}
        for name in names:
            made = broken.ledger.insist(
                BEGIN_SCRIPT + PREEMPTION_COMMANDS[name],
                MAX_WAIT_SECONDS,
                to_end_well=False,
                labels_required={"name": host.name},
            )
            jobs[name] = broken.ledger.wait_started(made, MAX_WAIT_SECONDS)
            wait_until(partial(_runs, made), MAX_WAIT_SECONDS, "the server knows that it runs")
        row = rows(lambda: Host.objects.get(name=host.name))
        rows(partial(drain_host, row, reason="a fault is tried", now=_now()))
        for name, first in jobs.items():
            ended = Run.objects.filter(public_id=first.run, state="ended")
            wait_until(partial(rows, ended.exists), MAX_WAIT_SECONDS, f"{name}: it ends")
            run = rows(ended.get)
            found[name] = (run.outcome, run.checkpoint_at is not None, run.exit_code)
            cancel(broken, first.workload)
        rows(partial(return_host, row, now=_now()))
    if len({(outcome, saved) for outcome, saved, _ in found.values()}) != 4:
        raise ConditionTimeout(f"four different ends: {found}")
    return time.monotonic() - began


# -- the database's disk -------------------------------------------------------------------------------------------------


def _checkpoint(place: Path) -> None:
    """What a round used up of the log is ready again for the next one, as it would be after some minutes."""
    import psycopg
    from django.conf import settings

    host = settings.DATABASES["default"]["HOST"]
    password = json.loads((place / "secrets.json").read_text())["postgres"]
    with psycopg.connect(
        host=host, user="postgres", dbname="postgres", password=password, autocommit=True
    ) as database:
        database.execute("CHECKPOINT")


def _next_log_file() -> None:
    """Write so much that the database's write-ahead log needs its next file."""
    from django.db import OperationalError, connection

    try:
        with connection.cursor() as cursor:
            for _ in range(20):
                cursor.execute("SELECT pg_logical_emit_message(false, 'faults', repeat('x', 1000000))")
    except OperationalError as problem:
        raise ConditionTimeout(
            f"the database goes on in the files of its log that are ready: {problem}"
        ) from None
    finally:
        connection.close()


@fault(
    "the database's disk is full for 3 s: new work is refused with 503, what runs goes on, all is well again after",
    30,
)
def disk_full_of_the_database(broken: FaultContext) -> float:
    place = broken.site.folder / "site"
    if not os.path.ismount(place):
        raise ConditionTimeout("a disk of its own is made: needs root")
    workload, first, host = beating_job(broken)
    _checkpoint(place)
    filler = place / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(b"x" * 8192)
            file.flush()
    ends, refused = time.monotonic() + 3, 0
    try:
        _next_log_file()
        while time.monotonic() < ends:
            try:
                broken.ledger.submit("true", to_end_well=False)
            except OSError as problem:
                refused += 1
                if getattr(problem, "code", 503) == 500:
                    raise ConditionTimeout("a request is answered in words: it was 500") from None
            time.sleep(0.2)
    finally:
        filler.unlink()
    took = broken.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)
    check_survives(broken, workload, first)
    cancel(broken, workload)
    print(f"    {refused} requests refused meanwhile", flush=True)
    return took
