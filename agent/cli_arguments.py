"""Defines the arguments of the agent's command line and checks their values."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from agent import AGENT_VERSION
from agent.diagnostics.runner import BUILTIN_TOOLS
from agent.gpu.simulated_faults import GEOMETRY_FAULTS
from agent.isolation.cgroups import MAX_PROCESSES_PER_RUN
from agent.isolation.person_users import DEFAULT_PERSON_IDS
from agent.isolation.team_users import MAX_UID, MIN_UID, UidRange
from agent.isolation.workload_network import NETWORK_MODES, checked_private_network
from agent.runs.hooks import DEFAULT_HOOK_TIMEOUT_SECONDS, UnsafeHookError, checked_hook_program

EXIT_USAGE = 2
MAX_XID = 10_000
MAX_TOKEN_BYTES = 4096
DIAGNOSTIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{1,39}", re.ASCII)
INSTALLED_PROGRAM = "gpupool-agent"  # the program of the installed wheel
DEFAULT_STATE_FOLDER = Path("/var/lib/gpupool-agent")  # the state folder of the systemd unit

Command = Callable[[argparse.Namespace], int]


class _OneLineErrorParser(argparse.ArgumentParser):
    """A parser that prints one line instead of a page of usage on an error."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def build_parser(commands_by_name: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    The parsed arguments have an attribute ``run``: the function of the chosen command.
    """
    # The installed program has its own name; in a checkout it is started with ./run agent.
    name = INSTALLED_PROGRAM if Path(sys.argv[0]).name == INSTALLED_PROGRAM else "agent"
    parser = _OneLineErrorParser(prog=name, description="The program on GPU hosts.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=AGENT_VERSION)
    names = "run|join|probe|plant-xid|plant-stray|plant-fault"
    commands = parser.add_subparsers(required=True, metavar=names, parser_class=_OneLineErrorParser)

    run = commands.add_parser("run", help="run the agent of this host", allow_abbrev=False)
    run.add_argument(
        "--state", type=_folder_argument, required=True, help="folder for credential, runs and spool"
    )
    run.add_argument(
        "--edge",
        type=edge_argument,
        default=None,
        help="the server's address, like http://127.0.0.1:8001; default: the address of the join",
    )
    _add_token_arguments(run, required=False)
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
        help="folder of the GPU locks, shared by all agents of a machine",
    )
    run.add_argument(
        "--expose",
        type=_existing_path_argument,
        action="append",
        default=[],
        help="an additional path that workloads may read; may be given several times",
    )
    run.add_argument("--launcher", choices=("auto", "bubblewrap", "plain"), default="auto")
    run.add_argument(
        "--network",
        choices=NETWORK_MODES,
        default="private",
        help="private: a workload reaches only itself; internet: outgoing connections only; "
        "host: the host's network, for gangs",
    )
    run.add_argument(
        "--reach",
        type=_network_argument,
        action="append",
        default=[],
        metavar="10.1.2.0/24",
        help="with --network internet: a private network that workloads may reach; "
        "may be given several times",
    )
    run.add_argument(
        "--team-users",
        type=_user_range_argument,
        default=UidRange(),
        metavar="70000-99999",
        help="if the agent is root: the range of user ids for teams, or none",
    )
    run.add_argument(
        "--person-homes",
        type=_existing_path_argument,
        action="append",
        default=[],
        metavar="DIR",
        help="if the agent is root: a folder with the shared homes of people, whose work may run as their "
        "own Unix users; may be given several times",
    )
    run.add_argument(
        "--person-ids",
        type=_person_range_argument,
        default=DEFAULT_PERSON_IDS,
        metavar="1000-2147483646",
        help="with --person-homes: the range of user and group ids that people may have",
    )
    run.add_argument(
        "--most-processes",
        type=_integer_argument(16, 999_999),
        default=MAX_PROCESSES_PER_RUN,
        help="limit of processes of a workload that has all GPUs of the host, 16 to 999999; a workload with "
        "fewer GPUs gets its share of this limit",
    )
    run.add_argument(
        "--most-tmp",
        type=_integer_argument(16, 999_999),
        default=0,
        metavar="MIB",
        help="limit of one workload's temporary files, 16 to 999999: a workload that exceeds it is stopped; "
        "default: its share of the disk by its GPUs, once the disk is half full",
    )
    run.add_argument(
        "--address",
        type=_address_argument,
        default=None,
        help="address at which workloads of other hosts reach workloads of this host; "
        "default: the local address towards the edge",
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
        help="program of the operator that runs before each run starts",
    )
    run.add_argument(
        "--epilog",
        type=_hook_argument,
        default=None,
        metavar="PROGRAM",
        help="program of the operator that runs after each run has ended",
    )
    run.add_argument(
        "--diagnostic",
        type=diagnostic_argument,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a diagnostic of the operator that pools may choose by its name; may be given several times",
    )
    run.add_argument(
        "--hook-seconds",
        type=_seconds_argument,
        default=DEFAULT_HOOK_TIMEOUT_SECONDS,
        help="time limit of a prolog or epilog, 0.1 to 3600",
    )
    _add_simulation_arguments(run)
    run.set_defaults(run=commands_by_name["run"])

    join = commands.add_parser("join", help="join once, then let the service run", allow_abbrev=False)
    join.add_argument(
        "--state",
        type=_folder_argument,
        default=DEFAULT_STATE_FOLDER,
        help=f"the agent's folder; default: {DEFAULT_STATE_FOLDER}",
    )
    join.add_argument(
        "--edge",
        type=edge_argument,
        required=True,
        help="the server's address, like https://edge.example.org",
    )
    join.add_argument(
        "--host",
        type=_host_argument,
        default=None,
        help="the name the token was made for (default: this machine's)",
    )
    _add_token_arguments(join, required=True)
    join.set_defaults(run=commands_by_name["join"])

    probe = commands.add_parser("probe", help="print the hardware this agent can read", allow_abbrev=False)
    probe.add_argument("--host", type=_host_argument, default=None)
    _add_simulation_arguments(probe)
    probe.set_defaults(run=commands_by_name["probe"])

    xid = commands.add_parser(
        "plant-xid", help="make a simulated GPU report a hardware error", allow_abbrev=False
    )
    xid.add_argument(
        "--state",
        type=_folder_argument,
        required=True,
        help="the agent's folder; in the demo: .gpupool/demo/agents/NAME",
    )
    xid.add_argument("--gpu", type=_integer_argument(0, 63), required=True, help="index of the GPU")
    xid.add_argument("--code", type=_integer_argument(1, MAX_XID), required=True, help="XID, like 79")
    xid.set_defaults(run=commands_by_name["plant-xid"])

    stray = commands.add_parser(
        "plant-stray", help="report a real process of this machine on a simulated GPU", allow_abbrev=False
    )
    stray.add_argument("--state", type=_folder_argument, required=True, help="the agent's folder")
    stray.add_argument("--gpu", type=_integer_argument(0, 63), required=True, help="index of the GPU")
    stray.add_argument("--pid", type=_integer_argument(1, 999_999), required=True)
    stray.set_defaults(run=commands_by_name["plant-stray"])

    fault = commands.add_parser(
        "plant-fault",
        help="make diagnostics or geometry changes of a simulated GPU fail from now on",
        allow_abbrev=False,
    )
    fault.add_argument("--state", type=_folder_argument, required=True, help="the agent's folder")
    fault.add_argument("--gpu", type=_integer_argument(0, 63), required=True, help="index of the GPU")
    fault.add_argument(
        "--fault", choices=("memory", "bandwidth", "arithmetic", *GEOMETRY_FAULTS, "none"), required=True
    )
    fault.set_defaults(run=commands_by_name["plant-fault"])
    return parser


def _add_token_arguments(parser: argparse.ArgumentParser, required: bool) -> None:
    """Add the options for the join token. Both set ``join_token``, which is None without them."""
    given = parser.add_mutually_exclusive_group(required=required)
    given.add_argument(
        "--join-token-file",
        type=_token_file_argument,
        dest="join_token",
        metavar="FILE",
        help="file with the single-use token from Fleet, Add host; -: standard input",
    )
    given.add_argument(
        "--join-token",
        dest="join_token",
        help="the token itself, which every user of this machine can then read; use --join-token-file",
    )


def _token_file_argument(value: str) -> str:
    try:
        text = sys.stdin.read(MAX_TOKEN_BYTES) if value == "-" else Path(value).read_text()[:MAX_TOKEN_BYTES]
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{value}: {error}; allowed: a file with the token, or -") from None
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{value} is empty; allowed: a file with the token, or -")
    return text.strip()


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


def diagnostic_argument(value: str) -> tuple[str, list[str]]:
    name, _, command = value.partition("=")
    if not DIAGNOSTIC_NAME.fullmatch(name) or name in (*BUILTIN_TOOLS, "simulated", "operator"):
        raise argparse.ArgumentTypeError(
            f"{name[:60]!r} is not a name of 2 to 40 letters, digits, . _ and -, "
            f"or is reserved ({', '.join(BUILTIN_TOOLS)})"
        )
    try:
        words = shlex.split(command)
        return name, [str(checked_hook_program(words[0])), *words[1:]] if words else _reject_empty_command(
            name
        )
    except UnsafeHookError as problem:
        raise argparse.ArgumentTypeError(f"{name}: {problem}") from None
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{name}: {command[:80]!r}: {problem}") from None


def _reject_empty_command(name: str) -> list[str]:
    raise argparse.ArgumentTypeError(
        f"{name}: no command; give NAME=COMMAND, such as burn=/usr/local/bin/gpu-burn 60"
    )


def edge_argument(value: str) -> str:
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
            f"{value[:40]!r} is not an IPv4 network like 10.1.2.0/24: {problem}"
        ) from None


def _user_range_argument(value: str) -> UidRange | None:
    if value == "none":
        return None
    match = re.fullmatch(r"(\d{1,10})-(\d{1,10})", value, re.ASCII)
    if not match or not MIN_UID <= int(match[1]) <= int(match[2]) <= MAX_UID:
        raise argparse.ArgumentTypeError(
            f"{value[:40]!r} is not none or a range like 70000-99999 from {MIN_UID} to {MAX_UID}"
        )
    return UidRange(int(match[1]), int(match[2]))


def _person_range_argument(value: str) -> UidRange:
    match = re.fullmatch(r"(\d{1,10})-(\d{1,10})", value, re.ASCII)
    if not match or not 1 <= int(match[1]) <= int(match[2]) <= MAX_UID:
        raise argparse.ArgumentTypeError(
            f"{value[:40]!r} is not a range like 1000-2147483646 from 1 to {MAX_UID}"
        )
    return UidRange(int(match[1]), int(match[2]))


def _seconds_argument(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.1 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number of seconds from 0.1 to 3600")
    return number


def _integer_argument(minimum: int, maximum: int) -> Callable[[str], int]:
    def convert(value: str) -> int:
        if not re.fullmatch(r"\d{1,6}", value, re.ASCII) or not minimum <= int(value) <= maximum:
            raise argparse.ArgumentTypeError(
                f"{value[:20]!r} is not a whole number from {minimum} to {maximum}"
            )
        return int(value)

    return convert
