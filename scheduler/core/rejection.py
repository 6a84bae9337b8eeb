"""Define the exception for a request that the current state does not allow.

The scheduler, telemetry and the portal raise it. Pages and the API show a sentence for each code, which is
defined in ``portal.wording.refusal_texts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from scheduler.core.promises.reservation_windows import ReservationWindow
from scheduler.core.reasons import ReasonNumbers


class OperationRejected(Exception):
    """The current state does not allow the operation.

    - ``code`` is a ReasonCode, or another code if no ReasonCode fits.
    - ``numbers`` are the facts for the sentence.
    - ``first_windows`` are times at which a rejected reservation would fit instead.
    - ``field`` is the argument that the caller should change. It is empty if several arguments together cause
      the rejection.
    - ``operation`` is the rejected operation. It is set only if the sentence of the code names it.
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
        """Return (start, end) of the times at which a reservation would fit instead, in UTC."""
        return [
            (datetime.fromtimestamp(window.start, UTC), datetime.fromtimestamp(window.end, UTC))
            for window in self.first_windows
        ]
