"""On a real GPU only: the diagnostic passes, and no tenant reads what the one before left in its memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.conftest import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not Path("/dev/nvidiactl").exists(),
        reason="not run: this machine has no NVIDIA GPU (docs/hardware/README.md)",
    ),
]

PATTERN = 0x5EC2E7A7
MIB = 1 << 20
# Fills as much of the memory as there is, says so, and waits to be killed.
WRITER = f"""
import sys, time
from agent.diagnostics.cuda import CudaDevice
from agent.diagnostics.gpu_check import allocate_in_pieces
from agent.diagnostics.ptx_kernels import PTX_MODULE
gpu = CudaDevice(PTX_MODULE)
pieces = allocate_in_pieces(gpu, gpu.memory()[0] - 512 * {MIB})
for address, size in pieces:
    gpu.set_words(address, {PATTERN}, size // 4)
gpu.wait()
print(sum(size for _, size in pieces), flush=True)
time.sleep(600)
"""
# Takes as much again without writing to it, and counts how many of its words are the other one's.
READER = f"""
import ctypes
from agent.diagnostics.cuda import CudaDevice
from agent.diagnostics.gpu_check import allocate_in_pieces
from agent.diagnostics.ptx_kernels import PTX_MODULE
gpu = CudaDevice(PTX_MODULE)
found = looked = 0
buffer = (ctypes.c_uint32 * (64 * {MIB} // 4))()
for address, size in allocate_in_pieces(gpu, gpu.memory()[0] - 512 * {MIB}):
    for start in range(0, size - ctypes.sizeof(buffer) + 1, ctypes.sizeof(buffer)):
        gpu.read(buffer, address + start, ctypes.sizeof(buffer))
        found += bytes(buffer).count({PATTERN}.to_bytes(4, "little"))
        looked += ctypes.sizeof(buffer)
print(looked, found, flush=True)
"""


def environment() -> dict[str, str]:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return {**os.environ, "CUDA_VISIBLE_DEVICES": first, "PYTHONPATH": str(ROOT)}


def as_somebody_else(command: list[str]) -> list[str]:
    """As another user where root is: the next tenant is seldom the same."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return command
    return ["setpriv", "--reuid", "65533", "--clear-groups", *command]


def test_memory_of_one_tenant_is_not_read_by_the_next() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT
    )
    assert writer.stdout is not None
    written = int(writer.stdout.readline())
    writer.kill()
    writer.wait()
    read = subprocess.run(
        as_somebody_else([sys.executable, "-c", READER]),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
        check=True,
    )
    looked, found = (int(word) for word in read.stdout.split())
    assert looked > 0.8 * written, "it has to look at the same memory"
    assert found == 0


def test_the_diagnostic_of_a_well_gpu_passes() -> None:
    command = [sys.executable, "-m", "agent.diagnostics.gpu_check", "--deadline", "300", "--tool", "own"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1] == {"end": "passed", "detail": ""}, done.stdout


def test_probe_and_nvidia_smi_agree() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent", "probe"], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True
    )
    beside = json.loads(done.stdout)["nvidia_smi"]
    assert beside["compared"] and beside["differ"] == [], beside
