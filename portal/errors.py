"""How a verb says no. Pages show these beside their fields; the API turns each into one 4xx answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ServiceError(Exception):
    """Base of every refusal. ``status`` is the HTTP status that says the same."""

    status = 400

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Invalid(ServiceError):
    """What was given cannot be taken: one message per field, each naming the value and what is allowed."""

    status = 400

    def __init__(self, fields: Mapping[str, str], values: Mapping[str, Any] | None = None) -> None:
        super().__init__("; ".join(fields.values()))
        self.fields = dict(fields)
        self.values = dict(values or {})


class NotAllowed(ServiceError):
    """The actor may see the thing but not do this to it. What may not even be seen is 404 at the edge."""

    status = 403


class PlannerBudgetExceeded(ServiceError):
    """A person's questions to the planner took too long lately; ``wait`` seconds from now it answers again."""

    status = 429

    def __init__(self, wait: int) -> None:
        super().__init__(
            f"Your questions to the planner took very long in the last minute. It answers them again in {wait} seconds; your"
            " work and its place in the queue are not touched by this."
        )
        self.wait = wait


class ObjectNotFound(ServiceError):
    """What an address names is not there, or not to be seen by whoever asks: the field, the value and what is allowed."""

    status = 404

    def __init__(self, field: str, value: str, allowed: str) -> None:
        said = ascii(value)
        super().__init__(f"{field} is {said if len(said) <= 60 else f'{said[:57]}...'}; allowed: {allowed}.")
        self.field = field
        self.value = value[:100]


class Conflict(ServiceError):
    """The world does not allow it now: somebody was first, a window is full, a month is closed.

    ``code`` and ``numbers`` are the engine's reason where it gave one; ``windows`` are (start, end) pairs of datetimes
    that would fit instead.
    """

    status = 409

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        code: str = "",
        numbers: Mapping[str, Any] | None = None,
        windows: list[tuple[Any, Any]] | None = None,
    ) -> None:
        super().__init__(message)
        self.field = field
        self.code = code
        self.numbers = dict(numbers or {})
        self.windows = list(windows or [])
