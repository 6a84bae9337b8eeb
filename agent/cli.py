"""Runs the agent's command line.

An error is one line that names the argument, the value and the allowed values.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from agent.cli_arguments import EXIT_USAGE, build_parser, edge_argument
from agent.daemon import Agent, AgentOptions
from agent.diagnostics import nvidia_smi
from agent.gpu.nvml_reader import GpuReadError, NvmlGpuReader
from agent.gpu.reader import GpuInventory, GpuReader
from agent.gpu.simulated_faults import plant_fault, plant_stray, plant_xid
from agent.gpu.simulated_models import SimulationError, parse_mig, parse_models
from agent.gpu.simulated_reader import SimulatedGpuReader
from agent.host import thread_pool
from agent.host.addresses import local_address_towards
from agent.host.durable_files import StateFolderError, write_text
from agent.host.oom_protection import protect_from_oom_killer
from agent.host.shutdown import run_and_exit
from agent.host.state import StateFolder
from agent.isolation.cgroups import Cgroups
from agent.isolation.launcher_choice import abstract_socket_note, choose_launcher, socket_family_note
from agent.isolation.person_users import open_person_users
from agent.isolation.workload_network import open_network
from agent.protocol import SampleRow
from agent.runs.hooks import Hooks
from agent.runs.manager import RunManager
from agent.server.connection import ServerRejectedError, join_pool

EXIT_FAILURE = 1
ONE_LINE_ERRORS = (StateFolderError, SimulationError, RuntimeError, ServerRejectedError, OSError)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = build_parser(COMMANDS).parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except ONE_LINE_ERRORS as error:
        return _exit_status(error)


def _exit_status(error: BaseException) -> int:
    """Print an error and return its exit status.

    An error in ONE_LINE_ERRORS is printed as one line. Any other error is printed with its traceback.
    """
    if isinstance(error, ONE_LINE_ERRORS):
        print(f"agent: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)
    return EXIT_USAGE if isinstance(error, (StateFolderError, SimulationError)) else EXIT_FAILURE


def _print_line(text: str) -> None:
    """Print a line. Ignore the error if the reader of the output has closed the pipe, as ``| head`` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_command(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    models = _simulated_models(options)
    parse_mig(options.simulate_mig, models)
    if options.state in (options.homes, options.locks):
        raise StateFolderError("--homes and --locks: must differ from the state folder")
    state = StateFolder(options.state)
    host = options.host or state.identity.host or _machine_name()
    if not state.identity.credential and not options.join_token:
        raise StateFolderError(
            "--join-token-file: needed for the first start; make a token at Fleet, Add host, "
            "or on the host's page"
        )
    if state.identity.host and options.host and options.host != state.identity.host:
        raise StateFolderError(
            f"--host: {options.host} is not {state.identity.host}, the name of the host in {options.state}"
        )
    if options.reach and options.network != "internet":
        raise StateFolderError("--reach: allowed only with --network internet")
    options.edge = options.edge or _joined_edge(state)
    stop, diagnostics = options.on_exit == "stop", dict(options.diagnostic)
    agent_options = AgentOptions(
        options.edge,
        options.join_token or "",
        host,
        options.sample_seconds,
        stop,
        diagnostics,
        options.most_tmp,
    )
    run_and_exit(_run_agent(agent_options, state, models, options), _exit_status)


def _join_command(options: argparse.Namespace) -> int:
    """Exchange the token for a credential and save it with the edge's address in the state folder."""
    logging.basicConfig(level=logging.WARNING, format="agent: %(message)s")
    state = StateFolder(options.state)
    host = options.host or state.identity.host or _machine_name()

    async def join() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            await join_pool(session, options.edge, state, options.join_token, host)

    try:
        asyncio.run(join())
    except (TimeoutError, aiohttp.ClientError) as error:
        raise RuntimeError(
            f"--edge: {options.edge} does not answer: {error or type(error).__name__}"
        ) from None
    state.save_edge(options.edge)
    _print_line(f"joined as {state.identity.host}; its credential is in {options.state}")
    return 0


def _joined_edge(state: StateFolder) -> str:
    try:
        return edge_argument(state.edge.read_text().strip())
    except FileNotFoundError:
        raise StateFolderError(f"--edge: needed, since {state.folder} has not joined an edge") from None
    except argparse.ArgumentTypeError as error:
        raise StateFolderError(f"{state.edge}: {error}") from None


async def _run_agent(
    agent_options: AgentOptions, state: StateFolder, models: list[str], options: argparse.Namespace
) -> None:
    thread_pool.watch_children_without_threads()
    asyncio.get_running_loop().set_default_executor(thread_pool.started_pool())
    state.install_tools()
    numbers = options.team_users if os.geteuid() == 0 else None
    chosen = choose_launcher(
        options.launcher, state.folder / "probe", options.network, numbers and numbers.last
    )
    launcher = chosen.launcher
    closed = isolation_downgrade(state.folder / "launcher", options.launcher, launcher.name, chosen.notes)
    numbers = numbers if chosen.users else None
    person_users, person_notes = open_person_users(
        options.person_homes, options.person_ids, options.team_users, chosen.users
    )
    network = open_network(options.network, state.folder, numbers, options.reach)
    gpu_reader = _make_gpu_reader(agent_options.host, models, options.simulate_mig, state.folder)
    hardware = await _read_hardware(gpu_reader)
    homes = options.homes or state.folder / "homes"
    homes.mkdir(parents=True, exist_ok=True, mode=0o700)
    locks_folder = options.locks or (
        state.folder / "locks" if gpu_reader.simulated else default_locks_folder()
    )
    reachable = network.mode == "host" or (launcher.name == "plain" and network.mode == "private")
    address = (options.address or local_address_towards(options.edge)) if reachable else ""
    runs = RunManager(
        state,
        launcher,
        hardware,
        homes=homes,
        locks_folder=locks_folder,
        exposed=options.expose,
        address=address,
        numbers=numbers,
        person_users=person_users,
        cgroups=Cgroups(max_processes=options.most_processes),
        network=network,
        hooks=Hooks(options.prolog, options.epilog, options.hook_seconds),
        closed=closed,
    )
    network.watch()
    notes = [f"No workload starts on this host: {closed}."] if closed else []
    notes += [
        *chosen.notes,
        *person_notes,
        *network.notes,
        *abstract_socket_note(launcher, network.mode),
        *socket_family_note(launcher),
        *runs.cgroups.notes,
        *protect_from_oom_killer(),
    ]
    for note in notes:
        logging.getLogger("agent").warning(note)
    await Agent(agent_options, state, launcher, gpu_reader, hardware, runs, notes).run()


def _make_gpu_reader(host: str, models: list[str], mig: str, folder: Path) -> GpuReader:
    if not models:
        return NvmlGpuReader(kept=folder / "hardware.json")
    return SimulatedGpuReader(host, models, parse_mig(mig, models), folder)


async def _read_hardware(gpu_reader: GpuReader) -> GpuInventory:
    try:
        return await gpu_reader.hardware()
    except GpuReadError as problem:
        known = gpu_reader.last_known(str(problem))
        # Continue without NVML. Workloads may still run on these GPUs, and only a running agent renews the
        # leases of these workloads.
        if known is not None:
            logging.getLogger("agent").error(
                "the GPUs can't be read; the last known inventory is used: %s", problem
            )
            return known
        raise RuntimeError(
            f"no GPU can be read here: {problem}. Simulate some with --simulate 8xH100-80GB"
        ) from None


def isolation_downgrade(record: Path, requested: str, current: str, notes: list[str]) -> str:
    """Return the reason if this host has lost its sandbox and may start no workload; otherwise ''.

    ``record`` is a file with the name of the launcher that the agent used last time. ``requested`` is the
    value of --launcher, and ``current`` is the name of the launcher that was chosen now.

    The probe of bubblewrap may fail temporarily. In this case the agent does not fall back to ``plain``. It
    starts no workload until it is restarted with a working bubblewrap or with --launcher plain. Workloads
    that already run continue.
    """
    previous = record.read_text().strip() if record.exists() else ""
    if requested == "auto" and previous == "bubblewrap" and current == "plain":
        return (
            f"workloads of this host ran in sandboxes before. Now: {' '.join(notes)} "
            "Fix this and restart the agent, or "
            "start it with --launcher plain to continue without sandboxes"
        )
    if previous != current:
        write_text(record, current)
    return ""


def default_locks_folder(shared: Path = Path("/run/lock")) -> Path:
    """Return the lock folder for this machine's real GPUs.

    Each Unix user has its own folder, because only the owner of a lock file can lock it. Raises RuntimeError
    in two cases. First: another user owns this user's folder. Second: this user is not root, and the lock
    folder of root exists. Then this agent and root's agent would not see each other's locks.
    """
    base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    own, root_folder = base / f"gpupool-{os.getuid()}", base / "gpupool-0"
    if own != root_folder and root_folder.exists() and root_folder.stat().st_uid == 0:
        raise RuntimeError(
            f"--locks: root's agent keeps the locks of this machine's GPUs in {root_folder}, "
            "which an agent of another user cannot lock. "
            "Run one agent, or simulate GPUs with --simulate"
        )
    own.mkdir(exist_ok=True, mode=0o700)
    if own.stat().st_uid != os.getuid() or own.is_symlink():
        raise RuntimeError(f"--locks: {own} is owned by another user. Remove it, or give another folder")
    own.chmod(0o700)
    return own


def _machine_name() -> str:
    name = re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower()).strip(".-")[:63]
    return name or "host"


