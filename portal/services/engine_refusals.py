"""Turn refusals of the engine into Conflict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from portal.errors import Conflict
from scheduler.services import OperationRejected

Result = TypeVar("Result")


def conflict_on_refusal(
    deed: Callable[[], Result], sentences: Mapping[str, Callable[[Mapping[str, Any]], str]]
) -> Result:
    """Return the result of the operation.

    Raises Conflict with the code, the numbers and the sentence if the engine refuses.
    """
    try:
        return deed()
    except OperationRejected as no:
        numbers = dict(no.numbers)
        raise Conflict(sentences[no.code](numbers), code=no.code, numbers=numbers) from None
