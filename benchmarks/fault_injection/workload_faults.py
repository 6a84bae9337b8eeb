"""Inject faults of workloads, engines and the database's disk.

Examples: a frozen engine, a workload that ignores signals, an agent that is killed while notebooks run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from benchmarks.fault_injection.host_faults import check_survives, last_beat, start_heartbeat_job, state_of
from benchmarks.fault_injection.job_ledger import BEGIN_SCRIPT
from benchmarks.fault_injection.process_faults import (
    MAX_WAIT_SECONDS,
    FaultContext,
    cancel,
    children,
    fault,
    last_sync,
)
from benchmarks.harness.conditions import ConditionTimeout, rows, wait_until
from benchmarks.harness.installation import GRACE_SECONDS, ROOT, LocalHost
from benchmarks.harness.run_processes import processes_of_runs

SOCKETS = 200
STOP_SECONDS = 5.0  # longest time in which a process stops after SIGSTOP
FREEZER = Path("/sys/fs/cgroup/freezer")


# -- the engine ----------------------------------------------------------------------------------


@fault(
    "SIGSTOP of the leading engine for 10 s: another engine takes over in 5 s, stale writes are refused", 5
)
def freeze_engine(context: FaultContext) -> float:
    with second_engine(context) as second:
        leader = _freeze_leader(lambda: [context.site.pid("engine"), second])
        began = time.monotonic()
        try:
            wait_until(
                lambda: _leader_name() != leader.holder,
                MAX_WAIT_SECONDS,
                "another engine leads",
                every=0.02,
            )
            took = time.monotonic() - began
            context.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)
            time.sleep(max(0.0, 10 - (time.monotonic() - began)))
        finally:
            resume(leader)
        context.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)
    return took


@dataclass(frozen=True)
class LeadingEngine:
    """The living processes of the engine that leads.

    ``holder`` is the engine's unique name in the leader row.
    """

    holder: str
    pids: tuple[int, ...]


def leading_engine(holder: str, engines: Sequence[int]) -> LeadingEngine | None:
    """Return the processes of the engine with the name ``holder``.

    Return None if one of its processes has ended. ``engines`` are the pids of all engines of the
    installation. The pid in ``holder`` must be one of ``engines`` or a child of one of ``engines``. Otherwise
    the engine may be dead. A dead engine stays in the leader row until another engine takes over, and an
    unrelated process may have got its pid.
    """
    worker = int(holder.split(":")[1]) if holder else 0
    for engine in engines:
        pids = (engine, *children_of(engine))
        if worker in pids and all(process_state(pid) not in "ZX" for pid in pids):
            return LeadingEngine(holder, pids)
    return None


def freeze(leader: LeadingEngine) -> bool:
    """Stop (SIGSTOP) every process of an engine.

    Return True if all have stopped. Otherwise resume all of them and return False.
    """
    try:
        for pid in leader.pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(
            lambda: all(process_state(pid) == "T" for pid in leader.pids),
            STOP_SECONDS,
            "the engine is frozen",
        )
    except (ProcessLookupError, ConditionTimeout):
        resume(leader)
        return False
    return True


def resume(leader: LeadingEngine) -> None:
    for pid in leader.pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def process_state(pid: int) -> str:
    """Return the state letter of a process as in proc(5), or X if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def children_of(pid: int) -> list[int]:
    """Return the child processes of a process, or [] if it has ended."""
    try:
        return children(pid)
    except OSError:
        return []


def _freeze_leader(engines: Callable[[], Sequence[int]]) -> LeadingEngine:
    """Freeze the leading engine and return it.

    Retry if no living engine leads, or if another engine has taken over meanwhile.
    """
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < deadline:
        leader = leading_engine(_leader_name(), engines())
        if leader is None:
            time.sleep(0.1)
        elif freeze(leader):
            if _leader_name() == leader.holder:
                return leader
            resume(leader)
    raise ConditionTimeout("a living engine leads")


