"""Tests memory, bandwidth and arithmetic of a GPU through the CUDA driver."""

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
