"""What a run is started with: its box, its environment, and all that its shim has to know of it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from agent import gangs
from agent.addresses import interface_of
from agent.cgroups import Limits
from agent.hooks import SYSTEM_PATH
from agent.launchers import Box, View, entering, gpu_nodes
from agent.protocol import RunWanted
from agent.run import Run
from agent.tenants import Place

if TYPE_CHECKING:
    from agent.runs import Runs


def spec(here: Runs, run: Run, wanted: RunWanted, place: Place) -> dict[str, Any]:
    """What the shim starts and keeps the workload by. Makes its control groups and its network: takes long, and raises OSError."""
    box = _box(here, run, wanted, place)
    here.launcher.prepare(box)
    view = here.launcher.view(box)
    launch = here.launcher.launch(box)
    nodes = gpu_nodes(box.devices)
    limits = Limits(wanted.cpu_milli, wanted.memory_mib, here.cgroups.most_processes, nodes)
    groups = here.cgroups.make(run.about["mark"], limits)
    here.network.admit(box.user)
    return {
        **entering(here.launcher, launch),
        "network": here.network.enter(run.about["mark"]),
        "argv": launch.argv,
        "cwd": launch.cwd,
        "cgroup_procs": groups.procs,
        "memory_events": groups.memory_events,
        "env": _environment(
            wanted, view, run.about["mark"], gangs.usual(wanted, here.hardware, interface_of(here.address))
        ),
        "checkpoint_dir": str(box.checkpoint),
        "signal_notice": wanted.kind == "job",
        "grace_seconds": max(0.0, wanted.grace_seconds),
        "max_runtime_seconds": max(0, wanted.max_runtime_seconds),
        **here.hooks.spec(wanted, box),
    }


def _box(here: Runs, run: Run, wanted: RunWanted, place: Place) -> Box:
    box = Box(
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


def _environment(wanted: RunWanted, view: View, mark: str, usual: dict[str, str]) -> dict[str, str]:
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
        "PATH": ":".join(filter(None, (str(view.tools / "bin"), asked.get("PATH", ""), programs, SYSTEM_PATH))),
        "PYTHONPATH": ":".join(filter(None, (asked.get("PYTHONPATH", ""), str(view.tools / "python")))),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(wanted.unit_uuids),
        "NVIDIA_VISIBLE_DEVICES": ",".join(wanted.unit_uuids) or "void",
        "GPUPOOL_WORKLOAD": wanted.workload,
        "GPUPOOL_RUN": wanted.run,
        "GPUPOOL_MARK": mark,
        "GPUPOOL_ATTEMPT": str(wanted.attempt),
        **({} if wanted.array_index is None else {"GPUPOOL_ARRAY_INDEX": str(wanted.array_index)}),
        **gangs.facts(wanted, str(view.inbox / "hostfile")),
        **({"GPUPOOL_DOOR": str(view.outbox / "door.sock")} if wanted.kind == "job" else {}),
        "GPUPOOL_NOTICE": str(view.inbox / "notice"),
        "GPUPOOL_CHECKPOINT_DIR": str(view.checkpoint),
        "GPUPOOL_SIMULATED_LOAD": str(view.outbox / "load"),
    }
