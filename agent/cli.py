"""The agent's command line. A wrong argument ends it with one line that names the argument, the value and what is allowed."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import os
import re
import shlex
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import aiohttp

from agent import AGENT_VERSION
from agent.daemon import Agent, AgentOptions
from agent.diagnostics import nvidia_smi
from agent.diagnostics.runner import BUILTIN_TOOLS
from agent.gpu.nvml_reader import GpuReadError, NvmlGpuReader
from agent.gpu.reader import GpuInventory, GpuReader
from agent.gpu.simulated_faults import GEOMETRY_FAULTS, plant_fault, plant_stray, plant_xid
from agent.gpu.simulated_models import SimulationError, parse_mig, parse_models
from agent.gpu.simulated_reader import SimulatedGpuReader
from agent.host import thread_pool
from agent.host.addresses import local_address_towards
from agent.host.durable_files import StateFolderError, write_text
from agent.host.shutdown import run_and_exit
from agent.host.state import StateFolder
from agent.isolation.cgroups import MAX_PROCESSES_PER_RUN, Cgroups
from agent.isolation.launcher_choice import abstract_socket_note, choose_launcher, socket_family_note
from agent.isolation.team_users import MAX_UID, MIN_UID, UidRange
from agent.isolation.workload_network import NETWORK_MODES, checked_private_network, open_network
from agent.protocol import SampleRow
from agent.runs.hooks import DEFAULT_HOOK_TIMEOUT_SECONDS, Hooks, UnsafeHookError, checked_hook_program
from agent.runs.manager import RunManager
from agent.server.connection import ServerRejectedError, join_pool

EXIT_USAGE = 2
EXIT_FAILURE = 1
ONE_LINE_ERRORS = (StateFolderError, SimulationError, RuntimeError, ServerRejectedError, OSError)
MAX_XID = 10_000
DIAGNOSTIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{1,39}", re.ASCII)
INSTALLED_PROGRAM = "gpupool-agent"  # the wheel's program
DEFAULT_STATE_FOLDER = Path("/var/lib/gpupool-agent")  # of the systemd unit


class _OneLineErrorParser(argparse.ArgumentParser):
    """One line instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; gives the exit status."""
    options = _build_parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except ONE_LINE_ERRORS as error:
        return _exit_status(error)


def _exit_status(error: BaseException) -> int:
    """The exit status of a fault, which is told in a line where it is one of the known."""
    if isinstance(error, ONE_LINE_ERRORS):
        print(f"agent: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)
    return EXIT_USAGE if isinstance(error, (StateFolderError, SimulationError)) else EXIT_FAILURE


def _print_line(text: str) -> None:
    """Print for whoever reads us, who may have gone already (| head): nothing is wrong then, and nothing is left to say."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _build_parser() -> argparse.ArgumentParser:
    # As it is called: the installed one has a name of its own, in a checkout it is ./run agent.
    name = INSTALLED_PROGRAM if Path(sys.argv[0]).name == INSTALLED_PROGRAM else "agent"
    parser = _OneLineErrorParser(prog=name, description="The program on GPU hosts.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=AGENT_VERSION)
    names = "run|join|probe|plant-xid|plant-stray|plant-fault"
    commands = parser.add_subparsers(required=True, metavar=names, parser_class=_OneLineErrorParser)

    run = commands.add_parser("run", help="keep this host's part of the pool", allow_abbrev=False)
    run.add_argument(
        "--state", type=_folder_argument, required=True, help="folder for credential, runs and spool"
    )
    run.add_argument(
        "--edge",
        type=_edge_argument,
        default=None,
        help="the server's address, like http://127.0.0.1:8001; default: the one joined at",
    )
    run.add_argument(
        "--join-token", default="", help="single-use token from Fleet, Add host; for the first start"
    )
    run.add_argument(
        "--host",
        type=_host_argument,
        default=None,
        help="the name the token was made for (default: this machine's)",
    )
    run.add_argument(
        "--homes",
        type=_folder_argument,
        default=None,
        help="folder of the users' homes (default: in the state folder)",
    )
    run.add_argument(
        "--locks",
        type=_folder_argument,
        default=None,
        help="folder of the GPU locks, one for all agents of a machine",
    )
    run.add_argument(
        "--expose",
        type=_existing_path_argument,
        action="append",
        default=[],
        help="a further path that workloads may read",
    )
    run.add_argument("--launcher", choices=("auto", "bubblewrap", "plain"), default="auto")
    run.add_argument(
        "--network",
        choices=NETWORK_MODES,
        default="private",
        help="private: a workload reaches only itself; internet: it may go out, and nobody in; host: the host's network, for gangs",
    )
    run.add_argument(
        "--reach",
        type=_network_argument,
        action="append",
        default=[],
        metavar="10.1.2.0/24",
        help="with --network internet: a private network that workloads may reach all the same; may be given several times",
    )
    run.add_argument(
        "--team-users",
        type=_user_range_argument,
        default=UidRange(),
        metavar="70000-99999",
        help="where the agent is root: the user numbers that teams may have, or none",
    )
    run.add_argument(
        "--most-processes",
        type=_integer_argument(16, 999_999),
        default=MAX_PROCESSES_PER_RUN,
        help="of one workload, 16 to 999999",
    )
    run.add_argument(
        "--most-tmp",
        type=_integer_argument(16, 999_999),
        default=0,
        metavar="MIB",
        help="of one workload's temporary files, 16 to 999999: one that writes more is stopped; default: while the disk has room",
    )
    run.add_argument(
        "--address",
        type=_address_argument,
        default=None,
        help="where workloads of other hosts reach those of this one; default: the address on the way to the edge",
    )
    run.add_argument("--sample-seconds", type=_seconds_argument, default=5.0, help="0.1 to 3600")
    run.add_argument(
        "--on-exit", choices=("keep", "stop"), default="keep", help="what happens to workloads on SIGTERM"
    )
    run.add_argument(
        "--prolog",
        type=_hook_argument,
        default=None,
        metavar="PROGRAM",
        help="of the operator's, before each run starts",
    )
    run.add_argument(
        "--epilog",
        type=_hook_argument,
        default=None,
        metavar="PROGRAM",
        help="of the operator's, after each run has ended",
    )
    run.add_argument(
        "--diagnostic",
        type=_diagnostic_argument,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a diagnostic of the operator's that pools may choose by its name; may be given several times",
    )
    run.add_argument(
        "--hook-seconds",
        type=_seconds_argument,
        default=DEFAULT_HOOK_TIMEOUT_SECONDS,
        help="how long each may take, 0.1 to 3600",
    )
    _add_simulation_arguments(run)
    run.set_defaults(run=_run_command)

    enter = commands.add_parser("join", help="join once, then let the service run", allow_abbrev=False)
    enter.add_argument(
        "--state",
        type=_folder_argument,
        default=DEFAULT_STATE_FOLDER,
        help=f"the agent's folder; default: {DEFAULT_STATE_FOLDER}",
    )
    enter.add_argument(
        "--edge",
        type=_edge_argument,
        required=True,
        help="the server's address, like https://edge.example.org",
    )
    enter.add_argument(
        "--host",
        type=_host_argument,
        default=None,
        help="the name the token was made for (default: this machine's)",
    )
    enter.add_argument("--join-token", required=True, help="single-use token from Fleet, Add host")
    enter.set_defaults(run=_join_command)

    probe = commands.add_parser("probe", help="print the hardware this agent can read", allow_abbrev=False)
    probe.add_argument("--host", type=_host_argument, default=None)
    _add_simulation_arguments(probe)
    probe.set_defaults(run=_probe_command)

    event = commands.add_parser(
        "plant-xid", help="make a simulated GPU report a hardware error", allow_abbrev=False
    )
    event.add_argument(
        "--state",
        type=_folder_argument,
        required=True,
        help="the agent's folder; of the demo: .gpupool/demo/agents/NAME",
    )
    event.add_argument("--gpu", type=_integer_argument(0, 63), required=True, help="index of the GPU")
    event.add_argument("--code", type=_integer_argument(1, MAX_XID), required=True, help="XID, like 79")
    event.set_defaults(run=_plant_xid_command)

    stray = commands.add_parser(
        "plant-stray", help="have a real process of this machine found on a simulated GPU", allow_abbrev=False
    )
    stray.add_argument("--state", type=_folder_argument, required=True, help="the agent's folder")
    stray.add_argument("--gpu", type=_integer_argument(0, 63), required=True, help="index of the GPU")
    stray.add_argument("--pid", type=_integer_argument(1, 999_999), required=True)
    stray.set_defaults(run=_plant_stray_command)

    fault = commands.add_parser(
        "plant-fault",
        help="what diagnostics, or a change of geometry, of a simulated GPU meet from now on",
        allow_abbrev=False,
    )
    fault.add_argument("--state", type=_folder_argument, required=True, help="the agent's folder")
    fault.add_argument("--gpu", type=_integer_argument(0, 63), required=True, help="index of the GPU")
    fault.add_argument(
        "--fault", choices=("memory", "bandwidth", "arithmetic", *GEOMETRY_FAULTS, "none"), required=True
    )
    fault.set_defaults(run=_plant_fault_command)
    return parser


def _add_simulation_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--simulate", default="", metavar="8xH100-80GB", help="simulate these GPUs instead of reading NVML"
    )
    parser.add_argument(
        "--simulate-mig", default="", metavar="0:7x1g.10gb", help="split simulated GPUs into MIG instances"
    )


