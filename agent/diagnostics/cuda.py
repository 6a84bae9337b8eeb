"""Calls the functions of the CUDA driver (libcuda.so.1) that a diagnostic needs, through ctypes.

Every host with GPUs has this library, so nothing else must be installed. Only ``agent.diagnostics`` uses it,
in a process of its own, because a call into a broken GPU may never return.
"""

from __future__ import annotations

import ctypes
from typing import Any

CUDA_LIBRARY = "libcuda.so.1"
# Numbers of CUdevice_attribute: memory clock in kHz, width of the memory bus in bits, multiprocessor count
ATTRIBUTE_MEMORY_CLOCK_RATE, ATTRIBUTE_MEMORY_BUS_WIDTH, ATTRIBUTE_MULTIPROCESSOR_COUNT = 36, 37, 16
THREADS_PER_BLOCK = 256
BLOCKS_PER_MULTIPROCESSOR = 16


class CudaError(Exception):
    """The driver refused a call. The message contains the driver's own text."""

    def __init__(self, call: str, code: int, detail: str) -> None:
        super().__init__(f"{call}: {detail} ({code})")
        self.call, self.code = call, code


class CudaDevice:
    """The GPU or MIG instance that CUDA_VISIBLE_DEVICES names.

    ``programs``: the PTX source of the kernels that ``run`` can start. The constructor raises OSError if the
    driver is missing. Every call may raise CudaError.
    """

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
        """Return the device name."""
        text = ctypes.create_string_buffer(200)
        self._call("cuDeviceGetName", text, ctypes.c_int(len(text)), self._device)
        return text.value.decode("utf-8", "replace")

    def attribute(self, number: int) -> int | None:
        """Return the value of a CUdevice_attribute; None if it is 0 or this driver does not report it."""
        value = ctypes.c_int()
        try:
            self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), self._device)
        except CudaError:
            return None
        return value.value or None

    def memory(self) -> tuple[int, int]:
        """Return (free, total) memory in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        """Allocate ``size`` bytes of GPU memory and return their address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        """Free GPU memory that ``allocate`` returned."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def allocate_on_host(self, size: int) -> Any:
        """Return a page-locked buffer of ``size`` bytes of host memory, which the GPU can access."""
        address = ctypes.c_void_p()
        self._call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return (ctypes.c_char * size).from_address(address.value or 0)

    def free_on_host(self, buffer: Any) -> None:
        """Free a buffer that ``allocate_on_host`` returned."""
        self._call("cuMemFreeHost", ctypes.c_void_p(ctypes.addressof(buffer)))

    def set_words(self, address: int, word: int, count: int) -> None:
        """Set ``count`` 32-bit words to ``word``."""
        self._call("cuMemsetD32_v2", ctypes.c_uint64(address), ctypes.c_uint(word), ctypes.c_size_t(count))

    def write(self, address: int, buffer: Any, size: int) -> None:
        """Copy from the host to the GPU."""
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), buffer, ctypes.c_size_t(size))

    def read(self, buffer: Any, address: int, size: int) -> None:
        """Copy from the GPU to the host."""
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy within the GPU."""
        self._call("cuMemcpyDtoD_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size))

    def run(self, function: str, *arguments: Any) -> None:
        """Run a kernel on all multiprocessors of the GPU and wait until it has finished."""
        if function not in self._functions:
            handle = ctypes.c_void_p()
            self._call(
                "cuModuleGetFunction", ctypes.byref(handle), self._module, ctypes.c_char_p(function.encode())
            )
            self._functions[function] = handle
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
        grid, block = (self._blocks, 1, 1), (THREADS_PER_BLOCK, 1, 1)
        sizes = [ctypes.c_uint(size) for size in (*grid, *block, 0)]
        self._call("cuLaunchKernel", self._functions[function], *sizes, None, pointers, None)
        self.wait()

    def wait(self) -> None:
        """Wait until all submitted work has finished."""
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        """Release the device."""
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(name, code, self._error_text(code))

    def _error_text(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text)) or not text.value:
            return "an error that the driver does not name"
        return text.value.decode("utf-8", "replace")
