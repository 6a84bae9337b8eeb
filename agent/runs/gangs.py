"""What a member of a gang finds in its environment: who the others are, in the words of the usual distributed launchers.

One process per host is started here; what starts more of them on its host (torchrun, mpirun, Ray) finds its arguments ready.
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
    """What is wrong with a wanted gang: field, value and what is allowed. '' when nothing is."""
    if gang is None:
        return ""
    if not 0 <= gang.rank < len(gang.members):
        return f"gang.rank: {gang.rank} is not from 0 to {len(gang.members) - 1}"
    if not MIN_RENDEZVOUS_PORT <= gang.port <= MAX_RENDEZVOUS_PORT:
        return f"gang.port: {gang.port} is not from {MIN_RENDEZVOUS_PORT} to {MAX_RENDEZVOUS_PORT}"
    for number, member in enumerate(gang.members):
        if not _HOST.fullmatch(member.host) or not _ADDRESS.fullmatch(member.address):
            return f"gang.members[{number}]: {member.host[:60]!r} at {member.address[:60]!r} is no host and its address"
        if not 0 < member.units <= 10_000:
            return f"gang.members[{number}].units: {member.units} is not from 1 to 10000"
    return ""


def awaits_go(wanted: RunWanted) -> bool:
    """Is it a member of a gang that may not begin yet?"""
    return wanted.gang is not None and not wanted.gang.go


def distributed_environment(wanted: RunWanted, hardware: GpuInventory, interface: str) -> dict[str, str]:
    """What distributed launchers and libraries look for. The workload's owner may set each of them otherwise.

    ``interface``: the network interface that has this host's address; '' when it is not known, and then nothing is said of it.
    """
    gang = wanted.gang
    if gang is None:
        return {}
    found = {"NCCL_P2P_LEVEL": "NVL"} if all_on_nvlink(wanted.unit_uuids, hardware) else {}
    if not all(member.address for member in gang.members):
        return found  # they cannot reach each other, or nobody knows where: no address is better than a wrong one
    if interface:
        found |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    count, rank = str(len(gang.members)), str(gang.rank)
    first, units, port = gang.members[0].address, str(gang.members[gang.rank].units), str(gang.port)
    return {
        **found,
        "MASTER_ADDR": first,
        "MASTER_PORT": port,
        "WORLD_SIZE": count,
        "RANK": rank,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": rank,
        "GROUP_RANK": rank,
        # torchrun takes what is not among its arguments from PET_ and the argument's name.
        "PET_NNODES": count,
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": units,
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": port,
        "TF_CONFIG": _tf_config(gang),
    }


def contract_environment(wanted: RunWanted, hostfile: str) -> dict[str, str]:
    """Our own words for the same, which nobody overrides. ``hostfile_text``: where the workload finds it."""
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
    """One line per host, as Open MPI and horovodrun read it."""
    return "".join(f"{member.address or member.host} slots={member.units}\n" for member in gang.members)


def all_on_nvlink(units: Iterable[str], hardware: GpuInventory) -> bool:
    """Are these several whole GPUs of one NVLink group? False where the topology is not known."""
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
