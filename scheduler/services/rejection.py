"""How the scheduler's verbs say no."""

from __future__ import annotations

from typing import Any

from scheduler.core.promises.reservation_windows import ReservationWindow
from scheduler.core.reasons import ReasonNumbers


class OperationRejected(Exception):
    """The world does not allow it now. ``code`` is a reasons.Code value or, for what is no engine reason, a word of its own;
    ``numbers`` are its facts; ``first_windows`` are windows that would fit instead (reservations only)."""

    def __init__(
        self, code: str, numbers: ReasonNumbers = (), first_windows: tuple[ReservationWindow, ...] = ()
    ) -> None:
        super().__init__(f"{code} {dict(numbers)}")
        self.code = str(code)
        self.numbers: dict[str, Any] = dict(numbers)
        self.first_windows = first_windows