def _leader_name() -> str:
    from scheduler.models import Leader

    return str(rows(lambda: Leader.objects.get(pk=1).holder))


@contextlib.contextmanager
def second_engine(context: FaultContext) -> Iterator[int]:
    """Run a second engine while the context lasts, and yield its pid.

    It is ready to take over.
    """
    log = context.site.folder / "engine2.log"
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
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# -- agents and notebooks ------------------------------------------------------------------------


def end_notebooks(context: FaultContext) -> None:
    """Cancel the notebooks of a fault after its last round."""
    for name in context.site.notebooks:
        cancel(context, name)
    context.site.notebooks = []


@fault(
    "agents killed while two notebooks run: both are adopted, their processes are the same",
    15,
    after=end_notebooks,
)
def kill_agent_beside_notebooks(context: FaultContext) -> float:
    names = context.site.notebooks
    while len(names) < 2:
        names.append(_notebook(context))
    try:
        return _agents_killed(context, names)
    except ConditionTimeout:
        end_notebooks(context)  # the next round starts new notebooks
        raise


def _agents_killed(context: FaultContext, names: list[str]) -> float:
    runs = [_ready_run(name) for name in names]
    before = {run: set(processes_of_runs(context.site.folder, run)) for run in runs}
    began = time.monotonic()
    hosts = {rows(partial(_host_name, run)) for run in runs}
    for host in hosts:
        local_host = next(candidate for candidate in context.site.hosts if candidate.name == host)
        _kill_agent(local_host)
    took = (time.monotonic() - began) / len(hosts)
    time.sleep(1)
    for name, run in zip(names, runs, strict=True):
        if state_of(name)[0] != "running" or _ready_run(name) != run:
            raise ConditionTimeout(f"all notebooks are adopted: one is {state_of(name)}")
        if not before[run] <= set(processes_of_runs(context.site.folder, run)):
            raise ConditionTimeout("all notebooks are adopted: one has other processes")
    print(f"    {len(hosts)} agents were restarted", flush=True)
    return took


def _host_name(run: str) -> str:
    from scheduler.models import Run

    return str(Run.objects.select_related("host").get(public_id=run).host.name)


def _kill_agent(host: LocalHost) -> None:
    last = last_sync(host)
    os.kill(host.pid, signal.SIGKILL)
    wait_until(lambda: last_sync(host) > last, MAX_WAIT_SECONDS, f"{host.name} reports again")


def _notebook(context: FaultContext) -> str:
    body = {
        "project": "faults/faults",
        "pool": "faults",
        "name": "a notebook",
        "units": 1,
        "max_runtime_seconds": 7200,
    }
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        try:
            return str(context.site.ask("POST", "notebooks/", body)["id"])
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _ready_run(workload: str) -> str:
    """Wait until a notebook is ready, and return the id of its run."""
    from scheduler.models import Run

    found = Run.objects.filter(workload__public_id=workload, state="running", ready_at__isnull=False)
    wait_until(lambda: rows(found.exists), MAX_WAIT_SECONDS, "a notebook answers")
    return str(rows(lambda: found.get().public_id))


@fault(
    f"{SOCKETS} open sockets of a notebook when its owner signs out: all closed in 250 ms",
    0.25,
    under_load=False,
)
def revoke_sockets(context: FaultContext) -> float:
    workload = _notebook(context)
    _ready_run(workload)
    try:
        return asyncio.run(_revoke(workload))
    except (aiohttp.ClientError, TimeoutError) as problem:
        raise ConditionTimeout(f"{SOCKETS} sockets are opened and closed: {problem}") from None
    finally:
        cancel(context, workload)


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
    """Open one more WebSocket to a notebook.

    Retry, because the agent may have to open another connection to the edge first.
    """
    for _ in range(20):
        try:
            return await jupyter.socket(path)  # type: ignore[no-any-return]
        except aiohttp.WSServerHandshakeError:
            await asyncio.sleep(0.1)
    return await jupyter.socket(path)  # type: ignore[no-any-return]


