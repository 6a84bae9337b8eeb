"""Define the exception for a request that the current state does not allow.

The scheduler, telemetry and the portal raise it. ``portal.wording.refusal_texts`` has the sentence of each
code; pages and the API show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from scheduler.core.promises.reservation_windows import ReservationWindow
from scheduler.core.reasons import ReasonNumbers


class OperationRejected(Exception):
    """The current state does not allow the operation.

    ``code``: a ReasonCode, or another code if no reason of the engine fits. ``numbers``: the facts.
    ``first_windows``: windows that would fit instead, for reservations only. ``field``: the argument to
    change; empty if several arguments cause the rejection. ``operation``: the rejected operation, if the
    code's sentence names it.
    """

    def __init__(
        self,
        code: str,
        numbers: ReasonNumbers | Mapping[str, Any] = (),
        first_windows: tuple[ReservationWindow, ...] = (),
        *,
        field: str = "",
        operation: str = "",
    ) -> None:
        super().__init__(f"{code} {dict(numbers)}")
        self.code = str(code)
        self.numbers: dict[str, Any] = dict(numbers)
        self.first_windows = first_windows
        self.field = field
        self.operation = operation

    @property
    def windows(self) -> list[tuple[datetime, datetime]]:
        """Return the windows that would fit instead, as times in UTC."""
        return [
            (datetime.fromtimestamp(window.start, UTC), datetime.fromtimestamp(window.end, UTC))
            for window in self.first_windows
        ]
