"""The few calls of the CUDA driver (libcuda.so.1) that a diagnostic needs, through ctypes: a host with GPUs has it, and nothing
else is installed for it. Only ``agent.diagnostics.gpu_check`` uses it, in a process of its own: a call into a broken GPU may never come back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

CUDA_LIBRARY = "libcuda.so.1"
# CUdevice_attribute: memory clock in kHz, memory bus in bits, multiprocessors
ATTRIBUTE_MEMORY_CLOCK_RATE, ATTRIBUTE_MEMORY_BUS_WIDTH, ATTRIBUTE_MULTIPROCESSOR_COUNT = 36, 37, 16
THREADS_PER_BLOCK = 256
BLOCKS_PER_MULTIPROCESSOR = 16


class CudaError(Exception):
    """The driver's own words for what it refused, with the call."""

    def __init__(self, call: str, code: int, words: str) -> None:
        super().__init__(f"{call}: {words} ({code})")
        self.call, self.code = call, code


class CudaDevice:
    """The one GPU or MIG instance that CUDA_VISIBLE_DEVICES leaves visible. Raises CudaError; OSError where there is no driver."""

    def __init__(self, programs: str) -> None:
        self._library = ctypes.CDLL(CUDA_LIBRARY)
        self._call("cuInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if count.value != 1:
            raise CudaError("cuDeviceGetCount", count.value, f"{count.value} GPUs are visible, not one")
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(0))
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(programs.encode()))
        self._module = module
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._blocks = max(1, self.attribute(ATTRIBUTE_MULTIPROCESSOR_COUNT) or 1) * BLOCKS_PER_MULTIPROCESSOR

    def name(self) -> str:
        """As the driver calls it."""
        text = ctypes.create_string_buffer(200)
        self._call("cuDeviceGetName", text, ctypes.c_int(len(text)), self._device)
        return text.value.decode("utf-8", "replace")

    def attribute(self, number: int) -> int | None:
        """A figure of the device; None where this driver does not tell it."""
        value = ctypes.c_int()
        try:
            self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), self._device)
        except CudaError:
            return None
        return value.value or None

    def memory(self) -> tuple[int, int]:
        """(free, total) in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def take(self, size: int) -> int:
        """The address of ``size`` bytes of its memory."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def give_back(self, address: int) -> None:
        """Free what ``take`` gave."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def take_of_host(self, size: int) -> Any:
        """A buffer of ``size`` bytes of the host that the GPU can reach by itself (page-locked)."""
        address = ctypes.c_void_p()
        self._call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return (ctypes.c_char * size).from_address(address.value or 0)

    def give_back_of_host(self, buffer: Any) -> None:
        """Free what ``take_of_host`` gave."""
        self._call("cuMemFreeHost", ctypes.c_void_p(ctypes.addressof(buffer)))

    def set_words(self, address: int, word: int, count: int) -> None:
        """``count`` 32-bit words, each ``word``."""
        self._call("cuMemsetD32_v2", ctypes.c_uint64(address), ctypes.c_uint(word), ctypes.c_size_t(count))

    def write(self, address: int, buffer: Any, size: int) -> None:
        """From the host to the GPU."""
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), buffer, ctypes.c_size_t(size))

    def read(self, buffer: Any, address: int, size: int) -> None:
        """From the GPU to the host."""
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))

    def copy(self, to: int, source: int, size: int) -> None:
        """Within the GPU."""
        self._call("cuMemcpyDtoD_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size))

    def run(self, function: str, *arguments: Any) -> None:
        """Run one of the programs over the whole GPU and wait until it is over."""
        if function not in self._functions:
            found = ctypes.c_void_p()
            self._call(
                "cuModuleGetFunction", ctypes.byref(found), self._module, ctypes.c_char_p(function.encode())
            )
            self._functions[function] = found
        given: Sequence[Any] = arguments
        places = (ctypes.c_void_p * len(given))(*(ctypes.addressof(one) for one in given))
        grid, block = (self._blocks, 1, 1), (THREADS_PER_BLOCK, 1, 1)
        sizes = [ctypes.c_uint(size) for size in (*grid, *block, 0)]
        self._call("cuLaunchKernel", self._functions[function], *sizes, None, places, None)
        self.wait()

    def wait(self) -> None:
        """Until everything asked for so far is done."""
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        """Let go of it."""
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(name, code, self._words(code))

    def _words(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text)) or not text.value:
            return "an error that the driver has no words for"
        return text.value.decode("utf-8", "replace")
