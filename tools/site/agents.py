"""Detect this machine's GPUs and start the agents of the demo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.console import say
from tools.paths import PYTHON, ROOT
from tools.service_environment import agent_environment

NVML_TIMEOUT_SECONDS = 20
PROBE_TIMEOUT_SECONDS = 60
COUNT_GPUS = """\
import ctypes
nvml = ctypes.CDLL('libnvidia-ml.so.1')
count = ctypes.c_uint(0)
if not nvml.nvmlInit_v2():
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
print(count.value)
"""


def count_gpus() -> int:
    """Return the number of GPUs that NVML finds on this machine; 0 if NVML does not answer.

    A separate process calls NVML, because NVML can hang.
    """
    command = [sys.executable, "-c", COUNT_GPUS]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=NVML_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return 0
    return int(asked.stdout) if asked.returncode == 0 else 0


def real_gpu_models() -> list[str]:
    """Return the models of this machine's GPUs, as its agent will report them.

    If the GPUs cannot be read, print the reason and return an empty list.
    """
    simulated = "all hosts of the demo are simulated"
    probe = [str(PYTHON), "-m", "agent", "probe"]
    options = {"cwd": ROOT, "env": agent_environment(), "capture_output": True, "text": True}
    try:
        asked = subprocess.run(probe, timeout=PROBE_TIMEOUT_SECONDS, **options)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        say(f"  this machine's GPUs do not answer NVML within {PROBE_TIMEOUT_SECONDS} s: {simulated}")
        return []
    if asked.returncode != 0:
        say(f"  this machine's GPUs can't be read, {simulated}: {asked.stderr.strip()[-300:]}")
        return []
    return [gpu["model"] for gpu in json.loads(asked.stdout)["hardware"]["gpus"]]


def agent_command(folder: Path, state: Path, edge_url: str, agent: Mapping[str, object]) -> list[str]:
    """Return the command line of one agent of the demo, and make its folders.

    The join token is used only at the first start. Later starts use the credential in ``state``. All hosts of
    the demo are one machine, so their agents share the lock files. They also share the homes, like the hosts
    of a real site.
    """
    homes, locks = folder / "homes", folder / "locks"
    for place in (state, homes, locks):
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    command = [str(PYTHON), "-m", "agent", "run", "--state", str(state), "--edge", edge_url]
    command += ["--host", str(agent["name"])]
    command += ["--homes", str(homes), "--locks", str(locks), "--on-exit", "stop"]
    if agent.get("join_token"):
        # Every user of the machine can read the arguments of a process, so the token is in a file.
        token = state / "join-token"
        token.touch(mode=0o600)
        token.write_text(str(agent["join_token"]))
        command += ["--join-token-file", str(token)]
    for key in ("simulate", "simulate_mig"):
        if agent.get(key):
            command += [f"--{key.replace('_', '-')}", str(agent[key])]
    return command