def _simulated_models(options: argparse.Namespace) -> list[str]:
    if options.simulate_mig and not options.simulate:
        raise SimulationError("--simulate-mig: needs --simulate")
    return parse_models(options.simulate) if options.simulate else []


def _probe_command(options: argparse.Namespace) -> int:
    models = _simulated_models(options)

    async def show(folder: Path) -> None:
        gpu_reader = _make_gpu_reader(options.host or _machine_name(), models, options.simulate_mig, folder)
        hardware = await _read_hardware(gpu_reader)
        rows = await gpu_reader.sample({}, time.time())
        report: dict[str, Any] = {
            "simulated": gpu_reader.simulated,
            "hardware": asdict(hardware),
            "samples": [asdict(row) for row in rows],
            "minute": asdict(await gpu_reader.minute(time.time())),
            "processes": [asdict(process) for process in gpu_reader.processes()],
            "earlier_events": [asdict(event) for event in await gpu_reader.earlier(time.time())],
        }
        if isinstance(gpu_reader, NvmlGpuReader):
            report["conditions"] = await gpu_reader.conditions()
            report["nvidia_smi"] = _compare_with_nvidia_smi(hardware, rows)
        _print_line(json.dumps(report, indent=2))
        await gpu_reader.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(show(Path(folder)))
    return 0


