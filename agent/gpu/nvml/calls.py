"""Calls NVML and converts its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pynvml

# Errors that stay the same while the driver is loaded: the GPU, its driver or this library lacks the value.
LASTING_ERRORS = (
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)
WIDE_TYPES = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG)


def value_or_none(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of an NVML call, or None if this GPU or driver does not support it."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


class SupportedCalls:
    """Calls NVML for one GPU, and remembers what this GPU lacks, so that it is tried only once."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._lacking: set[str | tuple[int, int]] = set()

    def value(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of ``call(handle, *arguments)``; None if it fails.

        ``name`` identifies the value.
        """
        if name in self._lacking:
            return None
        try:
            return call(self._handle, *arguments)
        except pynvml.NVMLError as error:
            if error.value in LASTING_ERRORS:
                self._lacking.add(name)
            return None

    def fields(self, wanted: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Return the known values of fields, given as (number, scope), by their number. Runs one call."""
        known = [field for field in wanted if field not in self._lacking]
        if not known:
            return {}
        values = value_or_none(pynvml.nvmlDeviceGetFieldValues, self._handle, known)
        if values is None:
            return {}
        found = {}
        for field, value in zip(known, values, strict=True):
            if value.nvmlReturn == pynvml.NVML_SUCCESS:
                wide = value.valueType in WIDE_TYPES
                found[field[0]] = int(value.value.ullVal if wide else value.value.uiVal)
            elif value.nvmlReturn in LASTING_ERRORS:
                self._lacking.add(field)
        return found


def as_text(value: Any) -> str:
    """Return an NVML string as str; '' for None."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
