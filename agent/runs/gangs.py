"""Builds the environment for this host's part of a gang, a run that uses several hosts.

The agent starts one process per host. A launcher that starts further processes on its host, such as torchrun,
mpirun or Ray, finds its arguments in the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from agent.gpu.reader import GpuInventory
from agent.protocol import GangWanted, RunWanted

MIN_RENDEZVOUS_PORT, MAX_RENDEZVOUS_PORT = 1024, 65_535
_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?|")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def gang_error(gang: GangWanted | None) -> str:
    """Return a sentence about the first invalid field and its allowed values; '' if the gang is valid."""
    if gang is None:
        return ""
    if not 0 <= gang.rank < len(gang.members):
        return f"gang.rank: {gang.rank} is not from 0 to {len(gang.members) - 1}"
    if not MIN_RENDEZVOUS_PORT <= gang.port <= MAX_RENDEZVOUS_PORT:
        return f"gang.port: {gang.port} is not from {MIN_RENDEZVOUS_PORT} to {MAX_RENDEZVOUS_PORT}"
    for number, member in enumerate(gang.members):
        if not _HOST.fullmatch(member.host) or not _ADDRESS.fullmatch(member.address):
            value = f"{member.host[:60]!r} at {member.address[:60]!r}"
            return f"gang.members[{number}]: {value} is not a host name and an address"
        if not 0 < member.units <= 10_000:
            return f"gang.members[{number}].units: {member.units} is not from 1 to 10000"
    return ""


def awaits_go(wanted: RunWanted) -> bool:
    """Return True if the run is part of a gang that the server has not yet allowed to start."""
    return wanted.gang is not None and not wanted.gang.go


def distributed_environment(wanted: RunWanted, hardware: GpuInventory, interface: str) -> dict[str, str]:
    """Return the environment variables for distributed launchers and libraries; {} without a gang.

    The environment of the request may override them. ``interface``: the network interface that has this
    host's address; '' if unknown.
    """
    gang = wanted.gang
    if gang is None:
        return {}
    variables = {"NCCL_P2P_LEVEL": "NVL"} if all_on_nvlink(wanted.unit_uuids, hardware) else {}
    if not all(member.address for member in gang.members):
        return variables  # without the addresses: some are unknown, and a wrong one would do more harm
    if interface:
        variables |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    count, rank = str(len(gang.members)), str(gang.rank)
    first, units, port = gang.members[0].address, str(gang.members[gang.rank].units), str(gang.port)
    return {
        **variables,
        "MASTER_ADDR": first,
        "MASTER_PORT": port,
        "WORLD_SIZE": count,
        "RANK": rank,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": rank,
        "GROUP_RANK": rank,
        # torchrun reads a missing argument from the variable PET_ARGUMENT.
        "PET_NNODES": count,
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": units,
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": port,
        "TF_CONFIG": _tf_config(gang),
    }


def contract_environment(wanted: RunWanted, hostfile: str) -> dict[str, str]:
    """Return the GPUPOOL_* variables of a gang. The environment of the request cannot override them.

    ``hostfile`` is the path of the host file inside the sandbox.
    """
    gang = wanted.gang
    if gang is None:
        return {}
    return {
        "GPUPOOL_HOSTS": ",".join(member.address or member.host for member in gang.members),
        "GPUPOOL_HOST_COUNT": str(len(gang.members)),
        "GPUPOOL_HOST_RANK": str(gang.rank),
        "GPUPOOL_UNITS_PER_HOST": str(gang.members[gang.rank].units),
        "GPUPOOL_HOSTFILE": hostfile,
    }


def hostfile_text(gang: GangWanted) -> str:
    """Return the host file: one line per host in the format of Open MPI and horovodrun."""
    return "".join(f"{member.address or member.host} slots={member.units}\n" for member in gang.members)


def all_on_nvlink(units: Iterable[str], hardware: GpuInventory) -> bool:
    """Return True if the units are several whole GPUs of one NVLink group.

    Returns False if the NVLink groups are unknown.
    """
    wanted = set(units)
    gpus = [
        gpu for gpu in hardware.gpus if any(unit.uuid in wanted and not unit.profile for unit in gpu.units)
    ]
    groups = {gpu.nvlink_group for gpu in gpus}
    return len(gpus) == len(wanted) > 1 and len(groups) == 1 and None not in groups


def _tf_config(gang: GangWanted) -> str:
    places = [f"[{m.address}]" if ":" in m.address else m.address for m in gang.members]
    workers = [f"{place}:{gang.port}" for place in places]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": gang.rank}})
