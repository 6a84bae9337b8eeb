"""Builds the launch spec of a run: the sandbox, the environment and all other input of the run's shim.

The shim is the process that starts and supervises the workload of a run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Protocol

from agent.gpu.reader import GpuInventory
from agent.host.addresses import interface_of
from agent.host.state import StateFolder
from agent.host.system_path import SYSTEM_PATH
from agent.isolation.cgroups import Cgroups
from agent.isolation.launcher_choice import shim_entry_spec
from agent.isolation.launchers import Launcher, SandboxPaths, SandboxRequest, gpu_device_nodes
from agent.isolation.team_users import RunPlacement
from agent.isolation.workload_network import WorkloadNetwork
from agent.protocol import RunWanted
from agent.runs import gangs
from agent.runs.default_limits import host_memory_mib, run_limits
from agent.runs.hooks import Hooks
from agent.runs.local_run import LocalRun


class LaunchContext(Protocol):
    """The parts of the run manager that a launch spec depends on."""

    state: StateFolder
    launcher: Launcher
    hardware: GpuInventory
    cgroups: Cgroups
    network: WorkloadNetwork
    hooks: Hooks
    exposed: list[Path]
    address: str


def launch_spec(host: LaunchContext, run: LocalRun, wanted: RunWanted, place: RunPlacement) -> dict[str, Any]:
    """Return the content of spec.json, which the shim reads to start and supervise the workload.

    Creates the control groups and the network of the run, which may take long. Raises OSError.
    """
    box = _sandbox_request(host, run, wanted, place)
    host.launcher.prepare(box)
    view = host.launcher.view(box)
    launch = host.launcher.launch(box)
    nodes = gpu_device_nodes(box.devices)
    limits = run_limits(
        wanted, host.hardware.gpus, host_memory_mib(), host.cgroups.max_processes, devices=nodes
    )
    groups = host.cgroups.make(run.about["mark"], limits)
    host.network.admit_user(box.user)
    return {
        **shim_entry_spec(host.launcher, launch),
        "perf_events": wanted.perf_events,
        "network": host.network.enter(run.about["mark"]),
        "argv": launch.argv,
        "cwd": launch.cwd,
        "cgroup_procs": groups.procs,
        "memory_events": groups.memory_events,
        "env": _workload_environment(
            wanted,
            box.account_name,
            view,
            run.about["mark"],
            gangs.distributed_environment(wanted, host.hardware, interface_of(host.address)),
        ),
        "checkpoint_dir": str(box.checkpoint),
        "signal_notice": wanted.kind == "job",
        "grace_seconds": max(0.0, wanted.grace_seconds),
        "max_runtime_seconds": max(0, wanted.max_runtime_seconds),
        **host.hooks.spec(wanted, box),
    }


def _sandbox_request(
    host: LaunchContext, run: LocalRun, wanted: RunWanted, place: RunPlacement
) -> SandboxRequest:
    box = SandboxRequest(
        command=[],
        owner=wanted.owner,
        home=place.home,
        checkpoint=place.checkpoint,
        inbox=run.folder / "in",
        outbox=run.folder / "out",
        tmp=run.folder / "tmp",
        tools=host.state.tools,
        devices=sorted({node for unit in wanted.unit_uuids for node in host.hardware.devices.get(unit, [])}),
        exposed=host.exposed,
        user=place.user,
        memory_mib=wanted.memory_mib,
        person=place.person,
    )
    view = host.launcher.view(box)
    if wanted.kind == "notebook":
        box.command.extend(
            [sys.executable, str(view.tools / "notebook" / "gpupool_notebook.py"), str(view.inbox / "secret")]
            + [str(view.outbox / "notebook.sock"), str(view.home)]
        )
    else:
        box.command.extend(["/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh", "-c", wanted.command])
    return box


def _workload_environment(
    wanted: RunWanted, account_name: str, view: SandboxPaths, mark: str, defaults: dict[str, str]
) -> dict[str, str]:
    """Return the whole environment of the workload.

    It contains nothing of the agent's own environment. The variables of the contract come last, so that a
    workload cannot override them.
    """
    programs = os.path.dirname(sys.executable)
    requested = wanted.environment
    return {
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(view.tmp),
        **defaults,
        **requested,
        "HOME": str(view.home),
        "USER": account_name,
        "LOGNAME": account_name,
        "PATH": ":".join(
            filter(None, (str(view.tools / "bin"), requested.get("PATH", ""), programs, SYSTEM_PATH))
        ),
        "PYTHONPATH": ":".join(filter(None, (requested.get("PYTHONPATH", ""), str(view.tools / "python")))),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(wanted.unit_uuids),
        "NVIDIA_VISIBLE_DEVICES": ",".join(wanted.unit_uuids) or "void",
        "GPUPOOL_WORKLOAD": wanted.workload,
        "GPUPOOL_RUN": wanted.run,
        "GPUPOOL_MARK": mark,
        "GPUPOOL_ATTEMPT": str(wanted.attempt),
        **({} if wanted.array_index is None else {"GPUPOOL_ARRAY_INDEX": str(wanted.array_index)}),
        **gangs.contract_environment(wanted, str(view.inbox / "hostfile")),
        **({"GPUPOOL_DOOR": str(view.outbox / "door.sock")} if wanted.kind == "job" else {}),
        "GPUPOOL_NOTICE": str(view.inbox / "notice"),
        "GPUPOOL_CHECKPOINT_DIR": str(view.checkpoint),
        "GPUPOOL_SIMULATED_LOAD": str(view.outbox / "load"),
    }
