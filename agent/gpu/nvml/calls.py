"""Calls NVML and converts its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml


def value_or_none(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or None where this GPU or driver does not support the question."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
