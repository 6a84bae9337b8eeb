"""Wait for conditions of an installation. Some of its services may be down."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class ConditionTimeout(Exception):
    """Raised when an expected condition does not become true in time."""


def wait_until(condition: Callable[[], Any], seconds: float, description: str, every: float = 0.05) -> float:
    """Wait until ``condition()`` is true, and return the seconds that this took.

    Raises ConditionTimeout after ``seconds``. ``description`` names the condition in the error.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise ConditionTimeout(f"{description}: not within {seconds:.0f} s")
        time.sleep(every)
    return time.monotonic() - began


def rows(read: Callable[[], Any], seconds: float = 40) -> Any:
    """Return the result of a database query. Retry while the database is unavailable."""
    from django.db import InterfaceError, OperationalError, connection

    ends = time.monotonic() + seconds
    while True:
        try:
            return read()
        except (OperationalError, InterfaceError):
            connection.close()
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