def _now() -> Any:
    from datetime import UTC, datetime

    return datetime.now(UTC)


# -- workloads that ignore signals ---------------------------------------------------------------


@fault(
    "a workload that ignores TERM: KILL at the end of its grace period, within a second", GRACE_SECONDS + 1
)
def ignores_term(context: FaultContext) -> float:
    return _killed_at_grace(context, "trap '' TERM")


@fault(
    "a workload with 200 processes that ignore TERM: all end at the end of its grace period, within a second",
    GRACE_SECONDS + 1,
)
def many_processes(context: FaultContext) -> float:
    return _killed_at_grace(context, "trap '' TERM; for n in {1..200}; do sleep 300 & done")


def _killed_at_grace(context: FaultContext, extra: str) -> float:
    from scheduler.models import Run

    workload, first, _ = start_heartbeat_job(context, extra=extra)
    time.sleep(1)
    requested_at = time.time()
    cancel(context, workload)
    wait_until(lambda: state_of(workload)[0] == "ended", MAX_WAIT_SECONDS, "it ends")
    if first.run in processes_of_runs(context.site.folder).values():
        raise ConditionTimeout("its end is reported after all its processes have ended: some still run")
    took = last_beat(context, first.run) - requested_at
    outcome = rows(lambda: Run.objects.get(public_id=first.run).outcome)
    if took < GRACE_SECONDS - 1 or outcome != "killed_at_grace":
        raise ConditionTimeout(f"it is killed at the end of its grace period: after {took:.2f} s, {outcome}")
    return took


@fault(
    "a workload that KILL does not end: its GPU is quarantined, and usable again when it has ended",
    40,
    under_load=False,
)
def unkillable(context: FaultContext) -> float:
    from scheduler.models import Allocation, Gpu

    if not (FREEZER / "cgroup.procs").exists() or not os.access(FREEZER, os.W_OK):
        raise ConditionTimeout(
            "a process that KILL does not end can be created: needs the cgroup v1 freezer, and root"
        )
    group = FREEZER / f"gpupool-faults-{os.getpid()}"
    group.mkdir(exist_ok=True)
    workload, first, _ = start_heartbeat_job(context)
    gpu = rows(lambda: Allocation.objects.get(run__public_id=first.run).unit.gpu_id)
    try:
        for pid in processes_of_runs(context.site.folder, first.run):
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        cancel(context, workload)
        began = time.monotonic()
        wait_until(lambda: _repair(Gpu, gpu) == "quarantined", MAX_WAIT_SECONDS, "its GPU is quarantined")
        took = time.monotonic() - began
        if not rows(
            lambda: Allocation.objects.filter(run__public_id=first.run, period__upper_inf=True).exists()
        ):
            raise ConditionTimeout("its GPU stays allocated: it was freed")
    finally:
        (group / "freezer.state").write_text("THAWED")
    wait_until(lambda: state_of(workload)[0] == "ended", MAX_WAIT_SECONDS, "it ends after it is thawed")
    wait_until(lambda: _repair(Gpu, gpu) == "well", MAX_WAIT_SECONDS, "its GPU is usable again")
    group.rmdir()
    return took


def _repair(gpus: Any, gpu: int) -> str:
    return str(rows(lambda: gpus.objects.get(pk=gpu).repair_state))


# -- preemption ----------------------------------------------------------------------------------


def _runs(workload: str) -> bool:
    return state_of(workload)[0] == "running"


WAIT_FOR_NOTICE = 'while [ ! -e "$GPUPOOL_NOTICE" ]; do sleep 0.05; done'
SAVE_COMMAND = 'touch "$GPUPOOL_CHECKPOINT_DIR/.done"'
PREEMPTION_COMMANDS = {
    "acknowledged": f"{WAIT_FOR_NOTICE}; {SAVE_COMMAND}; exit 0",
    "crashed": f"{WAIT_FOR_NOTICE}; exit 3",
    "silent": "trap '' TERM; while :; do sleep 0.1; done",
    "acknowledged and ran on": f"trap '' TERM; {WAIT_FOR_NOTICE}; {SAVE_COMMAND};"
    " while :; do sleep 0.1; done",
}