def _compare_with_nvidia_smi(hardware: GpuInventory, rows: list[SampleRow]) -> dict[str, Any]:
    try:
        facts = nvidia_smi.compare_with_nvml(nvidia_smi.read_nvidia_smi(), hardware, rows)
    except nvidia_smi.NvidiaSmiUnavailable as why:
        return {"compared": False, "why": str(why)}
    differ = [f"{fact.fact}{f' of {fact.gpu}' if fact.gpu else ''}" for fact in facts if fact.same is False]
    return {"compared": True, "differ": differ, "facts": [asdict(fact) for fact in facts]}


def _plant_stray_command(options: argparse.Namespace) -> int:
    plant_stray(options.state, options.gpu, options.pid)
    _print_line(f"process {options.pid} is reported on GPU {options.gpu} from now on")
    return 0


def _plant_fault_command(options: argparse.Namespace) -> int:
    plant_fault(options.state, options.gpu, "" if options.fault == "none" else options.fault)
    _print_line(
        f"GPU {options.gpu} has "
        f"{'no fault' if options.fault == 'none' else f'the fault {options.fault}'} from now on"
    )
    return 0


def _plant_xid_command(options: argparse.Namespace) -> int:
    _print_line(plant_xid(options.state, options.gpu, options.code, time.time()))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run_command,
    "join": _join_command,
    "probe": _probe_command,
    "plant-xid": _plant_xid_command,
    "plant-stray": _plant_stray_command,
    "plant-fault": _plant_fault_command,
}
