"""What the engine refuses, told to whoever asked for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from portal.errors import Conflict
from scheduler.services import OperationRejected

Result = TypeVar("Result")


def conflict_on_refusal(
    deed: Callable[[], Result], sentences: Mapping[str, Callable[[Mapping[str, Any]], str]]
) -> Result:
    """What the deed gives. Where the engine refuses it: Conflict with the code, its numbers and the sentence of that code."""
    try:
        return deed()
    except OperationRejected as no:
        numbers = dict(no.numbers)
        raise Conflict(sentences[no.code](numbers), code=no.code, numbers=numbers) from None
