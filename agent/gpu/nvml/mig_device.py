"""Changes the MIG geometry of one GPU through NVML."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import pynvml

from agent.gpu import mig
from agent.gpu.nvml.calls import as_text, value_or_none
from agent.protocol import GeometryPart

MAX_PLACEMENTS = 16  # buffer size per profile and GPU; NVML has at most 7 placements


def mig_profiles(handle: Any) -> list[dict[str, Any]]:
    """Return the MIG profiles of a GPU; [] if the GPU does not support MIG.

    A profile has the fields of ``protocol.MigProfileSeen`` and NVML's ``id``. Some drivers report the
    placements only while MIG mode is on. Without placements, ``size`` is 0 and ``starts`` is empty.
    """
    if value_or_none(pynvml.nvmlDeviceGetMigMode, handle) is None:
        return []
    profiles = []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _profile_info(handle, number)
        if info is None:
            continue
        gigabytes = round(info.memorySizeMB / 1024)
        name = re.search(r"MIG (\S+)", as_text(getattr(info, "name", b"")))
        placements = _placements(handle, info.id)
        profiles.append(
            {
                "id": info.id,
                "name": name[1] if name else f"{info.sliceCount}g.{gigabytes}gb",
                "slices": info.sliceCount,
                "memory_mib": info.memorySizeMB,
                "most": info.instanceCount,
                "size": placements[0][1] if placements else 0,
                "starts": [start for start, _ in placements],
            }
        )
    return profiles


def _profile_info(handle: Any, number: int) -> Any:
    """Return NVML's data of a GPU instance profile; None if the GPU has no profile of this number.

    The data has the name of the profile only if the driver supports that.
    """
    info = value_or_none(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
    return (
        info
        if info is not None
        else value_or_none(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number, 1)
    )


def _placements(handle: Any, profile: int) -> list[tuple[int, int]]:
    """Return the possible placements of a profile on an empty GPU as (start, size), in memory slices.

    Returns [] if the driver does not report placements.
    """
    buffer = (pynvml.c_nvmlGpuInstancePlacement_t * MAX_PLACEMENTS)()
    count = ctypes.c_uint(MAX_PLACEMENTS)
    if (
        value_or_none(
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile, buffer, ctypes.byref(count)
        )
        is None
    ):
        return []
    return sorted((place.start, place.size) for place in buffer[: count.value])


class NvmlMigGpu:
    """One real GPU. Implements ``mig.MigGpu``.

    Every NVML error becomes a MigError with a readable message.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._profiles = mig_profiles(handle)
        self._names = {profile["id"]: profile["name"] for profile in self._profiles}

    def parts(self) -> list[str] | None:
        """Return the profile of each GPU instance; None if MIG mode is off.

        An instance without a compute instance has the profile ''.
        """
        mode = _mig_call("MIG mode", pynvml.nvmlDeviceGetMigMode, self._handle)
        if mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return None
        return [self._names[profile] if _compute_instances(gi) else "" for profile, gi in self._instances()]

    def split(self, on: bool) -> None:
        """Switch MIG mode on or off.

        Some GPUs switch only after a GPU reset. In this case, cancel the pending change and raise MigError.
        """
        mode_wanted = pynvml.NVML_DEVICE_MIG_ENABLE if on else pynvml.NVML_DEVICE_MIG_DISABLE
        status = _mig_call("MIG mode", pynvml.nvmlDeviceSetMigMode, self._handle, mode_wanted)
        mode = _mig_call("MIG mode", pynvml.nvmlDeviceGetMigMode, self._handle)
        if mode[0] == mode_wanted:
            return
        value_or_none(pynvml.nvmlDeviceSetMigMode, self._handle, mode[0])
        raise mig.MigError(f"MIG mode: {_error_text(status) if status else 'the GPU needs a reset first'}")

    def clear(self) -> None:
        """Destroy every compute instance and then its GPU instance."""
        for profile, gi in self._instances():
            for ci in _compute_instances(gi):
                _mig_call(f"removing {self._names[profile]}", pynvml.nvmlComputeInstanceDestroy, ci)
            _mig_call(f"removing {self._names[profile]}", pynvml.nvmlGpuInstanceDestroy, gi)

    def make(self, part: GeometryPart) -> None:
        """Create a GPU instance and one compute instance that uses all of it.

        On an error, a GPU instance without a compute instance may remain. ``clear`` removes it.
        """

        profile = next((known for known in self._profiles if known["name"] == part.profile), None)
        if profile is None:
            raise mig.MigError(f"{part.profile}: not a profile of this GPU")
        operation = f"making {part.profile}"
        if part.start is None or not profile["size"]:
            gi = _mig_call(operation, pynvml.nvmlDeviceCreateGpuInstance, self._handle, profile["id"])
        else:
            place = pynvml.c_nvmlGpuInstancePlacement_t(part.start, profile["size"])
            call = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
            gi = _mig_call(operation, call, self._handle, profile["id"], ctypes.byref(place))
        for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            info = _compute_profile(gi, number)
            if info is not None and info.sliceCount == profile["slices"]:
                _mig_call(operation, pynvml.nvmlGpuInstanceCreateComputeInstance, gi, info.id)
                return
        raise mig.MigError(f"{operation}: the driver has no compute instance of {profile['slices']} slices")

    def _instances(self) -> list[tuple[int, Any]]:
        """Return (profile id, handle) of each GPU instance."""
        instances = []
        for profile in self._profiles:
            handles = (pynvml.c_nvmlGpuInstance_t * MAX_PLACEMENTS)()
            count = ctypes.c_uint(MAX_PLACEMENTS)
            call = pynvml.nvmlDeviceGetGpuInstances
            if value_or_none(call, self._handle, profile["id"], handles, ctypes.byref(count)) is not None:
                instances += [(profile["id"], handle) for handle in handles[: count.value]]
        return instances


def _compute_profile(gi: Any, number: int) -> Any:
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    return value_or_none(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, gi, number, shared, 1)


def _compute_instances(gi: Any) -> list[Any]:
    instances: list[Any] = []
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = _compute_profile(gi, number)
        if info is None:
            continue
        handles = (pynvml.c_nvmlComputeInstance_t * MAX_PLACEMENTS)()
        count = ctypes.c_uint(MAX_PLACEMENTS)
        if (
            value_or_none(
                pynvml.nvmlGpuInstanceGetComputeInstances, gi, info.id, handles, ctypes.byref(count)
            )
            is not None
        ):
            instances += handles[: count.value]
    return instances


# The texts that operators see if the driver refuses a geometry change.
NVML_ERROR_TEXTS = {
    pynvml.NVML_ERROR_IN_USE: "a process still uses the GPU",
    pynvml.NVML_ERROR_NO_PERMISSION: "the agent may not do that: it has to run as root",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU needs a reset first",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "it does not fit on the GPU",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "the GPU or its driver does not support that",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the driver does not reach the GPU",
}


def _error_text(code: int) -> str:
    return NVML_ERROR_TEXTS.get(code) or str(pynvml.NVMLError(code))


def _mig_call(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise mig.MigError(f"{operation}: {_error_text(error.value)}") from None
