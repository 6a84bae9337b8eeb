"""What a run is started with: its box, its environment, and all that its shim has to know of it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from agent.host.addresses import interface_of
from agent.isolation.cgroups import CgroupLimits
from agent.isolation.launcher_choice import shim_entry_spec
from agent.isolation.launchers import SandboxPaths, SandboxRequest, gpu_device_nodes
from agent.isolation.team_users import RunPlacement
from agent.protocol import RunWanted
from agent.runs import gangs
from agent.runs.hooks import SYSTEM_PATH
from agent.runs.local_run import LocalRun

if TYPE_CHECKING:
    from agent.runs.manager import RunManager


def launch_spec(here: RunManager, run: LocalRun, wanted: RunWanted, place: RunPlacement) -> dict[str, Any]:
    """What the shim starts and keeps the workload by. Makes its control groups and its network: takes long, and raises OSError."""
    box = _sandbox_request(here, run, wanted, place)
    here.launcher.prepare(box)
    view = here.launcher.view(box)
    launch = here.launcher.launch(box)
    nodes = gpu_device_nodes(box.devices)
    limits = CgroupLimits(wanted.cpu_milli, wanted.memory_mib, here.cgroups.max_processes, nodes)
    groups = here.cgroups.make(run.about["mark"], limits)
    here.network.admit_user(box.user)
    return {
        **shim_entry_spec(here.launcher, launch),
        "network": here.network.enter(run.about["mark"]),
        "argv": launch.argv,
        "cwd": launch.cwd,
        "cgroup_procs": groups.procs,
        "memory_events": groups.memory_events,
        "env": _workload_environment(
            wanted,
            view,
            run.about["mark"],
            gangs.distributed_environment(wanted, here.hardware, interface_of(here.address)),
        ),
        "checkpoint_dir": str(box.checkpoint),
        "signal_notice": wanted.kind == "job",
        "grace_seconds": max(0.0, wanted.grace_seconds),
        "max_runtime_seconds": max(0, wanted.max_runtime_seconds),
        **here.hooks.spec(wanted, box),
    }


def _sandbox_request(
    here: RunManager, run: LocalRun, wanted: RunWanted, place: RunPlacement
) -> SandboxRequest:
    box = SandboxRequest(
        command=[],
        owner=wanted.owner,
        home=place.home,
        checkpoint=place.checkpoint,
        inbox=run.folder / "in",
        outbox=run.folder / "out",
        tmp=run.folder / "tmp",
        tools=here.state.tools,
        devices=sorted({node for unit in wanted.unit_uuids for node in here.hardware.devices.get(unit, [])}),
        exposed=here.exposed,
        user=place.user,
        memory_mib=wanted.memory_mib,
    )
    view = here.launcher.view(box)
    if wanted.kind == "notebook":
        box.command.extend(
            [sys.executable, str(view.tools / "notebook" / "gpupool_notebook.py"), str(view.inbox / "secret")]
            + [str(view.outbox / "notebook.sock"), str(view.home)]
        )
    else:
        box.command.extend(["/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh", "-c", wanted.command])
    return box


def _workload_environment(
    wanted: RunWanted, view: SandboxPaths, mark: str, usual: dict[str, str]
) -> dict[str, str]:
    """The workload's whole environment: nothing of the agent's own, and the contract last, so that nobody overrides it."""
    programs = os.path.dirname(sys.executable)
    asked = wanted.environment
    return {
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(view.tmp),
        **usual,
        **asked,
        "HOME": str(view.home),
        "USER": wanted.owner,
        "LOGNAME": wanted.owner,
        "PATH": ":".join(
            filter(None, (str(view.tools / "bin"), asked.get("PATH", ""), programs, SYSTEM_PATH))
        ),
        "PYTHONPATH": ":".join(filter(None, (asked.get("PYTHONPATH", ""), str(view.tools / "python")))),
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
