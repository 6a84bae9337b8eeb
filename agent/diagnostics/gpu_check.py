"""Looks at one GPU. A process of its own that holds the GPU's lock:  python -m agent.diagnostics.gpu_check --deadline 600 [--tool ...]

It writes one line of JSON before each check and one after it, and one at the end:

    {"step": "memory"}
    {"check": {"name", "passed", "numbers", "detail"}}
    {"end": "passed" | "failed" | "stopped", "detail": ...}

Memory: five patterns over all of it that is free, each written, read again and compared on the GPU. Bandwidth: within the GPU, to
it and from it. Arithmetic: a product of two matrices that is checked against the CPU and then repeated. At its deadline the kernel
ends it, wherever it hangs; on SIGTERM it stops between two steps, for work that wants the GPU.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from agent.diagnostics.cuda import (
    ATTRIBUTE_MEMORY_BUS_WIDTH,
    ATTRIBUTE_MEMORY_CLOCK_RATE,
    CudaDevice,
    CudaError,
)
from agent.diagnostics.ptx_kernels import PTX_MODULE
from agent.host import processes

MIB, GIB = 1 << 20, 1 << 30
RESERVED_BYTES = 512 * MIB  # what contexts and the driver need; of a small GPU an eighth
MAX_ALLOCATION_BYTES = GIB
MIN_CHECKED_MEMORY_SHARE = 0.5  # of all memory: with less that is free the check says that it could not look
ADDRESS_FACTOR = 2_654_435_761  # a word that follows from its own index: finds address lines that are stuck
MEMORY_PATTERNS: tuple[tuple[str, int, int], ...] = (
    ("zeros", 0, 0),
    ("ones", 0, 0xFFFFFFFF),
    ("0101", 0, 0x55555555),
    ("1010", 0, 0xAAAAAAAA),
    ("addresses", ADDRESS_FACTOR, 0x9E3779B9),
)
COPY_BYTES = 256 * MIB
COPY_REPEATS = 20
TRANSFER_BYTES = 64 * MIB
MIN_BANDWIDTH_SHARE = 0.4  # of what memory clock and bus width promise
MATRIX_SIDE = 512  # of the matrices
MAX_MATRIX_ELEMENT = 15  # so small that every sum is exact in 32-bit floats
MULTIPLY_REPEATS = 200
# Errors of cuda.h that say nothing of the GPU: no memory left, driver and library of different versions, a program not understood.
INCONCLUSIVE_CUDA_ERRORS = frozenset({2, 3, 34, 46, 218, 222, 223, 500, 803, 804})
PR_SET_CHILD_SUBREAPER = 36
MAX_OUTPUT_BYTES = 4096  # bytes that are kept of what an operator's diagnostic prints
DCGM_LEVEL = "2"
DCGM_MARGIN_SECONDS = 5.0
SIMULATED_STEP_SECONDS = 0.3


class DiagnosticStopped(Exception):
    """Work wants the GPU."""


class CheckProgress:
    """The course of one diagnostic: what was found so far, and whether it shall stop."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.unknown = ""  # why something that matters could not be looked at
        self._stop = False

    def stop(self, *_: object) -> None:
        """SIGTERM came."""
        self._stop = True

    def raise_if_stopped(self) -> None:
        """Between two steps. Raises DiagnosticStopped."""
        if self._stop:
            raise DiagnosticStopped

    def step(self, name: str) -> None:
        """What comes now: the last line, should this process not come back."""
        self.raise_if_stopped()
        print_json({"step": name})

    def found(self, name: str, passed: bool | None, numbers: dict[str, Any], detail: str = "") -> None:
        """The result of a check."""
        if passed is False:
            self.failed.append(f"{name}: {detail}" if detail else name)
        print_json({"check": {"name": name, "passed": passed, "numbers": numbers, "detail": detail}})