def _folder_argument(value: str) -> Path:
    if not value.strip() or "\0" in value:
        raise argparse.ArgumentTypeError("empty; give a folder")
    path = Path(value).absolute()
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{value} is a file; give a folder")
    return path


def _existing_path_argument(value: str) -> Path:
    path = Path(value)
    if not path.is_absolute() or not path.exists() or path == Path("/"):
        raise argparse.ArgumentTypeError(f"{value!r} is not an existing absolute path below /")
    return path


def _hook_argument(value: str) -> Path:
    try:
        return checked_hook_program(value)
    except UnsafeHookError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _diagnostic_argument(value: str) -> tuple[str, list[str]]:
    name, _, command = value.partition("=")
    if not DIAGNOSTIC_NAME.fullmatch(name) or name in (*BUILTIN_TOOLS, "simulated", "operator"):
        raise argparse.ArgumentTypeError(
            f"{name[:60]!r} is no name of 2 to 40 letters, digits, . _ and -, or one that is taken ({', '.join(BUILTIN_TOOLS)})"
        )
    try:
        words = shlex.split(command)
        return name, [str(checked_hook_program(words[0])), *words[1:]] if words else _none_argument(name)
    except UnsafeHookError as problem:
        raise argparse.ArgumentTypeError(f"{name}: {problem}") from None
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{name}: {command[:80]!r}: {problem}") from None


