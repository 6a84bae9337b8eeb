"""Tests memory, bandwidth and arithmetic of a GPU through the CUDA driver.

The memory test writes five patterns to all free memory, reads them again and compares them on the GPU. The
bandwidth test copies within the GPU, to it and from it. The arithmetic test multiplies two matrices, checks
the product on the CPU and then repeats the product.
"""

from __future__ import annotations

import array
import ctypes
import random
import time
from collections.abc import Callable, Iterator

from agent.diagnostics.check_progress import CheckProgress
from agent.diagnostics.cuda import (
    ATTRIBUTE_MEMORY_BUS_WIDTH,
    ATTRIBUTE_MEMORY_CLOCK_RATE,
    CudaDevice,
    CudaError,
)
from agent.diagnostics.ptx_kernels import PTX_MODULE

MIB, GIB = 1 << 20, 1 << 30


# Memory that the check leaves free for CUDA contexts and the driver. On a small GPU it leaves an eighth of
# the memory instead.
RESERVED_BYTES = 512 * MIB


MAX_ALLOCATION_BYTES = GIB


MIN_CHECKED_MEMORY_SHARE = 0.5  # a check that covers less of the memory can find errors, but not pass


# In the pattern "addresses", the value of each word is its index times this factor, plus an offset. Such a
# pattern reveals stuck address lines, because each word of an allocation has a different value.
ADDRESS_FACTOR = 2_654_435_761


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


MIN_BANDWIDTH_SHARE = 0.4  # the check fails below this share of the theoretical bandwidth


MATRIX_SIDE = 512


MAX_MATRIX_ELEMENT = 15  # small enough for exact sums in 32-bit floats


MULTIPLY_REPEATS = 200


def run_builtin_checks(progress: CheckProgress) -> None:
    """Test memory, bandwidth and arithmetic of the one visible GPU.

    May raise CudaError, OSError (the driver is missing) and DiagnosticStopped.
    """
    progress.step("driver")
    gpu = CudaDevice(PTX_MODULE)
    progress.report_check("driver", True, {"gpu": gpu.name()})
    for name, check in (
        ("memory", _check_memory),
        ("bandwidth", _check_bandwidth),
        ("arithmetic", _check_arithmetic),
    ):
        progress.step(name)
        check(gpu, progress)
    gpu.close()


class MismatchCounters:
    """Three words on the GPU in which the kernels record mismatches, as ``ptx_kernels`` describes."""

    def __init__(self, gpu: CudaDevice) -> None:
        self._gpu = gpu
        self.address = gpu.allocate(24)
        self.clear()

    def clear(self) -> None:
        """Reset the counters."""
        self._gpu.write(self.address, (ctypes.c_uint64 * 3)(0, 2**64 - 1, 0), 24)

    def read(self) -> tuple[int, str]:
        """Return the number of mismatches and a description of one of them."""
        words = (ctypes.c_uint64 * 3)()
        self._gpu.read(words, self.address, 24)
        count, first, values = (int(word) for word in words)
        return (
            count,
            f"word {first} is 0x{values >> 32:08x} and should be 0x{values & 0xFFFFFFFF:08x}"
            if count
            else "",
        )


