"""Helps to call functions of the C library that Python does not offer."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNET = 0x40000000


def raise_on_error(result: int, what: str) -> None:
    """Raise OSError with the errno of the C library if ``result``, the result of a call, is not 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
