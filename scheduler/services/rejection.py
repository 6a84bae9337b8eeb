"""The error of operations that the current state does not allow."""

from __future__ import annotations

from typing import Any

from scheduler.core.promises.reservation_windows import ReservationWindow
from scheduler.core.reasons import ReasonNumbers


class OperationRejected(Exception):
    """The current state does not allow the operation.

    ``code``: a ReasonCode, or a code of its own where no reason of the engine fits. ``numbers``: the facts.
    ``first_windows``: windows that would fit instead, for reservations only.
    """

    def __init__(
        self, code: str, numbers: ReasonNumbers = (), first_windows: tuple[ReservationWindow, ...] = ()
    ) -> None:
        super().__init__(f"{code} {dict(numbers)}")
        self.code = str(code)
        self.numbers: dict[str, Any] = dict(numbers)
        self.first_windows = first_windows