@fault("preempted work that saves and exits, crashes, ignores, or saves and runs on: four recorded ends", 30)
def preempted(context: FaultContext) -> float:
    from scheduler.models import Host, Run
    from scheduler.services import drain_host, return_host

    host = context.rng.choice(context.site.hosts[1:])
    ends: dict[str, tuple[str, bool, int | None]] = {}
    began = time.monotonic()
    for names in (list(PREEMPTION_COMMANDS)[:2], list(PREEMPTION_COMMANDS)[2:]):
        jobs = {}
        for name in names:
            workload = context.ledger.submit_with_retry(
                BEGIN_SCRIPT + PREEMPTION_COMMANDS[name],
                MAX_WAIT_SECONDS,
                to_end_well=False,
                labels_required={"name": host.name},
            )
            jobs[name] = context.ledger.wait_started(workload, MAX_WAIT_SECONDS)
            wait_until(partial(_runs, workload), MAX_WAIT_SECONDS, "the server knows that it runs")
        row = rows(lambda: Host.objects.get(name=host.name))
        rows(partial(drain_host, row, reason="fault injection", now=_now()))
        for name, first in jobs.items():
            ended = Run.objects.filter(public_id=first.run, state="ended")
            wait_until(partial(rows, ended.exists), MAX_WAIT_SECONDS, f"{name}: it ends")
            run = rows(ended.get)
            ends[name] = (run.outcome, run.checkpoint_at is not None, run.exit_code)
            cancel(context, first.workload)
        rows(partial(return_host, row, now=_now()))
    if len({(outcome, saved) for outcome, saved, _ in ends.values()}) != 4:
        raise ConditionTimeout(f"four different ends: {ends}")
    return time.monotonic() - began


# -- the database's disk -------------------------------------------------------------------------


def _checkpoint(place: Path) -> None:
    """Run a checkpoint of the database.

    It frees the write-ahead log of this round, so that the next round can use the space.
    """
    import psycopg
    from django.conf import settings

    host = settings.DATABASES["default"]["HOST"]
    password = json.loads((place / "secrets.json").read_text())["postgres"]
    with psycopg.connect(
        host=host, user="postgres", dbname="postgres", password=password, autocommit=True
    ) as database:
        database.execute("CHECKPOINT")


def _next_log_file() -> None:
    """Write so much data that the database needs the next file of its write-ahead log."""
    from django.db import OperationalError, connection

    try:
        with connection.cursor() as cursor:
            for _ in range(20):
                cursor.execute("SELECT pg_logical_emit_message(false, 'faults', repeat('x', 1000000))")
    except OperationalError as problem:
        raise ConditionTimeout(f"the database continues in its preallocated log files: {problem}") from None
    finally:
        connection.close()


@fault(
    "the database's disk is full for 3 s: new work is refused with 503, running work continues, all recovers",
    30,
)
def disk_full_of_the_database(context: FaultContext) -> float:
    place = context.site.folder / "site"
    if not os.path.ismount(place):
        raise ConditionTimeout("the database has its own disk: needs root")
    workload, first, host = start_heartbeat_job(context)
    _checkpoint(place)
    filler = place / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(b"x" * 8192)
            file.flush()
    deadline, refused = time.monotonic() + 3, 0
    try:
        _next_log_file()
        while time.monotonic() < deadline:
            try:
                context.ledger.submit("true", to_end_well=False)
            except OSError as problem:
                refused += 1
                if getattr(problem, "code", 503) == 500:
                    raise ConditionTimeout("a request gets a documented error: it was 500") from None
            time.sleep(0.2)
    finally:
        filler.unlink()
    took = context.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS)
    check_survives(context, workload, first)
    cancel(context, workload)
    print(f"    {refused} requests refused meanwhile", flush=True)
    return took
