"""Calls NVML and converts its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml


def value_or_none(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of an NVML call, or None if this GPU or driver does not support it."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def as_text(value: Any) -> str:
    """Return an NVML string as str; '' for None."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