def _none_argument(name: str) -> list[str]:
    raise argparse.ArgumentTypeError(
        f"{name}: no command; give NAME=COMMAND, such as burn=/usr/local/bin/gpu-burn 60"
    )


def _edge_argument(value: str) -> str:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{value!r}: {error}") from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or port == 0
    ):
        raise argparse.ArgumentTypeError(
            f"{value!r} is not an address like http://127.0.0.1:8001 or https://edge.example.org"
        )
    return value.rstrip("/")


def _host_argument(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", value):
        raise argparse.ArgumentTypeError(
            f"{value[:80]!r} is not a host name of a-z, 0-9, . and -, at most 63 characters"
        )
    return value


def _address_argument(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?", value):
        raise argparse.ArgumentTypeError(f"{value[:80]!r} is not an IP address or a host name")
    return value


def _network_argument(value: str) -> str:
    try:
        return checked_private_network(value)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(
            f"{value[:40]!r} is not a network of IPv4 like 10.1.2.0/24: {problem}"
        ) from None


def _user_range_argument(value: str) -> UidRange | None:
    if value == "none":
        return None
    found = re.fullmatch(r"(\d{1,10})-(\d{1,10})", value, re.ASCII)
    if not found or not MIN_UID <= int(found[1]) <= int(found[2]) <= MAX_UID:
        raise argparse.ArgumentTypeError(
            f"{value[:40]!r} is not none or a range like 70000-99999 from {MIN_UID} to {MAX_UID}"
        )
    return UidRange(int(found[1]), int(found[2]))


def _seconds_argument(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.1 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number of seconds from 0.1 to 3600")
    return number


def _integer_argument(least: int, most: int) -> Callable[[str], int]:
    def convert(value: str) -> int:
        if not re.fullmatch(r"\d{1,6}", value, re.ASCII) or not least <= int(value) <= most:
            raise argparse.ArgumentTypeError(f"{value[:20]!r} is not a whole number from {least} to {most}")
        return int(value)

    return convert


def _run_command(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    models = _simulated_models(options)
    parse_mig(options.simulate_mig, models)
    if options.state in (options.homes, options.locks):
        raise StateFolderError("--homes and --locks: must not be the state folder itself")
    state = StateFolder(options.state)
    host = options.host or state.identity.host or _machine_name()
    if not state.identity.credential and not options.join_token:
        raise StateFolderError(
            "--join-token: needed for the first start; make one at Fleet, Add host, or on the host's page"
        )
    if state.identity.host and options.host and options.host != state.identity.host:
        raise StateFolderError(
            f"--host: {options.host} is not {state.identity.host}, as which {options.state} has joined"
        )
    if options.reach and options.network != "internet":
        raise StateFolderError("--reach: only with --network internet; allowed without it: none")
    options.edge = options.edge or _joined_edge(state)
    stop, own = options.on_exit == "stop", dict(options.diagnostic)
    started = AgentOptions(
        options.edge, options.join_token, host, options.sample_seconds, stop, own, options.most_tmp
    )
    run_and_exit(_run_agent(started, state, models, options), _exit_status)


def _join_command(options: argparse.Namespace) -> int:
    """Trade the token for a credential, and keep in the state folder what ``run`` needs from then on."""
    logging.basicConfig(level=logging.WARNING, format="agent: %(message)s")
    state = StateFolder(options.state)
    host = options.host or state.identity.host or _machine_name()

    async def ask() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            await join_pool(session, options.edge, state, options.join_token, host)

    try:
        asyncio.run(ask())
    except (TimeoutError, aiohttp.ClientError) as error:
        raise RuntimeError(
            f"--edge: {options.edge} does not answer: {error or type(error).__name__}"
        ) from None
    state.save_edge(options.edge)
    _print_line(f"joined as {state.identity.host}; what it is to the server is in {options.state}")
    return 0


def _joined_edge(state: StateFolder) -> str:
    try:
        return _edge_argument(state.edge.read_text().strip())
    except FileNotFoundError:
        raise StateFolderError(
            f"--edge: needed, since {state.folder} does not say where it has joined"
        ) from None
    except argparse.ArgumentTypeError as error:
        raise StateFolderError(f"{state.edge}: {error}") from None


async def _run_agent(
    started: AgentOptions, state: StateFolder, models: list[str], options: argparse.Namespace
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
    network = open_network(options.network, state.folder, numbers, options.reach)
    meter = _make_gpu_reader(started.host, models, options.simulate_mig, state.folder)
    hardware = await _read_hardware(meter)
    homes = options.homes or state.folder / "homes"
    homes.mkdir(parents=True, exist_ok=True, mode=0o700)
    locks_folder = options.locks or (state.folder / "locks" if meter.simulated else default_locks_folder())
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
        cgroups=Cgroups(most_processes=options.max_processes),
        network=network,
        hooks=Hooks(options.prolog, options.epilog, options.hook_seconds),
        closed=closed,
    )
    network.watch()
    notes = [f"NOTHING STARTS HERE: {closed}."] if closed else []
    notes += [
        *chosen.notes,
        *network.notes,
        *abstract_socket_note(launcher, network.mode),
        *socket_family_note(launcher),
        *runs.cgroups.notes,
    ]
    for note in notes:
        logging.getLogger("agent").warning(note)
    await Agent(started, state, launcher, meter, hardware, runs, notes).run()


def _make_gpu_reader(host: str, models: list[str], mig: str, folder: Path) -> GpuReader:
    if not models:
        return NvmlGpuReader(kept=folder / "hardware.json")
    return SimulatedGpuReader(host, models, parse_mig(mig, models), folder)


async def _read_hardware(meter: GpuReader) -> GpuInventory:
    try:
        return await meter.hardware()
    except GpuReadError as problem:
        known = meter.last_known(str(problem))
        if known is not None:  # there may be work on them, and nobody else renews its lease
            logging.getLogger("agent").error(
                "the GPUs can't be read, what was last known of them counts: %s", problem
            )
            return known
        raise RuntimeError(
            f"no GPU can be read here: {problem}. Simulate some with --simulate 8xH100-80GB"
        ) from None


def isolation_downgrade(kept: Path, wanted: str, found: str, notes: list[str]) -> str:
    """Why nothing may start: this host had sandboxes before and has none now, which nobody asked for. '' where that is not so.

    A probe may fail for a moment; what runs is kept meanwhile.
    """
    before = kept.read_text().strip() if kept.exists() else ""
    if wanted == "auto" and before == "bubblewrap" and found == "plain":
        return (
            f"workloads of this host were in sandboxes before, and now: {' '.join(notes)} Mend it and start the agent again, or "
            "start it with --launcher plain to go on without"
        )
    if before != found:
        write_text(kept, found)
    return ""


def default_locks_folder(shared: Path = Path("/run/lock")) -> Path:
    """Where the locks of this machine's real GPUs are: one folder per user who runs agents, as only its owner may hold them.

    Raises RuntimeError where somebody else made this user's folder, and for anybody but root where root's agent has its own:
    neither would see the other's locks.
    """
    base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    own, roots = base / f"gpupool-{os.getuid()}", base / "gpupool-0"
    if own != roots and roots.exists() and roots.stat().st_uid == 0:
        raise RuntimeError(
            f"--locks: root's agent keeps the locks of this machine's GPUs in {roots}, which a user's agent can not hold. "
            "Run one agent, or simulate GPUs with --simulate"
        )
    own.mkdir(exist_ok=True, mode=0o700)
    if own.stat().st_uid != os.getuid() or own.is_symlink():
        raise RuntimeError(
            f"--locks: {own} is not this user's: somebody else made it. Remove it, or name another folder"
        )
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
        meter = _make_gpu_reader(options.host or _machine_name(), models, options.simulate_mig, folder)
        hardware = await _read_hardware(meter)
        rows = await meter.sample({}, time.time())
        told: dict[str, Any] = {
            "simulated": meter.simulated,
            "hardware": asdict(hardware),
            "samples": [asdict(row) for row in rows],
            "processes": [asdict(each) for each in meter.processes()],
            "earlier_events": [asdict(event) for event in await meter.earlier(time.time())],
        }
        if isinstance(meter, NvmlGpuReader):
            told["conditions"] = await meter.conditions()
            told["nvidia_smi"] = _compare_with_nvidia_smi(hardware, rows)
        _print_line(json.dumps(told, indent=2))
        await meter.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(show(Path(folder)))
    return 0


def _compare_with_nvidia_smi(hardware: GpuInventory, rows: list[SampleRow]) -> dict[str, Any]:
    try:
        found = nvidia_smi.compare_with_nvml(nvidia_smi.read_nvidia_smi(), hardware, rows)
    except nvidia_smi.NvidiaSmiUnavailable as why:
        return {"compared": False, "why": str(why)}
    differ = [f"{each.fact}{f' of {each.gpu}' if each.gpu else ''}" for each in found if each.same is False]
    return {"compared": True, "differ": differ, "facts": [asdict(each) for each in found]}


def _plant_stray_command(options: argparse.Namespace) -> int:
    plant_stray(options.state, options.gpu, options.pid)
    _print_line(f"process {options.pid} is found on GPU {options.gpu} from now on")
    return 0


def _plant_fault_command(options: argparse.Namespace) -> int:
    plant_fault(options.state, options.gpu, "" if options.fault == "none" else options.fault)
    _print_line(
        f"GPU {options.gpu} meets {'no fault' if options.fault == 'none' else f'the fault {options.fault}'} from now on"
    )
    return 0


def _plant_xid_command(options: argparse.Namespace) -> int:
    _print_line(plant_xid(options.state, options.gpu, options.code, time.time()))
    return 0
