"""Test a real GPU: the diagnostic passes, and a tenant cannot read memory of the previous tenant."""

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
# Fills all free memory with a pattern, prints its size, and waits to be killed.
WRITER = f"""
import sys, time
from agent.diagnostics.cuda import CudaDevice
from agent.diagnostics.builtin_checks import allocate_in_pieces
from agent.diagnostics.ptx_kernels import PTX_MODULE
gpu = CudaDevice(PTX_MODULE)
pieces = allocate_in_pieces(gpu, gpu.memory()[0] - 512 * {MIB})
for address, size in pieces:
    gpu.set_words(address, {PATTERN}, size // 4)
gpu.wait()
print(sum(size for _, size in pieces), flush=True)
time.sleep(600)
"""
# Allocates the same amount of memory without writing to it, and counts the words that contain the pattern.
READER = f"""
import ctypes
from agent.diagnostics.cuda import CudaDevice
from agent.diagnostics.builtin_checks import allocate_in_pieces
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


def as_other_user(command: list[str]) -> list[str]:
    """Return a command that runs `command` as another user if the tests run as root.

    The next tenant of a GPU is usually another user.
    """
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return command
    return ["setpriv", "--reuid", "65533", "--clear-groups", *command]


def test_a_tenant_cannot_read_memory_of_the_previous_tenant() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT
    )
    assert writer.stdout is not None
    written = int(writer.stdout.readline())
    writer.kill()
    writer.wait()
    read = subprocess.run(
        as_other_user([sys.executable, "-c", READER]),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
        check=True,
    )
    read_bytes, found = (int(word) for word in read.stdout.split())
    assert read_bytes > 0.8 * written, "the reader must read the same memory"
    assert found == 0


def test_the_diagnostic_of_a_healthy_gpu_passes() -> None:
    command = [sys.executable, "-m", "agent.diagnostics.gpu_check", "--deadline", "300", "--tool", "own"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1] == {"end": "passed", "detail": ""}, done.stdout


def test_probe_and_nvidia_smi_agree() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent", "probe"], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True
    )
    comparison = json.loads(done.stdout)["nvidia_smi"]
    assert comparison["compared"] and comparison["differ"] == [], comparison