def print_json(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


# -- our own --------------------------------------------------------------------------------------------------------------


def run_builtin_checks(look: CheckProgress) -> None:
    """Memory, bandwidth, arithmetic, through the CUDA driver."""
    look.step("driver")
    gpu = CudaDevice(PTX_MODULE)
    look.found("driver", True, {"gpu": gpu.name()})
    for name, check in (
        ("memory", _check_memory),
        ("bandwidth", _check_bandwidth),
        ("arithmetic", _check_arithmetic),
    ):
        look.step(name)
        check(gpu, look)
    gpu.close()


class MismatchCounters:
    """Three words on the GPU in which the kernels count what is not as it should be."""

    def __init__(self, gpu: CudaDevice) -> None:
        self._gpu = gpu
        self.address = gpu.take(24)
        self.clear()

    def clear(self) -> None:
        """Nothing differs."""
        self._gpu.write(self.address, (ctypes.c_uint64 * 3)(0, 2**64 - 1, 0), 24)

    def read(self) -> tuple[int, str]:
        """How many, and one of them in words."""
        words = (ctypes.c_uint64 * 3)()
        self._gpu.read(words, self.address, 24)
        count, first, both = (int(word) for word in words)
        return (
            count,
            f"word {first} is 0x{both >> 32:08x} and should be 0x{both & 0xFFFFFFFF:08x}" if count else "",
        )


def _check_memory(gpu: CudaDevice, look: CheckProgress) -> None:
    free, total = gpu.memory()
    pieces: list[tuple[int, int]] = []
    differ = MismatchCounters(gpu)
    began = time.monotonic()
    try:
        pieces = allocate_in_pieces(gpu, free - min(RESERVED_BYTES, total // 8))
        looked_at = sum(size for _, size in pieces)
        wrong, words = 0, ""
        for name, factor, offset in MEMORY_PATTERNS:
            for address, size in pieces:
                look.raise_if_stopped()
                _write_pattern(gpu, address, size, factor, offset)
            for place, (address, size) in enumerate(pieces):
                look.raise_if_stopped()
                differ.clear()
                _compare(gpu, address, size, factor, offset, differ)
                count, one = differ.read()
                wrong += count
                if count and not words:
                    words = f"pattern {name}, piece {place}: {one}"
    finally:
        for address, _ in pieces:
            gpu.give_back(address)
    numbers = {
        "looked_at_mib": looked_at // MIB,
        "total_mib": total // MIB,
        "patterns": len(MEMORY_PATTERNS),
        "wrong_words": wrong,
        "seconds": round(time.monotonic() - began, 2),
    }
    if looked_at < MIN_CHECKED_MEMORY_SHARE * total:
        look.unknown = "" if wrong else "most of its memory is in use by somebody else"
        look.found("memory", False if wrong else None, numbers, words or look.unknown)
        return
    look.found("memory", wrong == 0, numbers, f"{wrong} words differ; {words}" if wrong else "")


def allocate_in_pieces(gpu: CudaDevice, wanted: int) -> list[tuple[int, int]]:
    """Pieces of the GPU's memory, as much as there is of ``wanted`` bytes."""
    pieces: list[tuple[int, int]] = []
    size = MAX_ALLOCATION_BYTES
    while wanted >= MIB and size >= MIB:
        piece = min(size, wanted // MIB * MIB)
        try:
            pieces.append((gpu.take(piece), piece))
            wanted -= piece
        except CudaError as error:
            if error.call != "cuMemAlloc_v2" or error.code != 2:  # out of memory: smaller ones may still fit
                raise
            size = piece // 2
    return pieces


def _write_pattern(gpu: CudaDevice, address: int, size: int, factor: int, offset: int) -> None:
    if factor:
        gpu.run(
            "fill",
            ctypes.c_uint64(address),
            ctypes.c_uint64(size // 4),
            ctypes.c_uint(factor),
            ctypes.c_uint(offset),
        )
    else:
        gpu.set_words(address, offset, size // 4)
        gpu.wait()


def _compare(
    gpu: CudaDevice, address: int, size: int, factor: int, offset: int, differ: MismatchCounters
) -> None:
    words, out = ctypes.c_uint64(size // 4), ctypes.c_uint64(differ.address)
    gpu.run("check", ctypes.c_uint64(address), words, ctypes.c_uint(factor), ctypes.c_uint(offset), out)


def _check_bandwidth(gpu: CudaDevice, look: CheckProgress) -> None:
    size = min(COPY_BYTES, max(MIB, gpu.memory()[0] // 4))
    source, target = gpu.take(size), gpu.take(size)
    gpu.copy(target, source, size)
    gpu.wait()
    within = (
        2
        * size
        * COPY_REPEATS
        / _time_repeats(gpu, COPY_REPEATS, look, lambda: gpu.copy(target, source, size))
    )
    part = min(size, TRANSFER_BYTES)
    buffer = gpu.take_of_host(part)
    to = part * COPY_REPEATS / _time_repeats(gpu, COPY_REPEATS, look, lambda: gpu.write(target, buffer, part))
    back = (
        part * COPY_REPEATS / _time_repeats(gpu, COPY_REPEATS, look, lambda: gpu.read(buffer, target, part))
    )
    gpu.give_back_of_host(buffer)
    for address in (source, target):
        gpu.give_back(address)
    numbers = {"within_gb_s": _gb(within), "to_gb_s": _gb(to), "from_gb_s": _gb(back)}
    clock, width = gpu.attribute(ATTRIBUTE_MEMORY_CLOCK_RATE), gpu.attribute(ATTRIBUTE_MEMORY_BUS_WIDTH)
    if not clock or not width:
        look.found("bandwidth", None, numbers, "measured; this driver does not tell what it should be")
        return
    promised = 2 * clock * 1000 * width / 8
    numbers["promised_gb_s"] = _gb(promised)
    slow = within < MIN_BANDWIDTH_SHARE * promised
    detail = (
        f"{_gb(within)} GB/s is below {MIN_BANDWIDTH_SHARE:.0%} of the promised {_gb(promised)}"
        if slow
        else ""
    )
    look.found("bandwidth", not slow, numbers, detail)


def _time_repeats(gpu: CudaDevice, times: int, look: CheckProgress, step: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(times):
        look.raise_if_stopped()
        step()
    gpu.wait()
    return max(1e-9, time.perf_counter() - began)


def _gb(bytes_per_second: float) -> float:
    return round(bytes_per_second / 1e9, 2)


def _check_arithmetic(gpu: CudaDevice, look: CheckProgress) -> None:
    """Whole numbers so small that 32-bit floats sum them exactly in any order: a right GPU is right to the bit."""
    draw = random.Random(20_260_301)
    left, right = (
        array.array("f", (draw.randint(0, MAX_MATRIX_ELEMENT) for _ in range(MATRIX_SIDE * MATRIX_SIDE)))
        for _ in range(2)
    )
    size = 4 * MATRIX_SIDE * MATRIX_SIDE
    a, b, c, again = (gpu.take(size) for _ in range(4))
    for address, values in ((a, left), (b, right)):
        gpu.write(address, (ctypes.c_char * size).from_buffer(values), size)
    given = (ctypes.c_uint64(a), ctypes.c_uint64(b))
    gpu.run("product", *given, ctypes.c_uint64(c), ctypes.c_uint(MATRIX_SIDE))
    result = array.array("f", bytes(size))
    gpu.read((ctypes.c_char * size).from_buffer(result), c, size)
    look.raise_if_stopped()
    rows = list(_wrong_rows(left, right, result, draw))
    differ = MismatchCounters(gpu)
    began = time.perf_counter()
    for _ in range(MULTIPLY_REPEATS):
        look.raise_if_stopped()
        gpu.run("product", *given, ctypes.c_uint64(again), ctypes.c_uint(MATRIX_SIDE))
        words = ctypes.c_uint64(MATRIX_SIDE * MATRIX_SIDE)
        gpu.run("same", ctypes.c_uint64(again), ctypes.c_uint64(c), words, ctypes.c_uint64(differ.address))
    took = max(1e-9, time.perf_counter() - began)
    count, one = differ.read()
    for address in (a, b, c, again):
        gpu.give_back(address)
    numbers = {
        "side": MATRIX_SIDE,
        "repeats": MULTIPLY_REPEATS,
        "wrong_rows": len(rows),
        "wrong_repeats": count,
        "gflops": round(2 * MATRIX_SIDE**3 * MULTIPLY_REPEATS / took / 1e9, 1),
    }
    detail = (
        f"row {rows[0]} is not what the CPU finds" if rows else f"a repeat differs: {one}" if count else ""
    )
    look.found("arithmetic", not rows and not count, numbers, detail)


def _wrong_rows(
    a: array.array[float], b: array.array[float], c: array.array[float], draw: random.Random
) -> Iterator[int]:
    """Rows in which c is not a x b: times a random vector both must give the same (Freivalds, 1977), so the CPU needs a
    thousandth of the GPU's work. A wrong row passes with a chance of one in a million."""
    vector = [draw.randint(1, 1_000_000) for _ in range(MATRIX_SIDE)]
    inner = [_dot(b, row, vector) for row in range(MATRIX_SIDE)]
    for row in range(MATRIX_SIDE):
        if _dot(a, row, inner) != _dot(c, row, vector):
            yield row


def _dot(matrix: array.array[float], row: int, vector: list[int]) -> int:
    try:
        return sum(
            int(one) * other
            for one, other in zip(matrix[row * MATRIX_SIDE : (row + 1) * MATRIX_SIDE], vector, strict=True)
        )
    except (ValueError, OverflowError):  # not a number, or no end of it: nothing that a sum of these can be
        return -1


# -- DCGM -----------------------------------------------------------------------------------------------------------------


class DcgmUnavailable(Exception):
    """DCGM can't be asked here; the message says why."""


def run_dcgm(look: CheckProgress, index: int, seconds: float) -> None:
    """NVIDIA's own diagnostic, where the host has it. Raises DcgmUnavailable."""
    program = shutil.which("dcgmi")
    if program is None:
        raise DcgmUnavailable("dcgmi is not installed")
    look.step("dcgm")
    command = [program, "diag", "-r", DCGM_LEVEL, "-i", str(index), "-j"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + seconds
    while True:
        try:
            printed, complaint = process.communicate(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            try:
                look.raise_if_stopped()
            except DiagnosticStopped:
                process.terminate()
                process.communicate()
                raise
            if time.monotonic() > until:
                process.kill()
                process.communicate()
                look.found("dcgm", False, {"seconds": round(seconds)}, "it did not end in time")
                return
    results = list(parse_dcgm_results(printed))
    if not results:
        words = " ".join((complaint or printed).split())[:150]
        raise DcgmUnavailable(f"dcgmi ended with {process.returncode} and no result: {words}")
    for name, status, words in results:
        passed = {"pass": True, "fail": False}.get(status.lower())
        look.found(name[:40], passed, {"status": status}, words[:200])


def parse_dcgm_results(printed: str) -> Iterator[tuple[str, str, str]]:
    """(test, status, words) of the JSON of ``dcgmi diag -j``. NVIDIA publishes no schema of it, so every object that has a name and
    results with a status is taken for a test, wherever it lies."""
    start = printed.find("{")
    try:
        whole, _ = json.JSONDecoder().raw_decode(printed[start:]) if start >= 0 else ({}, 0)
    except ValueError:
        return
    waiting: list[Any] = [whole]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, list):
            waiting = one + waiting
        elif isinstance(one, dict):
            results = one.get("results")
            if isinstance(one.get("name"), str) and isinstance(results, list):
                yield from (
                    (one["name"], str(each["status"]), _result_detail(each))
                    for each in results
                    if _has_status(each)
                )
            else:
                waiting = list(one.values()) + waiting


def _has_status(result: Any) -> bool:
    return isinstance(result, dict) and isinstance(result.get("status"), str)


def _result_detail(result: dict[str, Any]) -> str:
    warnings = result.get("warnings")
    told = [each.get("warning", "") if isinstance(each, dict) else str(each) for each in warnings or []]
    return " ".join(filter(None, [*told, str(result.get("info") or "")]))


# -- the operator's own ---------------------------------------------------------------------------------------------------


def run_operator_program(look: CheckProgress, name: str, command: list[str], seconds: float) -> None:
    """The operator's own program: 0 is passed, anything else failed, with what it printed last."""
    look.step(name)
    ctypes.CDLL(None, use_errno=True).prctl(
        PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
    )  # what it leaves behind comes to us
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    printed, until = b"", began + seconds
    try:
        while process.poll() is None:
            look.raise_if_stopped()
            if time.monotonic() > until:
                look.found(name, False, {"seconds": round(seconds)}, "it did not end in time")
                return
            time.sleep(0.1)
            printed = (printed + (process.stdout.read(MIB) or b""))[-MAX_OUTPUT_BYTES:]
        printed = (printed + (process.stdout.read(MIB) or b""))[-MAX_OUTPUT_BYTES:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        kill_descendants()
    said = " ".join(printed.decode("utf-8", "replace").split())[-200:]
    numbers = {"status": process.returncode, "seconds": round(time.monotonic() - began, 1)}
    look.found(name, process.returncode == 0, numbers, said if process.returncode else "")


def kill_descendants() -> None:
    """Ends whatever a program has started, in other sessions too, and waits for its death: it may use the GPU until then."""
    while True:
        for process in processes.descendants(processes.scan(), os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(0.02)


# -- simulated ------------------------------------------------------------------------------------------------------------


def run_simulated(look: CheckProgress, fault: str) -> None:
    """Of a GPU that is not there: says so, and finds what was planted."""
    for name in ("memory", "bandwidth", "arithmetic"):
        look.step(name)
        for _ in range(3):
            time.sleep(SIMULATED_STEP_SECONDS / 3)
            look.raise_if_stopped()
        planted = name == fault
        look.found(
            name,
            not planted,
            {},
            "planted on a simulated GPU" if planted else "simulated: nothing was measured",
        )


def main(arguments: list[str] | None = None) -> int:
    """Look, and say how it ended."""
    parser = argparse.ArgumentParser(prog="agent.diagnostics.gpu_check", allow_abbrev=False)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument("--tool", choices=("auto", "own", "dcgm", "simulated", "operator"), default="own")
    parser.add_argument("--name", default="", help="of the operator's diagnostic")
    parser.add_argument("command", nargs="*", help="of the operator's diagnostic")
    parser.add_argument("--index", type=int, default=0, help="of the GPU, for DCGM")
    parser.add_argument("--fault", default="")
    options = parser.parse_args(arguments)
    # Not a handler of Python's: that would wait until the call that hangs comes back.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, options.deadline))
    look = CheckProgress()
    signal.signal(signal.SIGTERM, look.stop)
    try:
        _run_tool(look, options)
    except DiagnosticStopped:
        print_json({"end": "stopped", "detail": "it gave way to work"})
    except CudaError as error:
        if error.code in INCONCLUSIVE_CUDA_ERRORS and not look.failed:
            print_json({"end": "stopped", "detail": str(error)})
            return 0
        look.found("driver", False, {"code": error.code}, str(error))
        print_json({"end": "failed", "detail": "; ".join(look.failed)})
    except OSError as error:
        what = options.name or "the CUDA driver"
        print_json({"end": "stopped", "detail": f"{what} can't be loaded: {error}"})
    except DcgmUnavailable as error:
        print_json({"end": "stopped", "detail": str(error)})
    else:
        end = "failed" if look.failed else "stopped" if look.unknown else "passed"
        print_json({"end": end, "detail": "; ".join(look.failed) or look.unknown})
    return 0


def _run_tool(look: CheckProgress, options: argparse.Namespace) -> None:
    if options.tool == "simulated":
        print_json({"tool": "simulated"})
        return run_simulated(look, options.fault)
    if options.tool == "operator":
        print_json({"tool": options.name})
        return run_operator_program(
            look, options.name, options.command, options.deadline - DCGM_MARGIN_SECONDS
        )
    if options.tool in ("auto", "dcgm"):
        try:
            print_json({"tool": "dcgm"})
            return run_dcgm(look, options.index, options.deadline - DCGM_MARGIN_SECONDS)
        except DcgmUnavailable as error:
            if options.tool == "dcgm":
                raise
            look.found("dcgm", None, {}, f"{error}; our own instead")
    print_json({"tool": "own"})
    return run_builtin_checks(look)


if __name__ == "__main__":
    sys.exit(main())