def _check_memory(gpu: CudaDevice, progress: CheckProgress) -> None:
    free, total = gpu.memory()
    pieces: list[tuple[int, int]] = []
    differ = MismatchCounters(gpu)
    began = time.monotonic()
    try:
        pieces = allocate_in_pieces(gpu, free - min(RESERVED_BYTES, total // 8))
        checked = sum(size for _, size in pieces)
        wrong, text = 0, ""
        for name, factor, offset in MEMORY_PATTERNS:
            for address, size in pieces:
                progress.raise_if_stopped()
                _write_pattern(gpu, address, size, factor, offset)
            for number, (address, size) in enumerate(pieces):
                progress.raise_if_stopped()
                differ.clear()
                _compare(gpu, address, size, factor, offset, differ)
                count, example = differ.read()
                wrong += count
                if count and not text:
                    text = f"pattern {name}, piece {number}: {example}"
    finally:
        for address, _ in pieces:
            gpu.free(address)
    numbers = {
        "looked_at_mib": checked // MIB,
        "total_mib": total // MIB,
        "patterns": len(MEMORY_PATTERNS),
        "wrong_words": wrong,
        "seconds": round(time.monotonic() - began, 2),
    }
    if checked < MIN_CHECKED_MEMORY_SHARE * total:
        progress.unknown = "" if wrong else "another process uses most of its memory"
        progress.report_check("memory", False if wrong else None, numbers, text or progress.unknown)
        return
    progress.report_check("memory", wrong == 0, numbers, f"{wrong} words differ; {text}" if wrong else "")


def allocate_in_pieces(gpu: CudaDevice, wanted: int) -> list[tuple[int, int]]:
    """Allocate ``wanted`` bytes of GPU memory, or as much as is free.

    Return the address and the size in bytes of each allocated piece.
    """
    pieces: list[tuple[int, int]] = []
    size = MAX_ALLOCATION_BYTES
    while wanted >= MIB and size >= MIB:
        piece = min(size, wanted // MIB * MIB)
        try:
            pieces.append((gpu.allocate(piece), piece))
            wanted -= piece
        except CudaError as error:
            if (
                error.call != "cuMemAlloc_v2" or error.code != 2
            ):  # not enough free memory: try a smaller piece
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


def _check_bandwidth(gpu: CudaDevice, progress: CheckProgress) -> None:
    size = min(COPY_BYTES, max(MIB, gpu.memory()[0] // 4))
    source, target = gpu.allocate(size), gpu.allocate(size)
    gpu.copy(target, source, size)
    gpu.wait()
    within = (
        2
        * size
        * COPY_REPEATS
        / _time_repeats(gpu, COPY_REPEATS, progress, lambda: gpu.copy(target, source, size))
    )
    transfer = min(size, TRANSFER_BYTES)
    buffer = gpu.allocate_on_host(transfer)
    to = (
        transfer
        * COPY_REPEATS
        / _time_repeats(gpu, COPY_REPEATS, progress, lambda: gpu.write(target, buffer, transfer))
    )
    back = (
        transfer
        * COPY_REPEATS
        / _time_repeats(gpu, COPY_REPEATS, progress, lambda: gpu.read(buffer, target, transfer))
    )
    gpu.free_on_host(buffer)
    for address in (source, target):
        gpu.free(address)
    numbers = {"within_gb_s": _gb(within), "to_gb_s": _gb(to), "from_gb_s": _gb(back)}
    clock, width = gpu.attribute(ATTRIBUTE_MEMORY_CLOCK_RATE), gpu.attribute(ATTRIBUTE_MEMORY_BUS_WIDTH)
    if not clock or not width:
        progress.report_check(
            "bandwidth", None, numbers, "measured; this driver does not report the theoretical bandwidth"
        )
        return
    theoretical = 2 * clock * 1000 * width / 8
    numbers["promised_gb_s"] = _gb(theoretical)
    slow = within < MIN_BANDWIDTH_SHARE * theoretical
    detail = (
        f"{_gb(within)} GB/s is below {MIN_BANDWIDTH_SHARE:.0%} of the theoretical {_gb(theoretical)}"
        if slow
        else ""
    )
    progress.report_check("bandwidth", not slow, numbers, detail)


def _time_repeats(gpu: CudaDevice, times: int, progress: CheckProgress, step: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(times):
        progress.raise_if_stopped()
        step()
    gpu.wait()
    return max(1e-9, time.perf_counter() - began)


def _gb(bytes_per_second: float) -> float:
    return round(bytes_per_second / 1e9, 2)


def _check_arithmetic(gpu: CudaDevice, progress: CheckProgress) -> None:
    """Multiply two matrices, check the product on the CPU, then repeat the product and compare the results.

    The elements are small integers, so all sums are exact in 32-bit floats, in any order. Therefore every bit
    of a correct result is known.
    """
    draw = random.Random(20_260_301)
    left, right = (
        array.array("f", (draw.randint(0, MAX_MATRIX_ELEMENT) for _ in range(MATRIX_SIDE * MATRIX_SIDE)))
        for _ in range(2)
    )
    size = 4 * MATRIX_SIDE * MATRIX_SIDE
    a, b, c, repeated = (gpu.allocate(size) for _ in range(4))
    for address, values in ((a, left), (b, right)):
        gpu.write(address, (ctypes.c_char * size).from_buffer(values), size)
    operands = (ctypes.c_uint64(a), ctypes.c_uint64(b))
    gpu.run("product", *operands, ctypes.c_uint64(c), ctypes.c_uint(MATRIX_SIDE))
    result = array.array("f", bytes(size))
    gpu.read((ctypes.c_char * size).from_buffer(result), c, size)
    progress.raise_if_stopped()
    rows = list(_wrong_rows(left, right, result, draw))
    differ = MismatchCounters(gpu)
    began = time.perf_counter()
    for _ in range(MULTIPLY_REPEATS):
        progress.raise_if_stopped()
        gpu.run("product", *operands, ctypes.c_uint64(repeated), ctypes.c_uint(MATRIX_SIDE))
        words = ctypes.c_uint64(MATRIX_SIDE * MATRIX_SIDE)
        gpu.run("same", ctypes.c_uint64(repeated), ctypes.c_uint64(c), words, ctypes.c_uint64(differ.address))
    took = max(1e-9, time.perf_counter() - began)
    count, example = differ.read()
    for address in (a, b, c, repeated):
        gpu.free(address)
    numbers = {
        "side": MATRIX_SIDE,
        "repeats": MULTIPLY_REPEATS,
        "wrong_rows": len(rows),
        "wrong_repeats": count,
        "gflops": round(2 * MATRIX_SIDE**3 * MULTIPLY_REPEATS / took / 1e9, 1),
    }
    detail = (
        f"row {rows[0]} differs from the CPU's result"
        if rows
        else f"a repeated product differs: {example}"
        if count
        else ""
    )
    progress.report_check("arithmetic", not rows and not count, numbers, detail)


def _wrong_rows(
    a: array.array[float], b: array.array[float], c: array.array[float], draw: random.Random
) -> Iterator[int]:
    """Yield the index of each row in which c differs from a x b.

    The test multiplies c and a x b by a random vector (Freivalds, 1977). The CPU then needs only about a
    hundredth of the work of a full product. A wrong row passes the test with a probability of at most one in
    a million.
    """
    vector = [draw.randint(1, 1_000_000) for _ in range(MATRIX_SIDE)]
    inner = [_dot(b, row, vector) for row in range(MATRIX_SIDE)]
    for row in range(MATRIX_SIDE):
        if _dot(a, row, inner) != _dot(c, row, vector):
            yield row


def _dot(matrix: array.array[float], row: int, vector: list[int]) -> int:
    try:
        return sum(
            int(left) * right
            for left, right in zip(matrix[row * MATRIX_SIDE : (row + 1) * MATRIX_SIDE], vector, strict=True)
        )
    except (ValueError, OverflowError):  # the row contains NaN or infinity; -1 differs from every correct sum
        return -1
